"""The sigmoid pair loss on a GPU: value and all gradients in one Triton kernel.

A program holds one block of rows and loops over blocks of columns:

    r = c_i·c_j,   x = ±(t r − b),   cost = softplus(x),   ζ = ±σ(x)

    loss_i += Σ_j w cost,   ∂t_i += Σ_j w ζ r,   ∂b_i −= Σ_j w ζ,   ∂c_i += Σ_j w ζ c_j

The loss is symmetric, so the blocks of rows alone give the whole gradient, 2t ∂c_i: there is no
backward kernel, no atomic addition, and the result does not depend on the order of programs. It
takes two products per tile, 4 n² d operations, and memory O(n·d). Sums over rows are float64.

This module imports Triton: import it only where it is used.
"""

import warnings
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from scs_supcon.kernels.autograd import forbid_double_backward, sum_to
from scs_supcon.kernels.dense import sigmoid_cost
from scs_supcon.kernels.layout import Layout, lay_out
from scs_supcon.kernels.pairs import pair_weights

BLOCK_ROWS, BLOCK_COLUMNS = 64, 64
TOLERANCE = 1e-4  # relative, of `works`
MOST_COLUMNS = 256  # of the embeddings: a block of rows and its gradient stay in registers


@triton.jit  # type: ignore[untyped-decorator]
def _pairs_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    rows_ptr,
    others_ptr,
    labels_ptr,
    other_labels_ptr,
    position_ptr,
    scalars_ptr,
    grad_ptr,
    sums_ptr,
    n,
    m,
    d,
    EXCLUDE_SELF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    t, b = tl.load(scalars_ptr), tl.load(scalars_ptr + 1)
    weight_same, weight = tl.load(scalars_ptr + 2), tl.load(scalars_ptr + 3)
    inside_d = k[None, :] < d
    c_i = tl.load(
        rows_ptr + i[:, None].to(tl.int64) * d + k[None, :],
        mask=(i[:, None] < n) & inside_d,
        other=0.0,
    ).to(tl.float32)
    label_i = tl.load(labels_ptr + i, mask=i < n, other=-1)
    position = tl.load(position_ptr + i, mask=i < n, other=-1)
    grad = tl.zeros((ROWS, WIDTH), tl.float32)
    loss = tl.zeros((ROWS,), tl.float64)
    by_t = tl.zeros((ROWS,), tl.float64)
    by_b = tl.zeros((ROWS,), tl.float64)
    for start in range(0, m, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        c_j = tl.load(
            others_ptr + j[:, None].to(tl.int64) * d + k[None, :],
            mask=(j[:, None] < m) & inside_d,
            other=0.0,
        ).to(tl.float32)
        label_j = tl.load(other_labels_ptr + j, mask=j < m, other=-2)
        same = label_i[:, None] == label_j[None, :]
        r = tl.dot(c_i, tl.trans(c_j), input_precision=PRECISION)
        a = t * r - b
        x = tl.where(same, -a, a)
        e = tl.exp(-tl.abs(x))
        one_e = 1.0 + e
        # log(1 + e) without losing the digits of a small e.
        rest = tl.where(one_e == 1.0, 1.0, one_e - 1.0)
        cost = tl.maximum(x, 0.0) + tl.where(one_e == 1.0, e, tl.log(one_e) * (e / rest))
        sigmoid = tl.where(x > 0, 1.0 / one_e, e / one_e)
        zeta = tl.where(same, -sigmoid, sigmoid)
        w = tl.where(same, weight_same, weight)
        counted = (i[:, None] < n) & (j[None, :] < m)
        if EXCLUDE_SELF:
            counted = counted & (j[None, :] != position[:, None])
        w = tl.where(counted, w, 0.0)
        zeta = zeta * w
        loss += tl.sum(cost * w, 1).to(tl.float64)
        by_t += tl.sum(zeta * r, 1).to(tl.float64)
        by_b -= tl.sum(zeta, 1).to(tl.float64)
        grad += tl.dot(zeta, c_j, input_precision=PRECISION)
    tl.store(
        grad_ptr + i[:, None].to(tl.int64) * d + k[None, :], grad, mask=(i[:, None] < n) & inside_d
    )
    tl.store(sums_ptr + i, loss, mask=i < n)
    tl.store(sums_ptr + n + i, by_t, mask=i < n)
    tl.store(sums_ptr + 2 * n + i, by_b, mask=i < n)


def supported(rows: Tensor, references: Tensor | None) -> bool:
    """Return whether the kernel can compute a batch: float32, not too wide, fixed references."""
    fixed = references is None or not references.requires_grad
    return fixed and rows.dtype == torch.float32 and 0 < rows.shape[1] <= MOST_COLUMNS


@lru_cache
def works(device: torch.device) -> bool:
    """Return whether the kernel agrees with plain torch on a small batch; checked once.

    Compilers and GPUs differ: if the kernel fails, the loss is computed without it.
    """
    generator = torch.Generator().manual_seed(0)
    c = torch.nn.functional.normalize(torch.randn(70, 20, generator=generator)).to(device)
    labels = torch.arange(70, device=device) // 3
    try:
        results = [_small_loss(form, c, labels) for form in ("triton", "plain")]
        errors = [(x - y).abs().max() / y.abs().max() for x, y in zip(*results, strict=True)]
        largest = float(torch.stack(errors).max())
        problem = "" if largest < TOLERANCE else f"is off by {largest:.1e}"
    except Exception as error:  # compilers raise errors of any class
        problem = f"failed ({type(error).__name__}: {error})"
    if problem:
        warnings.warn(
            f"the Triton kernel of the sigmoid loss {problem} on {device}: the loss is computed "
            "without it. SCS_TRITON=0 turns the kernel and this warning off",
            RuntimeWarning,
            stacklevel=2,
        )
    return not problem


def _small_loss(form: str, c: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the loss of sorted rows and its gradients by c, t and b."""
    with torch.inference_mode(False), torch.enable_grad():  # the first loss may have no gradient
        c, labels = c.clone().requires_grad_(), labels.clone()
        t, b = (torch.tensor(x, device=c.device, requires_grad=True) for x in (5.0, 2.0))
        if form == "triton":
            layout = lay_out(labels)
            weights = pair_weights(*layout.count_on_device(), "positives")
            loss = triton_sigmoid(c, None, layout, t, b, weights)
        else:
            same = labels[:, None] == labels
            x = c.double()  # which neither autocast nor TF32 rounds
            loss = sigmoid_cost(t * (x @ x.T) - b, same).sum() / same.sum()
        return loss.detach().to(c.dtype), *torch.autograd.grad(loss, (c, t, b))


def triton_sigmoid(
    queries: Tensor,  # (n, d)
    others: Tensor | None,  # (m, d)
    layout: Layout,
    t: Tensor,  # ()
    b: Tensor,  # ()
    weights: tuple[Tensor, Tensor],  # (), ()
    include_self: bool = True,
    precision: str = "ieee",
) -> Tensor:  # ()
    """Return the weighted sum of the costs of all pairs of queries and references.

    Args:
        queries: `(n, d)`, float32, in the order of the layout.
        others: `(m, d)` references without gradient; None: the queries themselves.
        layout: labels of both sides.
        t: scalar that multiplies the similarity.
        b: scalar bias.
        weights: of same-class pairs and of other pairs.
        include_self: whether pairs (u, u) count.
        precision: of products: "ieee", or "tf32", which is faster.
    """
    loss: Tensor = _TritonPairs.apply(
        queries, others, t, b, layout, weights, include_self, precision
    )
    return loss


class _TritonPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        others: Tensor | None,
        t: Tensor,
        b: Tensor,
        layout: Layout,
        weights: tuple[Tensor, Tensor],
        include_self: bool,
        precision: str,
    ) -> Tensor:
        queries = queries.contiguous()
        others = queries if others is None else others.contiguous()
        n, d = queries.shape
        position = layout.right.local  # of the queries among the references
        if position is None:
            position = torch.arange(n, device=queries.device)
            position = position if layout.symmetric else position * 0 - 1
        scalars = torch.stack(
            [torch.as_tensor(v, device=queries.device).float().view(()) for v in (t, b, *weights)]
        )
        grad = torch.empty_like(queries)
        sums = torch.zeros(3, n, dtype=torch.float64, device=queries.device)
        if n:
            _pairs_kernel[(triton.cdiv(n, BLOCK_ROWS),)](
                queries,
                others,
                layout.rows.labels,
                layout.right.labels,
                position,
                scalars,
                grad,
                sums,
                n,
                len(others),
                d,
                EXCLUDE_SELF=not include_self,
                ROWS=BLOCK_ROWS,
                COLUMNS=BLOCK_COLUMNS,
                WIDTH=max(triton.next_power_of_2(d), 16),
                PRECISION=precision,
            )
        totals = sums.sum(1)
        if layout.joined:
            dist.all_reduce(totals, group=layout.group)
        value, by_t, by_b = totals.unbind()
        grad *= (2 if layout.one_set else 1) * t.detach().to(grad)
        ctx.save_for_backward(grad, by_t, by_b)
        ctx.scalars = (t, b)
        return value.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        by_queries, by_t, by_b = ctx.saved_tensors
        t, b = ctx.scalars
        need_queries, _, need_t, need_b, *_ = ctx.needs_input_grad
        return (
            by_queries * grad if need_queries else None,
            None,
            sum_to(by_t * grad, t) if need_t else None,
            sum_to(by_b * grad, b) if need_b else None,
            *[None] * 4,
        )
