"""The bias that makes the judged share of same-class pairs right for a batch."""

import math

import torch
from torch import Tensor

from scs_supcon.autograd import full_precision
from scs_supcon.pairs.rows import TILE, Rows, same_class_pairs

MOST_ROWS = 1024
BANDS = 4
FEW = 1 << 14  # so few pairs need no first guess from a sample of theirs
THIN = 8  # the sample: every 8th row of the pairs, or of a band that stands for them
TOLERANCE = 1e-6

Pieces = list[tuple[Tensor, int]]
"""Logits t r, and how often each piece of them counts."""


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
    with full_precision(queries):
        q, some = _sample(queries, rows)
        if references is None or columns is None:
            if len(some) <= TILE:
                return solve_square_bias(torch.mm(q * t, q.T), same_class_pairs(some), include_self)
            return _solve_triangle(q, some, t, include_self)
        r, others = _sample(references, columns)
        logits = torch.mm(q * t, r.T)
        positive = same_class_pairs(some, others)
        return _solve([(logits, 1)], logits[::THIN], _range(logits), positive)


@torch.no_grad()
def solve_square_bias(logits: Tensor, positive: int, include_self: bool = True) -> float:
    """The same for a few rows among themselves: logits t r, and how many pairs are of one class."""
    bounds = _range(logits)
    if not include_self:
        logits = _without_self(logits.clone())
    own = 0 if include_self else len(logits)
    return _solve([(logits, 1)], logits[::THIN], bounds, positive, own)


@torch.no_grad()
def solve_listed_bias(logits: Tensor, same: Tensor) -> float:
    """The same for listed pairs: logits t r, and which of them are of one class."""
    return _solve([(logits, 1)], logits[::THIN], _range(logits), int(same.sum()))


def _sample(x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
    n = len(rows)
    if n <= MOST_ROWS:
        return x, rows
    picked = torch.arange(MOST_ROWS, device=x.device) * n // MOST_ROWS
    return x[picked], Rows(rows.labels[picked])


def _solve_triangle(x: Tensor, rows: Rows, t: float, include_self: bool) -> float:
    """Many rows among themselves, each pair of two rows once: the upper triangle, in bands."""
    # Every fourth row, then every fourth from the second on, …: a band stands for all rows.
    x = torch.cat([x[k::BANDS] for k in range(BANDS)])
    n = len(x)
    band = -(-n // BANDS)
    blocks: Pieces = []
    for i in range(0, n, band):
        head = x[i : i + band] * t
        blocks.append((torch.mm(head, x[i : i + band].T), 1))
        if i + band < n:
            blocks.append((torch.mm(head, x[i + band :].T), 2))
    bounds = _range(*(block for block, _ in blocks))
    if not include_self:
        for square, _ in blocks[::2]:
            _without_self(square)
    sample = torch.cat([block[::THIN] for block, _ in blocks[:2]], 1)
    own = 0 if include_self else n
    return _solve(blocks, sample, bounds, same_class_pairs(rows), own)


def _without_self(square: Tensor) -> Tensor:
    return square.fill_diagonal_(-math.inf)  # σ(−inf) = 0: not counted


def _range(*parts: Tensor) -> tuple[float, float]:
    """(least, most) of all numbers."""
    ends = [torch.aminmax(part) for part in parts if part.numel()]
    least, most = [float(end.min) for end in ends], [float(end.max) for end in ends]
    return min(least, default=0.0), max(most, default=0.0)


def _solve(
    pieces: Pieces, sample: Tensor, bounds: tuple[float, float], positive: int, own: int = 0
) -> float:
    """Solve for pairs of which `positive` are of one class and `own` are left out."""
    pairs = sum(x.numel() * times for x, times in pieces)
    total = pairs - own
    if not total:
        return 0.0
    share = min(max(positive - own, 0.5), total - 0.5) / total
    odds = math.log((1 - share) / share)
    # At the ends of the bracket every σ is at least, or at most, the share.
    bracket = odds + bounds[0], odds + bounds[1]
    b = odds
    if pairs > FEW:  # a good guess from few pairs saves passes over all of them
        b = _root(_Judged([(sample, 1)], sample.numel() * total / pairs), share, bracket, b)
    return _root(_Judged(pieces, total), share, bracket, b)


class _Judged:
    """The mean of σ over pairs, as a function of b."""

    def __init__(self, pieces: Pieces, total: float) -> None:
        self.pieces = [(x.reshape(-1), times) for x, times in pieces if x.numel()]
        self.total = total
        most = max(len(x) for x, _ in self.pieces)
        self.scratch = self.pieces[0][0].new_empty(2, most)

    def at(self, b: float) -> tuple[float, float, float]:
        """(mean σ, and its first and second derivative by b)."""
        one = two = three = 0.0
        for x, times in self.pieces:
            powers = self.scratch[:, : len(x)]
            s, squared = powers
            torch.sub(x, b, out=s).sigmoid_()
            torch.mul(s, s, out=squared)
            more = torch.mv(powers, s).tolist()
            one += times * float(s.sum())
            two += times * more[0]
            three += times * more[1]
        one, two, three = one / self.total, two / self.total, three / self.total
        # Means of σ, of −σ(1 − σ) and of σ(1 − σ)(1 − 2σ).
        return one, two - one, one - 3 * two + 2 * three


def _root(judged: _Judged, share: float, bracket: tuple[float, float], b: float) -> float:
    """Newton's method with Halley's correction, kept inside a shrinking bracket."""
    # Where σ is 0 or 1 for all pairs, the slope is nothing but rounding.
    rounding = 1e-12 if judged.scratch.dtype == torch.float64 else 1e-5
    low, high = bracket
    b = min(max(b, low), high)
    while high - low > TOLERANCE:
        mean, slope, curve = judged.at(b)
        f = mean - share
        low, high = (b, high) if f > 0 else (low, b)
        below = 2 * slope * slope - f * curve
        steep = -slope > rounding * share and below > 0
        step = 2 * f * slope / below if steep else math.inf
        if not low <= b - step <= high:
            b = (low + high) / 2
            continue
        b -= step
        if abs(step) <= 4e-3:  # |σ″|, |σ‴| ≤ σ′: what is left is below 0.42 step³ < 1e-7
            break
    return b
