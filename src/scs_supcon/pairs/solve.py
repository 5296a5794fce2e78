"""The bias that makes the judged share of same-class pairs right for a batch."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from scs_supcon.pairs.rows import Rows, same_class_pairs

MOST_ROWS = 1024
COARSE_ROWS = 128
BAND = 256
TOLERANCE = 1e-6


@torch.no_grad()
def solve_bias(
    queries: Tensor,
    rows: Rows,
    t: float,
    *,
    references: Tensor | None = None,
    columns: Rows | None = None,
    include_self: bool = True,
) -> float:
    """Solve mean σ(t r_uv − b) = p for b; p is the share of same-class pairs.

    On more than 1,024 rows an evenly spaced subset of the label-sorted rows speaks for all, p
    included. p is kept half a pair away from 0 and 1, so a batch of one class, or of classes of
    one, has an answer too. References stand apart from the queries; without them the pairs are
    those of the queries among themselves.
    """
    with torch.autocast(queries.device.type, enabled=False):
        q, q_labels = _sample(queries, rows.labels, MOST_ROWS)
        if references is None or columns is None:
            return _solve(lambda k: _square(*_sample(q, q_labels, k), t, include_self), len(q))
        r, r_labels = _sample(references, columns.labels, MOST_ROWS)
        return _solve(
            lambda k: _oblong(_sample(q, q_labels, k), _sample(r, r_labels, k), t),
            max(len(q), len(r)),
        )


@torch.no_grad()
def solve_listed_bias(logits: Tensor, same: Tensor) -> float:
    """The same for listed pairs: logits t r, and which of them are of one class."""
    most = float(logits.abs().max()) if len(logits) else 0.0
    return _root(_Pairs([(logits[None], 1)], len(logits), float(same.sum()), most))


def _solve(pairs: Callable[[int], "_Pairs"], n: int) -> float:
    # A coarse answer from few rows costs nothing and saves passes over all of them.
    start = _root(pairs(COARSE_ROWS)) if n > COARSE_ROWS else None
    return _root(pairs(MOST_ROWS), start)


def _sample(rows: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    n = len(rows)
    if n <= most:
        return rows, labels
    picked = torch.arange(most, device=rows.device) * n // most
    return rows[picked], labels[picked]


class _Pairs:
    """Logits t r in blocks, each with how often it counts, and the share of same-class pairs."""

    def __init__(
        self, blocks: list[tuple[Tensor, int]], total: int, positive: float, most: float
    ) -> None:
        self.blocks, self.total = blocks, total
        self.share = min(max(positive, 0.5), total - 0.5) / total if total else 0.5
        self.most = most  # no |t r| is above this
        if total:
            self.scratch = blocks[0][0].new_empty(2, max(x.numel() for x, _ in blocks))

    def excess(self, b: float) -> tuple[float, float, float]:
        """(mean σ − share, and its first and second derivative by b)."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.scratch.device)
        for x, times in self.blocks:
            s, squared = self.scratch[:, : x.numel()]
            torch.sub(x, b, out=s.view_as(x)).sigmoid_()
            torch.mul(s, s, out=squared)
            sums[0].add_(s.view_as(x).sum(1).sum(dtype=torch.float64), alpha=times)
            sums[1].add_(torch.dot(s, s), alpha=times)
            sums[2].add_(torch.dot(s, squared), alpha=times)
        one, two, three = (sums / self.total).tolist()
        # Means of σ, of −σ(1 − σ) and of σ(1 − σ)(1 − 2σ).
        return one - self.share, two - one, one - 3 * two + 2 * three


def _square(rows: Tensor, labels: Tensor, t: float, include_self: bool) -> _Pairs:
    """Pairs of rows among themselves: the upper triangle, in bands."""
    n = len(rows)
    blocks: list[tuple[Tensor, int]] = []
    for i in range(0, n, BAND):
        head = rows[i : i + BAND] * t
        square = torch.mm(head, rows[i : i + BAND].T)
        if not include_self:
            square.fill_diagonal_(-math.inf)  # σ(−inf) = 0: not counted
        blocks.append((square, 1))
        if i + BAND < n:
            blocks.append((torch.mm(head, rows[i + BAND :].T), 2))
    own = 0 if include_self else n
    return _Pairs(
        blocks, n * n - own, same_class_pairs(Rows(labels)) - own, abs(t) * _longest(rows) ** 2
    )


def _oblong(q: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor], t: float) -> _Pairs:
    logits = torch.mm(q[0] * t, r[0].T)
    positive = same_class_pairs(Rows(q[1]), Rows(r[1]))
    return _Pairs([(logits, 1)], logits.numel(), positive, abs(t) * _longest(q[0]) * _longest(r[0]))


def _longest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).max()) if len(x) else 0.0


def _root(pairs: _Pairs, start: float | None = None) -> float:
    """Newton's method with Halley's correction, kept inside a shrinking bracket."""
    if not pairs.total:
        return 0.0
    odds = math.log((1 - pairs.share) / pairs.share)
    # Where σ is 0 or 1 for all pairs, the slope is nothing but rounding.
    rounding = 1e-12 if pairs.scratch.dtype == torch.float64 else 1e-5
    # At the ends of the bracket every σ is at least, or at most, the share.
    low, high = odds - pairs.most, odds + pairs.most
    b = odds if start is None else min(max(start, low), high)
    while high - low > TOLERANCE:
        f, slope, curve = pairs.excess(b)
        low, high = (b, high) if f > 0 else (low, b)
        below = 2 * slope * slope - f * curve
        steep = -slope > rounding * pairs.share and below > 0
        step = 2 * f * slope / below if steep else math.inf
        if not low <= b - step <= high:
            b = (low + high) / 2
            continue
        b -= step
        if abs(step) <= 1e-3:  # cubic convergence: what is left is about 1e-9
            break
    return b
