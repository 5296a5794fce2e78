"""The bias b for which the mean of σ(t r − b) over all pairs is the share of positive pairs."""

import math

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision, reads_are_free, wide
from scs_supcon.kernels.layout import PairLabels, SortedLabels, evenly_spaced, members

EXACT_PAIRS = 1 << 20  # above this number of pairs a sample is used
MANY = 1 << 14  # above this number of pairs a sixteenth of them gives the first guess
SAMPLED_ROWS = 1152
PARTNERS = 4  # positives sampled per row
DEVICE_STEPS = 24  # Newton steps, or bisections, without a look at the result; 5 usually do


@torch.no_grad()
def solve_bias(
    logits: Tensor, positive: float, total: float | None = None, weights: Tensor | None = None
) -> float:
    """Solve mean σ(logits − b) = positive / total for b.

    The share is kept half a pair away from 0 and 1, so that there is a solution even if all pairs
    are positive or all are negative.

    Args:
        logits: t r for each pair, in any shape.
        positive: number of positive pairs.
        total: number of pairs; default: the number of logits.
        weights: weights of the logits in the mean; they sum to 1. Default: equal weights.
    """
    x, total = logits.flatten(), total or logits.numel()
    if not len(x):
        return 0.0
    share = min(max(positive, 0.5), total - 0.5) / total
    # σ(a) = 1 − σ(−a): a share near 1 keeps its digits if solved for the other pairs.
    return _root(x, weights, share) if share <= 0.5 else -_root(-x, weights, 1 - share)


@torch.no_grad()
def solve_bias_on_device(
    logits: Tensor, positive: Tensor, total: Tensor, weights: Tensor | None = None
) -> Tensor:
    """As `solve_bias`, in a fixed number of steps and without reading a number on the host.

    A GPU does not have to wait for the host, and `torch.compile` can trace it.
    """
    x = logits.flatten()
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


def _root(x: Tensor, weights: Tensor | None, share: float) -> float:
    """Return the root of log(mean σ(x − b) / share), by Newton's method in a shrinking bracket.

    For large b the function is linear in b, so a few steps are enough.
    """
    b = math.log((1 - share) / share)
    smallest, largest = (float(end) for end in torch.aminmax(x))
    # At these bounds every σ is at least, or at most, the share.
    low, high = b + smallest, b + largest
    if len(x) > MANY:
        w = None if weights is None else weights[::16] / weights[::16].sum()
        b = _root(x[::16].contiguous(), w, share)
    b = min(max(b, low), high)
    s, weighted = torch.empty_like(x), torch.empty_like(x)  # allocating costs more than a pass
    while high - low > 1e-6:
        torch.sub(x, b, out=s).sigmoid_()
        if weights is None:
            mean, squares = float(s.mean()), float(torch.dot(s, s)) / len(x)
        else:
            mean = float(torch.mul(s, weights, out=weighted).sum())
            squares = float(torch.dot(s, weighted))
        low, high = (b, high) if mean > share else (low, b)
        slope = mean - squares  # the mean of σ(1 − σ); tiny values are rounding errors
        step = math.inf if slope <= 1e-6 * mean else math.log(mean / share) * mean / slope
        if low <= b + step <= high:
            b += step
            if abs(step) <= 2e-5:  # the error is quadratic in the last step
                break
        else:
            b = (low + high) / 2
    return b


@torch.no_grad()
def solve_sorted_bias(
    queries: Tensor,
    references: Tensor | None,
    pairs: PairLabels,
    t: Tensor,
    *,
    include_self: bool = True,
    margin: float = 0.0,
) -> Tensor:
    """Return the solved bias of sorted rows; above 2^20 pairs, from a weighted sample of them.

    The margin is subtracted from the similarities of positive pairs.
    """
    if reads_are_free(queries):
        solved = _solve_on_host(queries, references, pairs, float(t), include_self, margin)
        return torch.tensor(solved, dtype=wide(queries), device=queries.device)
    x, y = _sides(queries, references, pairs)
    total, positive = pairs.count_on_device(include_self)
    t = t.detach().to(x)
    with full_precision(x):
        if len(x) * len(y) > EXACT_PAIRS:
            r, weights = _sample(x, y, pairs, include_self, margin)
            return solve_bias_on_device(r * t, positive, total, weights).to(wide(x))
        logits = torch.mm(x * t, y.T)
        excluding = None
        if margin:
            same = pairs.left.labels[:, None] == pairs.right.labels
            logits = logits - same.to(logits) * (t * margin)
        if pairs.contains_self and not include_self:
            rows = torch.arange(len(x), device=x.device)
            others = torch.ones_like(logits)
            others[rows, _positions(pairs, rows)] = 0
            excluding = (others / total.to(x)).flatten()
        return solve_bias_on_device(logits, positive, total, excluding).to(wide(x))


def solve_bias_of_rows(rows: Tensor, labels: Tensor, t: float) -> float:
    """Return the solved bias of the pairs of two different rows, in any order."""
    order = labels.argsort(stable=True)
    pairs = PairLabels(SortedLabels(labels[order]))
    factor = torch.tensor(t, dtype=wide(rows), device=rows.device)
    return float(solve_sorted_bias(rows[order], None, pairs, factor, include_self=False))


def _sides(queries: Tensor, references: Tensor | None, pairs: PairLabels) -> tuple[Tensor, Tensor]:
    """Return the left and the right side of the pairs of all processes."""
    if references is None:
        return queries, queries
    return (references, references) if pairs.joined else (queries, references)


def _solve_on_host(
    queries: Tensor,
    references: Tensor | None,
    pairs: PairLabels,
    t: float,
    include_self: bool,
    margin: float,
) -> float:
    x, y = _sides(queries, references, pairs)
    total, positive = pairs.count(include_self)
    with full_precision(x):
        if len(x) * len(y) <= EXACT_PAIRS:
            logits = torch.mm(x * t, y.T)
            if margin:
                same = pairs.left.labels[:, None] == pairs.right.labels
                logits.sub_(same.to(logits.dtype), alpha=t * margin)
            if pairs.contains_self and not include_self:
                counted = torch.ones_like(logits, dtype=torch.bool)
                rows = torch.arange(len(x), device=x.device)
                counted[rows, _positions(pairs, rows)] = False
                logits = logits[counted]
            return solve_bias(logits, positive)
        r, weights = _sample(x, y, pairs, include_self, margin)
        return solve_bias(r * t, positive, total, weights)


def _sample(
    x: Tensor, y: Tensor, pairs: PairLabels, include_self: bool, margin: float
) -> tuple[Tensor, Tensor]:
    """Return similarities (minus the margin for positive pairs) and weights of a sample of pairs.

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
    if margin:
        values[sizes[0] :].sub_(margin)
    negative, same, itself = torch.split(weights, sizes)
    negative.view(len(u), len(v)).copy_(rows.labels[u][:, None] != columns.labels[v])
    negative.mul_((total - positive) / negative.sum(dtype=wide(x)).clamp_min(1))
    same.view(len(p), PARTNERS).copy_(count[:, None])
    same.mul_(positive / same.sum(dtype=wide(x)).clamp_min(1))
    itself.fill_(len(rows) / max(self_pairs, 1))
    return values, weights.div_(weights.sum())


def _same_class_sample(pairs: PairLabels) -> tuple[Tensor, Tensor, Tensor]:
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


def _positions(pairs: PairLabels, u: Tensor) -> Tensor:
    """Return the positions of the left rows u among the right rows, which contain them."""
    local = None if pairs.one_set else pairs.right.local
    return u if local is None else local[u]
