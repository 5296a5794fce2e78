"""The projection head, and the common and style fields of its embeddings."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.kernels.autograd import traced, wide

Normalise = Literal["separate", "joint", "none"]


class Projection(nn.Module):
    """The projection head of every contrastive method: Linear → ReLU → Linear, optionally centred.

    With `fitted_dim`, the last columns (the style field) are a linear map of the features, which is
    not trained but fitted after training (`nn.style`):

        [layers(h) | style(h)]

    Args:
        width: number of columns of the features.
        dim: number of columns of the embeddings (common + style).
        hidden: width of the hidden layer; 0 means the width of the features.
        centre: standardise every trained column over the batch (no learnable scale or shift), so
            that similarities start around 0 rather than all close to 1.
        fitted_dim: number of columns that are fitted; 0: none.
    """

    def __init__(
        self,
        width: int,
        dim: int = 256,
        hidden: int = 0,
        centre: bool = False,
        fitted_dim: int = 0,
    ) -> None:
        super().__init__()
        hidden = hidden or width
        trained_dim = dim - fitted_dim
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, trained_dim)
        )
        self.style = nn.Linear(width, fitted_dim).requires_grad_(False) if fitted_dim else None
        self.centre = Centre(trained_dim) if centre else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        embeddings: Tensor = self.centre(self.layers(features))
        if self.style is None:
            return embeddings
        return torch.cat([embeddings, self.style(features)], 1)


class ProjectionHeads(nn.Module):
    """Several projection heads side by side: features (n, F) -> embeddings (n, heads, D).

    Heads that differ only in their initial weights differ in their errors. Their fields, joined to
    one unit vector (`join_heads`), classify better than those of a single head.

    The encoder gets the mean of the gradients of the heads, so that its learning rate does not
    depend on their number.
    """

    def __init__(self, heads: Iterable[Projection]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: Tensor) -> Tensor:
        scaled = torch.lerp(features.detach(), features, 1 / len(self.heads))  # same values
        return torch.stack([head(scaled) for head in self.heads], 1)


class Centre(nn.Module):
    """Batch normalisation without scale and shift, with statistics over all processes.

    `nn.SyncBatchNorm` does not support CPUs, and `nn.BatchNorm1d` does not synchronise.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, dim: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.mean) * torch.rsqrt(self.var + self.eps)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = _joined_sum(x.new_tensor(float(len(x))))
        if not count:
            return x
        mean = _joined_sum(x.sum(0)) / count
        var = _joined_sum((x - mean).square().sum(0)) / count
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp_min(1)
            self.mean.lerp_(mean.to(self.mean), self.momentum)
            self.var.lerp_(unbiased.to(self.var), self.momentum)
        return (x - mean) * torch.rsqrt(var + self.eps)


def join_heads(field: Tensor) -> Tensor:
    """Return one unit vector for each row of a field: (n, D), or (n, heads, D) of several heads.

    The fields of H heads are joined to [c_1 … c_H]/√H, so that the similarity of two images is the
    mean of their similarities in the H heads.
    """
    if field.ndim == 2:
        return unit(field)
    n, heads, width = field.shape
    return unit(field.reshape(n * heads, width)).view(n, heads * width) / math.sqrt(heads)


def split(embeddings: Tensor, common_dim: int, overlap: int = 0) -> tuple[Tensor, Tensor]:
    """Split embeddings into (common, style); the last `overlap` common columns are also style."""
    if not overlap:  # one gradient for both fields instead of two padded with zeros
        common, style = torch.split(embeddings, [common_dim, embeddings.shape[1] - common_dim], 1)
        return common, style
    return embeddings[:, :common_dim], embeddings[:, common_dim - overlap :]


def fields(
    embeddings: Tensor, common_dim: int, overlap: int = 0, normalise: Normalise = "separate"
) -> tuple[Tensor, Tensor]:
    """Return the common and the style field, normalised separately, jointly or not at all."""
    if normalise == "separate" and not overlap and not traced(embeddings):
        both: tuple[Tensor, Tensor] = _UnitFields.apply(embeddings, common_dim)
        return both
    if normalise == "joint":
        embeddings = unit(embeddings)
    common, style = split(embeddings, common_dim, overlap)
    if normalise == "separate":
        return unit(common), unit(style)
    return common, style


def common_field(embeddings: Tensor, common_dim: int, normalise: Normalise = "separate") -> Tensor:
    """Return the common field alone."""
    if normalise == "separate" and not traced(embeddings):
        common: Tensor = _UnitFields.apply(embeddings, common_dim, False)
        return common
    if normalise == "joint":
        return unit(embeddings)[:, :common_dim]
    return (
        unit(embeddings[:, :common_dim]) if normalise == "separate" else embeddings[:, :common_dim]
    )


def unit(x: Tensor) -> Tensor:
    """Return rows divided by their length. A zero row stays zero and gets a zero gradient."""
    if traced(x):
        return _plain_unit(x)[0]
    result: Tensor = _Unit.apply(x)
    return result


def _plain_unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit rows and lengths by operations that can be traced and differentiated twice."""
    square = x.square().sum(1, keepdim=True)
    short = square <= torch.finfo(x.dtype).tiny
    length = torch.where(short, torch.inf, torch.where(short, 1, square).sqrt())
    return x / length, length


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, length = to_unit(x)
        ctx.save_for_backward(x, y, length)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y, length = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return _differentiable_gradient(grad, x)
        return unit_gradient(grad, y, length)


class _UnitFields(torch.autograd.Function):
    """Split and `unit` in one step, which saves a tenth of the time of a small batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, common_dim: int, style: bool = True
    ) -> Tensor | tuple[Tensor, Tensor]:
        common, length = to_unit(x[:, :common_dim])
        if not style:
            ctx.save_for_backward(x, common, length)
            return common
        other, other_length = to_unit(x[:, common_dim:])
        ctx.save_for_backward(x, common, length, other, other_length)
        return common, other

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, *saved = ctx.saved_tensors
        k = saved[0].shape[1]
        parts = (x[:, :k], x[:, k:]) if len(grads) == 2 else (x[:, :k],)
        if torch.is_grad_enabled():  # create_graph=True
            gradients = [_differentiable_gradient(g, p) for g, p in zip(grads, parts, strict=True)]
        else:
            fields = zip(grads, saved[::2], saved[1::2], strict=True)
            gradients = [unit_gradient(*field) for field in fields]
        if len(grads) == 1:
            gradients.append(torch.zeros_like(x[:, k:]))
        return torch.cat(gradients, 1), None, None


def _differentiable_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of `unit` as a function of x, for second derivatives."""
    y, length = _plain_unit(x)
    return (grad - y * (grad * y).sum(1, keepdim=True)) / length


def to_unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit rows and the original lengths, for gradients written by hand.

    Unlike `F.normalize` this has no epsilon, which leads to gradients of 1e12 at a zero row.
    """
    length = _lengths(x)
    # A row too short for a finite gradient, or whose length overflows, counts as zero.
    length = torch.threshold_(length, 2 * torch.finfo(x.dtype).tiny, torch.inf).to(x.dtype)
    return x / length, length


def unit_gradient(grad: Tensor, y: Tensor, length: Tensor) -> Tensor:
    """Return the gradient of the original rows, given the gradient of the unit rows y."""
    along = (grad * y).sum(1, keepdim=True)
    return torch.addcmul(grad, y, along, value=-1).div_(length)


def _lengths(x: Tensor) -> Tensor:
    """Return the lengths of the rows, avoiding overflow and underflow of the squares."""
    if x.dtype != wide(x) or not x.shape[1]:
        norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=wide(x))
        return norm
    largest = x.abs().amax(1, keepdim=True)
    largest = largest.masked_fill(largest == 0, 1)
    norm = torch.linalg.vector_norm(x / largest, dim=1, keepdim=True) * largest
    return norm


class _JoinedSum(torch.autograd.Function):
    """Sum over processes; its gradient is the sum of the gradients of all processes."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def _joined_sum(x: Tensor) -> Tensor:
    if not (dist.is_available() and dist.is_initialized()):
        return x
    result: Tensor = _JoinedSum.apply(x)
    return result
