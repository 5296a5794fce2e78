"""The network: an encoder and a projection head, and the input of stage 2 (the probe).

`Network` can encode a large batch in little memory (`micro_batch`). The first pass stores only the
features. In the backward pass each micro-batch is encoded again, with the same random numbers, and
its gradient is computed immediately. This needs the memory of one micro-batch and a second forward
pass. The loss is computed on all pairs, so the gradient is that of the whole batch.

This is exact if the features of an image do not depend on other images. Batch normalisation uses
the statistics of each micro-batch instead of the whole batch; only the first pass updates the
running statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from scs_supcon.nn.head import join_heads

ProbeInput = Literal["features", "embeddings", "common"]


class Output(NamedTuple):
    """The output of a network: `(n, F)` features and `(n, D)` embeddings.

    With several projection heads the embeddings are `(n, heads, D)`.
    """

    features: Tensor
    embeddings: Tensor


class Network(nn.Module):
    """Encoder and projection head: images -> features and embeddings.

    Args:
        encoder: images -> features.
        projection: features -> embeddings. It is always applied to the whole batch, so that its
            batch statistics are exact.
        micro_batch: number of images that are encoded at a time; 0 means all.
        fixed_norm: batch normalisation of the encoder always uses its running statistics, and does
            not update them.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projection: nn.Module,
        micro_batch: int = 0,
        fixed_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.micro_batch = micro_batch
        self.fixed_norm = fixed_norm

    def train(self, mode: bool = True) -> Self:
        """Set the mode; batch normalisation with fixed statistics stays in eval mode."""
        super().train(mode)
        if self.fixed_norm:
            for module in self.encoder.modules():
                if isinstance(module, _NormBase):
                    module.eval()
        return self

    def forward(self, images: Tensor) -> Output:
        features = in_micro_batches(self.encoder, images, self.micro_batch)
        return Output(features, self.projection(features))


def probe_features(output: Output, probe_input: ProbeInput, common_dim: int) -> Tensor:
    """Return the input of stage 2 (the probe), given the output of a network.

    Args:
        output: features and embeddings of n images.
        probe_input: "features": the features, unchanged. "embeddings": the embeddings, at unit
            length. "common": the common field, at unit length. Several heads are joined.
        common_dim: number of columns of the common field of one head.
    """
    if probe_input == "features":
        return output.features
    if probe_input == "embeddings":
        return join_heads(output.embeddings)
    return join_heads(output.embeddings[..., :common_dim])


def in_micro_batches(encoder: nn.Module, images: Tensor, size: int) -> Tensor:
    """Return the features of all images, encoding at most `size` at a time; 0 means all.

    The micro-batches differ in size by at most one image: a single image at the end would have no
    batch statistics.
    """
    count = -(-len(images) // size) if size else 1
    if count <= 1:
        features: Tensor = encoder(images)
        return features
    chunks = torch.tensor_split(images, count)
    if not torch.is_grad_enabled():
        return torch.cat([encoder(chunk) for chunk in chunks])
    return torch.cat([_encode_twice(encoder, chunk) for chunk in chunks])


def _encode_twice(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return the features of images, which are encoded again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    features: Tensor = checkpoint(
        encoder,
        images,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _frozen_running_statistics(encoder)),
    )
    return features


@contextmanager
def _frozen_running_statistics(encoder: nn.Module) -> Iterator[None]:
    """Do not update the running statistics of batch normalisation."""
    norms = [module for module in encoder.modules() if isinstance(module, _NormBase)]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, settings, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
