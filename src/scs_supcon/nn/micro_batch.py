"""Large batches in little memory: an encoder that works in chunks and works twice.

The first pass keeps features and nothing else. When the gradient of the whole batch's loss comes
back, each chunk is encoded again, under the same random numbers, and at once passed backward. So
the memory is that of one chunk, the price one more forward pass, and the gradient that of the whole
batch: a loss still sees every pair of it.

That is exact where an image's features do not depend on its batch. Batch normalisation takes its
statistics from each chunk instead of the whole batch; its running statistics are updated by the
first pass alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def in_micro_batches(encoder: nn.Module, images: Tensor, size: int) -> Tensor:
    """Features of all images, at most `size` of them at work at a time; 0 stands for all.

    Chunks are as equal as can be: a lonely last image would have no batch statistics.
    """
    count = -(-len(images) // size) if size else 1
    if count <= 1:
        return _features(encoder, images)
    chunks = torch.tensor_split(images, count)
    if not torch.is_grad_enabled():
        return torch.cat([_features(encoder, chunk) for chunk in chunks])
    return torch.cat([_forgetful(encoder, chunk) for chunk in chunks])


def _forgetful(encoder: nn.Module, chunk: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    features: Tensor = checkpoint(
        encoder,
        chunk,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _statistics_kept(encoder)),
    )
    return features


def _features(encoder: nn.Module, images: Tensor) -> Tensor:
    features: Tensor = encoder(images)
    return features


@contextmanager
def _statistics_kept(encoder: nn.Module) -> Iterator[None]:
    """Let batch normalisation see a chunk again without counting it again."""
    norms = [part for part in encoder.modules() if isinstance(part, _NormBase)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
