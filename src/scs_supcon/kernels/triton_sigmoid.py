"""The sigmoid pair loss on a GPU: value and all gradients in one Triton kernel.

A program holds one block of rows and loops over blocks of columns:

    r = c_i·c_j,   x = ±(t (r − m) − b),   cost = softplus(x),   ζ = ±σ(x)

    loss_i += Σ_j w cost,   ∂t_i += Σ_j w ζ (r − m),   ∂b_i −= Σ_j w ζ,   ∂c_i += Σ_j w ζ c_j

The loss is symmetric, so the blocks of rows alone give the whole gradient, 2t ∂c_i: there is no
backward kernel, no atomic addition, and the result does not depend on the order of programs. It
takes two products per tile, 4 n² d operations, and memory O(n·d). Sums over rows are float64.

This module imports Triton: import it only where it is used.
"""

from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from scs_supcon.kernels.autograd import forbid_double_backward

BLOCK_ROWS, BLOCK_COLUMNS = 64, 64
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
    t, b, margin = tl.load(scalars_ptr), tl.load(scalars_ptr + 1), tl.load(scalars_ptr + 2)
    weight_same, weight = tl.load(scalars_ptr + 3), tl.load(scalars_ptr + 4)
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
        r = tl.where(same, r - margin, r)
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


def triton_sigmoid_loss(  # noqa: PLR0913
    queries: Tensor,
    others: Tensor | None,
    labels: Tensor,
    other_labels: Tensor,
    position: Tensor | None,
    t: Tensor,
    b: Tensor,
    weights: tuple[Tensor, Tensor],
    *,
    include_self: bool = True,
    margin: float = 0.0,
    one_set: bool = True,
    joined: bool = False,
    group: Any = None,
    precision: str = "ieee",
) -> Tensor:
    """Return the weighted sum of the costs of all pairs of queries and references.

    Args:
        queries: `(n, d)`, float32.
        others: `(m, d)` references without gradient; None: the queries themselves.
        labels: `(n,)`.
        other_labels: `(m,)`.
        position: `(n,)` position of each query among the references, −1 or None if there is none.
        t: scalar that multiplies the similarity.
        b: scalar bias.
        weights: of same-class pairs and of other pairs.
        include_self: whether pairs (u, u) count.
        margin: subtracted from the similarities of same-class pairs.
        one_set: whether each pair also occurs in the other order, here or in another process.
        joined: whether the references are the rows of all processes, over which sums are taken.
        group: the processes; default: all.
        precision: of products: "ieee", or "tf32", which is faster.
    """
    settings = (weights, include_self, margin, one_set, joined, group, precision)
    loss: Tensor = _TritonPairs.apply(
        queries, others, labels, other_labels, position, t, b, settings
    )
    return loss


class _TritonPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        others: Tensor | None,
        labels: Tensor,
        other_labels: Tensor,
        position: Tensor | None,
        t: Tensor,
        b: Tensor,
        settings: tuple[Any, ...],
    ) -> Tensor:
        weights, include_self, margin, one_set, joined, group, precision = settings
        queries = queries.contiguous()
        others = queries if others is None else others.contiguous()
        n, d = queries.shape
        if position is None:
            position = torch.arange(n, device=queries.device) if one_set else labels - labels - 1
        scalars = torch.stack(
            [torch.as_tensor(v, device=queries.device).float() for v in (t, b, margin, *weights)]
        )
        grad = torch.empty_like(queries)
        sums = torch.zeros(3, n, dtype=torch.float64, device=queries.device)
        if n:
            _pairs_kernel[(triton.cdiv(n, BLOCK_ROWS),)](
                queries,
                others,
                labels,
                other_labels,
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
        if joined:
            dist.all_reduce(totals, group=group)
        value, by_t, by_b = totals.unbind()
        grad *= (2 if one_set else 1) * t.detach().to(grad)
        ctx.save_for_backward(grad, by_t, by_b)
        ctx.scalars = (t, b)
        return value.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward()
        by_queries, by_t, by_b = ctx.saved_tensors
        t, b = ctx.scalars
        need_queries, *_, need_t, need_b, _ = ctx.needs_input_grad
        return (
            by_queries * grad if need_queries else None,
            *[None] * 4,
            (by_t * grad).to(t) if need_t else None,
            (by_b * grad).to(b) if need_b else None,
            None,
        )
