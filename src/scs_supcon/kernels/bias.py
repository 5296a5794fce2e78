"""The bias that makes the judged share of same-class pairs right for a batch."""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import full_precision
from scs_supcon.kernels.layout import Rows, longest, same_class_pairs

MOST_ROWS = 1024
HELD = 512  # of so many rows all logits are held from pass to pass
BAND = 256
FEW = 1 << 14  # so few pairs need no first guess from a sample of theirs
THIN = 16  # the sample: every 16th row against all
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
    with full_precision(queries):
        q, some = _evenly(queries, rows)
        if references is not None and columns is not None:
            r, others = _evenly(references, columns)
            logits = torch.mm(q * t, r.T)
            return _solve_held(logits, _range(logits), same_class_pairs(some, others))
        if len(q) <= HELD:
            logits = torch.mm(q * t, q.T)
            return solve_square_bias(logits, same_class_pairs(some), include_self)
        return _solve_triangle(_Triangle(q, t, include_self), same_class_pairs(some))


@torch.no_grad()
def solve_square_bias(logits: Tensor, positive: int, include_self: bool = True) -> float:
    """The same for a few rows among themselves: logits t r, and how many pairs are of one class."""
    if include_self:
        return _solve_held(logits, _range(logits), positive)
    n = len(logits)
    counted = logits.clone().fill_diagonal_(-math.inf)  # σ(−inf) = 0: not counted
    return _solve_held(counted, _range(logits), positive - n, own=n)


@torch.no_grad()
def solve_listed_bias(logits: Tensor, same: Tensor) -> float:
    """The same for listed pairs: logits t r, and which of them are of one class."""
    return _solve_held(logits, _range(logits), int(same.sum()))


def _evenly(x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
    n = len(rows)
    if n <= MOST_ROWS:
        return x, rows
    picked = torch.arange(MOST_ROWS, device=x.device) * n // MOST_ROWS
    return x[picked], Rows(rows.labels[picked])


def _range(logits: Tensor) -> tuple[float, float]:
    if not logits.numel():
        return 0.0, 0.0
    least, most = torch.aminmax(logits)
    return float(least), float(most)


class _Pairs(Protocol):
    """Pairs to be judged: `total` of them count."""

    total: float
    room: Tensor  # (2, …), for a piece of them

    def less(self, b: float) -> Iterator[tuple[int, int]]:
        """Write logits less b into room[0], piece by piece; yield (how many, how often counted)."""

    def negated(self) -> "_Pairs":
        """The same pairs with −t."""


class _Held:
    """Pairs whose logits are there."""

    def __init__(self, logits: Tensor, total: float) -> None:
        self.logits, self.total = logits.reshape(-1), total
        self.room = logits.new_empty(2, logits.numel())

    def less(self, b: float) -> Iterator[tuple[int, int]]:
        torch.sub(self.logits, b, out=self.room[0])
        yield len(self.logits), 1

    def negated(self) -> "_Held":
        left_out = self.logits == -math.inf
        return _Held(torch.where(left_out, self.logits, -self.logits), self.total)


class _Triangle:
    """Rows among themselves, each pair of two once: the upper triangle, band by band.

    Its logits are computed anew for every pass. Most often there is one, and a band that was just
    computed is still in the cache.
    """

    def __init__(self, x: Tensor, t: float, include_self: bool) -> None:
        self.x, self.t, self.include_self = x, t, include_self
        self.total = float(len(x) ** 2 - (0 if include_self else len(x)))
        self.room = x.new_empty(2, BAND * len(x))

    def less(self, b: float) -> Iterator[tuple[int, int]]:
        minus_b = self.x.new_full((1,), -b)
        for i in range(0, len(self.x), BAND):
            head, rest = self.x[i : i + BAND], self.x[i + BAND :]
            for other, times in ((head, 1), (rest, 2)):
                piece = self.room[0, : len(head) * len(other)].view(len(head), len(other))
                torch.addmm(minus_b, head, other.T, alpha=self.t, out=piece)
                if times == 1 and not self.include_self:
                    piece.fill_diagonal_(-math.inf)
                yield piece.numel(), times

    def negated(self) -> "_Triangle":
        return _Triangle(self.x, -self.t, self.include_self)

    def sample(self) -> _Held:
        picked = torch.arange(0, len(self.x), THIN, device=self.x.device)
        logits = torch.mm(self.x[picked] * self.t, self.x.T)
        if not self.include_self:
            logits.scatter_(1, picked[:, None], -math.inf)
        return _Held(logits, len(picked) * (len(self.x) - (not self.include_self)))


def _solve_held(logits: Tensor, bounds: tuple[float, float], positive: int, own: int = 0) -> float:
    """Solve for all pairs but `own`, whose logits are −inf."""
    pairs = logits.numel()
    total = pairs - own
    if not total:
        return 0.0
    sample = None
    if pairs > FEW:
        thin = logits[::THIN]
        sample = _Held(thin, total * thin.numel() / pairs)
    return _solve(_Held(logits, total), sample, positive, bounds)


def _solve_triangle(pairs: _Triangle, positive: int) -> float:
    own = 0 if pairs.include_self else len(pairs.x)
    most = abs(pairs.t) * longest(pairs.x) ** 2  # no |t r| is above this
    return _solve(pairs, pairs.sample(), positive - own, (-most, most))


def _solve(
    pairs: _Pairs, sample: _Pairs | None, positive: float, bounds: tuple[float, float]
) -> float:
    positive = min(max(positive, 0.5), pairs.total - 0.5)
    if positive > pairs.total / 2:
        # σ(a) = 1 − σ(−a): a share near 1 is found by the pairs that it leaves, in all digits.
        negated = None if sample is None else sample.negated()
        rest = pairs.total - positive
        return -_solve(pairs.negated(), negated, rest, (-bounds[1], -bounds[0]))
    share = positive / pairs.total
    b = math.log((1 - share) / share)
    # At the ends of the bracket every σ is at least, or at most, the share.
    bracket = b + bounds[0], b + bounds[1]
    if sample is not None:  # a good guess saves passes over all pairs
        b = _root(sample, share, bracket, b)
    return _root(pairs, share, bracket, b)


def _root(pairs: _Pairs, share: float, bracket: tuple[float, float], b: float) -> float:
    """Newton's method with Halley's correction, kept inside a shrinking bracket."""
    # Where σ is 0 or 1 for all pairs, the slope is nothing but rounding.
    rounding = 1e-12 if pairs.room.dtype == torch.float64 else 1e-5
    low, high = bracket
    b = min(max(b, low), high)
    while high - low > TOLERANCE:
        mean, slope, curve = _mean(pairs, b)
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


def _mean(pairs: _Pairs, b: float) -> tuple[float, float, float]:
    """(mean of σ, and its first and second derivative by b)."""
    one = two = three = 0.0
    for many, times in pairs.less(b):
        powers = pairs.room[:, :many]
        s, squared = powers
        torch.mul(s.sigmoid_(), s, out=squared)
        one += times * float(s.sum())
        more = torch.mv(powers, s).tolist()
        two += times * more[0]
        three += times * more[1]
    one, two, three = one / pairs.total, two / pairs.total, three / pairs.total
    # Means of σ, of −σ(1 − σ) and of σ(1 − σ)(1 − 2σ).
    return one, two - one, one - 3 * two + 2 * three
