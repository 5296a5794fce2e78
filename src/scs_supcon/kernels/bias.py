"""The bias b for which the mean of σ(t r − b) over all pairs is the share of positive pairs.

There b minimises the sigmoid loss: its derivative by b is the difference of the two. A small error
of b therefore changes the loss by its square only.
"""

import math

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, reads_are_free, wide
from scs_supcon.kernels.layout import Layout, evenly_spaced, lay_out, members
from scs_supcon.kernels.pairs import Pairs

EXACT_PAIRS = 1 << 20  # above this number of pairs a sample is used
MANY = 1 << 14  # above this number of pairs a sixteenth of them gives the first guess
SAMPLED_ROWS = 1152
PARTNERS = 4  # positives sampled per row
LAST_STEP = 1e-3  # the error after it is cubic in the step
FAR = 2.0  # longer steps need bounds of b
MOST_STEPS = 100  # a few usually do; those below the rounding of huge logits lead nowhere
DEVICE_STEPS = 24  # Newton steps, or bisections, without a look at the result; 5 usually do


@torch.no_grad()
def solve_bias(
    logits: Tensor,  # (...)
    positive: float,
    total: float | None = None,
    weights: Tensor | None = None,  # (...), as the logits
    start: float | None = None,
) -> float:
    """Solve mean σ(logits − b) = positive / total for b.

    The share is kept half a pair away from 0 and 1, so that there is a solution even if all pairs
    are positive or all are negative.

    Args:
        logits: t r for each pair, in any shape.
        positive: number of positive pairs.
        total: number of pairs; default: the number of logits.
        weights: weights of the logits in the mean; they sum to 1. Default: equal weights.
        start: a guess, which saves steps but does not change the result.
    """
    x, total = logits.reshape(-1), logits.numel() if total is None else total
    if not len(x) or not total:
        return 0.0
    weights = None if weights is None else weights.reshape(-1)
    share = min(max(positive, 0.5), total - 0.5) / total
    if share <= 0.5:
        return _root(x, weights, share, start)
    # σ(a) = 1 − σ(−a): a share near 1 keeps its digits if solved for the other pairs.
    return -_root(-x, weights, 1 - share, None if start is None else -start)


def _root(x: Tensor, weights: Tensor | None, share: float, start: float | None) -> float:
    """Return the root of f(b) = log(mean σ(x − b) / share), by Halley's method in a bracket.

    For large b the function is linear in b, so a few steps are enough. With the means m_k of σᵏ:

        f' = −(m_1 − m_2) / m_1,   f'' = (m_1 − 3 m_2 + 2 m_3) / m_1 − f'²
    """
    logit = math.log((1 - share) / share)
    if start is not None and math.isfinite(start):  # a batch of NaN leaves a NaN
        b = start
    elif len(x) > MANY and (weights is None or bool(weights[::16].any())):
        w = None if weights is None else weights[::16] / weights[::16].sum()
        b = _root(x[::16].contiguous(), w, share, None)
    else:
        b = logit + float(x.mean() if weights is None else torch.dot(x, weights))
    low, high = -math.inf, math.inf
    s, buffer = torch.empty_like(x), torch.empty_like(x)  # allocating costs more than a pass
    number = len(x) if weights is None else 1
    for _ in range(MOST_STEPS):
        if not high - low > 1e-6:  # also NaN
            break
        torch.sub(x, b, out=s).sigmoid_()
        weighted = s if weights is None else torch.mul(s, weights, out=buffer)
        m1, m2 = weighted.sum().item() / number, torch.dot(s, weighted).item() / number
        low, high = (b, high) if m1 > share else (low, b)
        step = math.inf
        if m1 - m2 > 1e-6 * m1:  # the mean of σ(1 − σ); tiny values are rounding errors
            step = math.log(m1 / share) * m1 / (m1 - m2)
            if abs(step) <= LAST_STEP**2:  # Newton's step is good enough
                return b + step
            slope = (m2 - m1) / m1
            squares = torch.mul(s, s, out=buffer if weights is None else s)
            m3 = torch.dot(squares, weighted).item() / number
            curvature = (m1 - 3 * m2 + 2 * m3) / m1 - slope * slope
            step /= min(max(1 + step * curvature / (2 * slope), 0.5), 2.0)
        if abs(step) > FAR and math.isinf(high - low):
            # At these bounds every σ is at least, or at most, the share.
            smallest, largest = (float(end) for end in torch.aminmax(x))
            low, high = max(low, logit + smallest), min(high, logit + largest)
        if low <= b + step <= high:
            b += step
            if abs(step) <= LAST_STEP:
                return b
        else:
            b = (low + high) / 2
    return b


@torch.no_grad()
def solve_bias_on_device(
    logits: Tensor,  # (...)
    positive: Tensor,  # ()
    total: Tensor,  # ()
    weights: Tensor | None = None,  # (...), as the logits
) -> Tensor:  # ()
    """As `solve_bias`, in a fixed number of steps and without reading a number on the host.

    A GPU does not have to wait for the host, and `torch.compile` can trace it.
    """
    x = logits.flatten()
    weights = None if weights is None else weights.flatten()
    if not len(x):
        return x.new_zeros(())
    number = total.to(wide(x))
    share = positive.to(number).clamp_min(0.5).minimum(number - 0.5) / number.clamp_min(1)
    sign = torch.where(share > 0.5, -1.0, 1.0).to(x)
    share = torch.where(share > 0.5, 1 - share, share).to(x)
    x = x * sign
    b = torch.log((1 - share) / share)
    low, high = b + x.min(), b + x.max()
    b = b.maximum(low).minimum(high)
    for _ in range(DEVICE_STEPS):
        s = torch.sigmoid(x - b)
        weighted = s / len(x) if weights is None else s * weights
        mean, squares = weighted.sum(), torch.dot(s, weighted)
        low, high = torch.where(mean > share, b, low), torch.where(mean > share, high, b)
        slope = mean - squares
        step = torch.where(slope > 1e-6 * mean, torch.log(mean / share) * mean / slope, torch.inf)
        inside = (b + step >= low) & (b + step <= high)
        b = torch.where(inside, b + step, (low + high) / 2)
    return torch.where(number > 0, b * sign, 0)


def solve(
    logits: Tensor,  # (...)
    positive: float | Tensor,  # ()
    total: float | Tensor,  # ()
    weights: Tensor | None = None,  # (...), as the logits
    start: Tensor | None = None,  # ()
) -> Tensor:  # ()
    """Return `solve_bias`, computed where the logits are."""
    exact = wide(logits)
    if reads_are_free(logits):
        guess = None if start is None else float(start)
        b = solve_bias(logits, float(positive), float(total), weights, guess)
        return torch.tensor(b, dtype=exact, device=logits.device)
    positive, total = (torch.as_tensor(x, device=logits.device) for x in (positive, total))
    return solve_bias_on_device(logits, positive, total, weights).to(exact)


@torch.no_grad()
def solve_sorted_bias(
    queries: Tensor,  # (n, d)
    references: Tensor | None,  # (m, d)
    layout: Layout,
    t: Tensor,  # ()
    *,
    include_self: bool = True,
    start: Tensor | None = None,  # ()
) -> Tensor:  # ()
    """Return the solved bias of sorted rows; above 2^20 pairs, from a weighted sample of them."""
    x = queries if references is None or not layout.joined else references
    y = queries if references is None else references
    free = reads_are_free(x)
    total, positive = (layout.count if free else layout.count_on_device)(include_self)
    with full_precision(x):
        if len(x) * len(y) > EXACT_PAIRS:
            r, weights = _sample(x, y, layout, include_self)
            return solve(r * t.to(r), positive, total, weights, start)
        logits, excluding = torch.mm(x * t.to(x), y.T), None
        if layout.contains_self and not include_self:
            rows = torch.arange(len(x), device=x.device)
            excluding = torch.ones_like(logits)
            excluding[rows, _positions(layout, rows)] = 0
            excluding /= max(logits.numel() - len(rows), 1)
        return solve(logits, positive, total, excluding, start)


@torch.no_grad()
def solve_banded_bias(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    pairs: Pairs,
    t: Tensor,  # ()
    start: Tensor | None = None,  # ()
) -> Tensor:  # ()
    """Return the solved bias of rows x and references y; above 2^20 pairs, of every k-th row."""
    rows = slice(None, None, -(-len(x) * len(y) // EXACT_PAIRS) or 1)
    logits = x[rows] * t.to(x) @ y.T
    q, w = pairs.targets(rows)
    if w is None:
        return solve(logits, q.sum(dtype=wide(q)), q.numel(), None, start)
    w = w.to(wide(w))
    total = w.sum()
    safe = torch.where(total > 0, total, 1)
    # Half a pair of mean weight stands for the pair that keeps the share away from 0 and 1.
    number = (w > 0).sum()
    positive = (w * q).sum() / safe * number
    return solve(logits, positive, number, (w / safe).to(logits.dtype), start)


def solve_bias_of_rows(
    rows: Tensor,  # (n, d)
    labels: Tensor,  # (n,)
    t: float,
) -> float:
    """Return the solved bias of the pairs of two different rows, in any order."""
    layout = lay_out(labels)
    queries, _ = layout.arrange(rows, None)
    factor = torch.tensor(t, dtype=wide(rows), device=rows.device)
    return float(solve_sorted_bias(queries, None, layout, factor, include_self=False))


def _sample(x: Tensor, y: Tensor, pairs: Layout, include_self: bool) -> tuple[Tensor, Tensor]:
    """Return similarities and weights of a sample of pairs.

    Negative pairs, positive pairs of two rows, and pairs (u, u) are sampled separately and
    weighted by their exact numbers: an even sample of rows has too few pairs of small classes and
    too many pairs (u, u).
    """
    rows, columns = pairs.left, pairs.right
    total, positive = pairs.count_on_device(include_self=False)
    if pairs.one_set:
        sampled = evenly_spaced(len(rows), SAMPLED_ROWS, x.device)
        u = sampled[::3]
        k = torch.arange(len(sampled) - len(u), device=x.device)
        v = sampled[k + k // 2 + 1]  # the others
    else:
        u = evenly_spaced(len(rows), SAMPLED_ROWS // 3, x.device)
        v = evenly_spaced(len(columns), SAMPLED_ROWS * 2 // 3, x.device)
    p, q, count = _same_class_sample(pairs)
    self_pairs = len(p) if include_self and pairs.contains_self else 0
    sizes = [len(u) * len(v), q.numel(), self_pairs]
    # One block of memory: allocating and copying would cost as much as the product.
    values, weights = x.new_empty(2, sum(sizes)).unbind()
    negative, same, itself = torch.split(values, sizes)
    torch.mm(x[u], y[v].T, out=negative.view(len(u), len(v)))
    torch.bmm(x[p, None], y[q].mT, out=same.view(len(p), 1, PARTNERS))
    torch.sum(x[p[:self_pairs]].square(), 1, out=itself)
    negative, same, itself = torch.split(weights, sizes)
    negative.view(len(u), len(v)).copy_(rows.labels[u][:, None] != columns.labels[v])
    negative.mul_((total - positive) / negative.sum(dtype=wide(x)).clamp_min(1))
    same.view(len(p), PARTNERS).copy_(count[:, None])
    same.mul_(positive / same.sum(dtype=wide(x)).clamp_min(1))
    itself.fill_(len(rows) / max(self_pairs, 1))
    return values, weights.div_(weights.sum())


def _same_class_sample(pairs: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows `(k,)`, p positives of each row `(k, p)`, and numbers of positives `(k,)`."""
    rows, columns = pairs.left, pairs.right
    u = evenly_spaced(len(rows), SAMPLED_ROWS * 2 // 3, rows.labels.device)
    itself = int(pairs.contains_self)
    count = members(rows.labels[u], columns) - itself
    if reads_are_free(u):
        u, count = u[count > 0], count[count > 0]
    first = torch.searchsorted(columns.labels, rows.labels[u])[:, None]
    start = _positions(pairs, u)[:, None] - first + 1 if itself else u[:, None]
    steps = torch.arange(PARTNERS, device=u.device) * count[:, None] // PARTNERS
    partners = first + (start + steps) % (count[:, None] + itself).clamp_min(1)
    return u, partners.clamp_max(len(columns) - 1), count


def _positions(pairs: Layout, u: Tensor) -> Tensor:
    """Return the positions of the left rows u among the right rows, which contain them."""
    local = None if pairs.one_set else pairs.right.local
    return u if local is None else local[u]
