"""The network: an encoder and a projection head, and the input of stage 2 (the probe).

A large batch can be encoded in little memory, in micro-batches. A first pass stores only the
features. Each micro-batch is then encoded again, with the same random numbers, and its gradient is
computed immediately. This needs the memory of one micro-batch and a second forward pass. The loss
is computed on all pairs, so the gradient is that of the whole batch.

This is exact if the features of an image do not depend on other images. Batch normalisation uses
the statistics of each micro-batch instead of the whole batch; only the first pass updates the
running statistics.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from scs_supcon.errors import UserError
from scs_supcon.nn.head import join_heads

ProbeInput = Literal["features", "embeddings", "common"]
Encode = Callable[[Tensor], Tensor]


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


def in_micro_batches(encoder: Encode, images: Tensor, size: int) -> Tensor:
    """Return the features of all images, encoding at most `size` at a time; 0 means all.

    Each micro-batch is encoded again in the backward pass.
    """
    chunks = _split(images, size)
    if len(chunks) == 1:
        return encoder(images)
    if not torch.is_grad_enabled():
        return torch.cat([encoder(chunk) for chunk in chunks])
    return torch.cat([_encode_twice(encoder, chunk) for chunk in chunks])


def large_batch_step(
    encode: Encode,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],  # (N, ...), (N,)
    micro_batch: int,
    *,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Tensor:
    """Compute the gradient of the loss of a batch that is too large to be encoded at once.

    It replaces `loss(encode(inputs), labels).backward()`, and adds the same gradients to all
    parameters. Call it under `torch.autocast` if the encoder is to use it. The gradients of a
    DistributedDataParallel module are reduced once, with the last micro-batch.

    Args:
        encode: the encoder with its projection head: inputs -> embeddings `(n, D)`. Its output for
            an input must not depend on the other inputs, except for batch statistics.
        loss: embeddings `(N, D)` and labels -> scalar.
        batch: inputs and labels.
        micro_batch: number of inputs that are encoded at a time.
        backward: how the gradient of the loss is computed, for example
            `lambda value: scaler.scale(value).backward()`.

    Returns:
        The value of the loss.
    """
    if micro_batch < 1:
        raise UserError(f"micro_batch must be at least 1, got {micro_batch}")
    inputs, labels = batch
    chunks = _split(inputs, micro_batch)
    states = []
    with torch.no_grad():
        parts = []
        for chunk in chunks:
            states.append(_random_state(chunk))
            parts.append(encode(chunk))
    embeddings = torch.cat(parts).detach().requires_grad_()
    value = loss(embeddings, labels)
    backward(value)
    assert embeddings.grad is not None
    grads = torch.split(embeddings.grad, [len(chunk) for chunk in chunks])
    for k, grad in enumerate(grads):
        wait = getattr(encode, "no_sync", nullcontext) if k + 1 < len(chunks) else nullcontext
        with wait(), _frozen_running_statistics(encode), _with_random_state(*states[k]):
            torch.autograd.backward(encode(chunks[k]), grad)
    return value.detach()


def _split(images: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return micro-batches that differ in size by at most one image.

    A single image at the end would have no batch statistics.
    """
    return torch.tensor_split(images, max(-(-len(images) // size), 1) if size else 1)


def _encode_twice(encoder: Encode, images: Tensor) -> Tensor:
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
def _frozen_running_statistics(encoder: Encode) -> Iterator[None]:
    """Do not update the running statistics of batch normalisation."""
    modules = encoder.modules() if isinstance(encoder, nn.Module) else ()
    norms = [module for module in modules if isinstance(module, _NormBase)]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, settings, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked


def _random_state(x: Tensor) -> tuple[Tensor, list[int], list[Tensor]]:
    """Return the state of the random numbers on the CPU and on the device of x."""
    from torch.utils.checkpoint import get_device_states

    return torch.get_rng_state(), *get_device_states(x)


@contextmanager
def _with_random_state(cpu: Tensor, devices: list[int], states: list[Tensor]) -> Iterator[None]:
    from torch.utils.checkpoint import set_device_states

    with torch.random.fork_rng(devices):
        torch.set_rng_state(cpu)
        set_device_states(devices, states)
        yield
