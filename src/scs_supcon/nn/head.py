"""The projection head, and the common and style fields of its embeddings."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.kernels.autograd import traced, wide
from scs_supcon.nn.erase import ROWS, ErasedLinear, fit_erased

Normalise = Literal["separate", "joint", "none"]


class Projection(nn.Module):
    """The projection head of every contrastive method: Linear → ReLU → Linear, optionally centred.

    With `erased_dim`, the last columns (the style field) are a linear function of the features
    without the class (`nn.erase`):

        [layers(h) | style(h⊥)]

    Args:
        width: number of columns of the features.
        dim: number of columns of the embeddings (common + style).
        hidden: width of the hidden layer; 0 means the width of the features.
        centre: standardise every column over the batch (no learnable scale or shift), so that
            similarities start around 0 rather than all close to 1.
        erased_dim: number of columns that are projected from features without the class; 0: none.
    """

    def __init__(
        self,
        width: int,
        dim: int = 256,
        hidden: int = 0,
        centre: bool = False,
        erased_dim: int = 0,
    ) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, dim - erased_dim)
        )
        self.style = ErasedLinear(width, erased_dim) if erased_dim else None
        self.centre = Centre(dim) if centre else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        embeddings: Tensor = self.layers(features)
        if self.style is not None:
            embeddings = torch.cat([embeddings, self.style(features)], 1)
        centred: Tensor = self.centre(embeddings)
        return centred


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


def remove_erased_style(module: nn.Module) -> None:
    """Remove the style field of each `Projection` in a module that erases the class from it.

    It has weights of its own, so that the common field is not changed, and training is quicker.
    """
    for projection in module.modules():
        if not isinstance(projection, Projection) or projection.style is None:
            continue
        projection.style = None
        if isinstance(projection.centre, Centre):
            last = projection.layers[-1]
            assert isinstance(last, nn.Linear)
            projection.centre.mean = projection.centre.mean[: last.out_features].clone()
            projection.centre.var = projection.centre.var[: last.out_features].clone()


@torch.no_grad()
def fit_style(module: nn.Module, features: Tensor, labels: Tensor, classes: int) -> int:
    """Fit the style field of each trained `Projection` in a module to the final features.

    Its columns are the principal directions of the features without the class, with a scale that
    is the variance of the direction (`fit_erased`). The first directions differ most between
    images, least between views of an image, and tell least about the class, which the erasure
    removes from the means but not from the variances. The later ones count less, but explain what
    the first ones leave.

    Args:
        module: such as a projection head.
        features: `(n, views, width)` of the training images, the evaluation view first.
        labels: `(n,)` class of each image.
        classes: number of classes.

    Returns:
        The number of erased directions.
    """
    erased = fit_erased(module, features.cpu(), labels, classes, by_variance=True)
    for projection in module.modules():
        if not isinstance(projection, Projection) or projection.style is None:
            continue
        if isinstance(projection.centre, Centre) and len(features):
            like = projection.centre.mean
            parts = torch.split(features.flatten(0, 1), ROWS)  # of many images
            rows = torch.cat([projection.style(part.to(like)).double() for part in parts])
            columns = slice(len(like) - rows.shape[1], None)
            projection.centre.mean[columns] = rows.mean(0).to(like)
            # One variance for all columns, so that they keep their scale.
            projection.centre.var[columns] = rows.var(0, correction=0).max().to(like)
    return erased


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
    def forward(ctx: Any, x: Tensor, common_dim: int) -> tuple[Tensor, Tensor]:
        common, common_length = to_unit(x[:, :common_dim])
        style, style_length = to_unit(x[:, common_dim:])
        ctx.save_for_backward(x, common, common_length, style, style_length)
        return common, style

    @staticmethod
    def backward(ctx: Any, grad_common: Tensor, grad_style: Tensor) -> tuple[Tensor, None]:
        x, common, common_length, style, style_length = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            k = common.shape[1]
            fields = (grad_common, x[:, :k]), (grad_style, x[:, k:])
            return torch.cat([_differentiable_gradient(g, part) for g, part in fields], 1), None
        return torch.cat(
            [
                unit_gradient(grad_common, common, common_length),
                unit_gradient(grad_style, style, style_length),
            ],
            1,
        ), None


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
