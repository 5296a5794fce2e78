"""Who is compared with whom: `Pairs` describes the pairs of a batch, for every loss over pairs.

A pair is a row u and a reference v. It has a target and a weight:

    q_uv ∈ [0, 1]: 1 for a positive pair, 0 for a negative pair,   w_uv ≥ 0

Without references, rows are compared among themselves. Labels are the common case, for which the
kernels sort rows by label. All other pairs (soft labels, several labels per row, matrices of
targets, mined pairs, weights) are computed in bands of rows, which the backward pass computes
again, so that memory is O(BAND).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scs_supcon.kernels.autograd import traced, wide
from scs_supcon.kernels.gather import Group
from scs_supcon.kernels.layout import Layout, lay_out, members

BAND = 1 << 21  # pairs held in memory

Weighting = Literal["all", "balanced", "positives"]
Anchors = Literal["all", "with positives"]
Rows = slice | Tensor  # a band of rows, or indices


class Sides(NamedTuple):
    """Both sides of the pairs.

    Attributes:
        rows: `(n, d)`.
        references: `(m, d)`; None: the rows themselves.
    """

    rows: Tensor
    references: Tensor | None = None


@dataclass(eq=False)
class Pairs:
    """The pairs of a batch; `of`, `of_soft`, `of_sets`, `of_matrix` and `listed` make them.

    Attributes:
        rows: number n of rows.
        labels: `(n,)` integers; q is 1 for equal labels, else 0.
        reference_labels: `(m,)`.
        target: instead of labels: returns q `(k, m)` of k rows, booleans or numbers.
        references: `(m, D)` embeddings on the right side; None: the rows themselves.
        with_rows: whether the right side is the rows, followed by the references.
        weight: returns w `(k, m)` of k rows, booleans or numbers; None: all are 1.
        row_weights: `(n,)` weights ω of rows, by which w_uv is multiplied: ω_u ω_v.
        self_weight: factor of the weights of pairs (u, u); 0 leaves them out.
        divide_by: what the sum over pairs is divided by; see `pair_weights`.
        anchors: the rows over which `softmax_pairs` and `mean_distance` average.
        per_row: return one value per row, whose mean is the loss.
        gather: compare the rows with those of all processes.
        group: the processes; None: all.
    """

    rows: int
    labels: Tensor | None = None
    reference_labels: Tensor | None = None
    target: Callable[[Rows], Tensor] | None = None
    references: Tensor | None = None
    with_rows: bool = False
    weight: Callable[[Rows], Tensor] | None = None
    row_weights: Tensor | None = None
    self_weight: float = 1.0
    divide_by: Weighting = "all"
    anchors: Anchors = "all"
    per_row: bool = False
    gather: bool = False
    group: Group = None
    cached_layout: Layout | None = None

    @classmethod
    def of(cls, labels: Tensor, reference_labels: Tensor | None = None, **settings: Any) -> Self:
        """Return pairs that are positive if their labels are equal.

        Args:
            labels: `(n,)` integers.
            reference_labels: `(m,)`.
            settings: other attributes.
        """
        return cls(labels.shape[0], labels, reference_labels, **settings)

    @classmethod
    def of_soft(cls, p: Tensor, reference_p: Tensor | None = None, **settings: Any) -> Self:
        """Return pairs with q_uv = p_u·p_v: the probability that two drawn labels are equal.

        Args:
            p: `(n, K)` probabilities of the classes.
            reference_p: `(m, K)`.
            settings: other attributes.
        """
        pairs = cls(len(p), **settings)
        right = pairs.join(p, reference_p)
        pairs.target = lambda rows: p[rows] @ right.T
        return pairs

    @classmethod
    def of_sets(cls, sets: Tensor, reference_sets: Tensor | None = None, **settings: Any) -> Self:
        """Return pairs whose q is the Jaccard index of two sets of labels, |A ∩ B| / |A ∪ B|.

        Two empty sets have q = 0.

        Args:
            sets: `(n, K)` with 1 for each label of a row, 0 otherwise.
            reference_sets: `(m, K)`.
            settings: other attributes.
        """
        pairs = cls(len(sets), **settings)
        y = sets.to(wide(sets))
        right = pairs.join(y, reference_sets)
        sizes, right_sizes = y.sum(1), right.sum(1)

        def target(rows: Rows) -> Tensor:
            common = y[rows] @ right.T
            return common / (sizes[rows, None] + right_sizes - common).clamp_min(1)

        pairs.target = target
        return pairs

    @classmethod
    def of_matrix(cls, q: Tensor, **settings: Any) -> Self:
        """Return pairs with targets `(n, m)`."""
        return cls(len(q), target=lambda rows: q[rows], **settings)

    @classmethod
    def listed(
        cls,
        rows: int,
        positives: tuple[Tensor, Tensor],
        negatives: tuple[Tensor, Tensor],
        **settings: Any,
    ) -> Self:
        """Return pairs of which only listed ones count, each once.

        Args:
            rows: number of rows.
            positives: indices of rows, indices of references.
            negatives: indices of rows, indices of references.
            settings: other attributes. Pairs (u, u) are positive and count by `self_weight`.
        """
        pairs = cls(rows, **settings)
        positive = torch.zeros(pairs.shape, dtype=torch.bool, device=positives[0].device)
        positive[positives] = True
        kept = positive.clone()
        kept[negatives] = True
        if pairs.contains_self:
            positive.fill_diagonal_(True)
            kept.fill_diagonal_(True)
        pairs.target, pairs.weight = (lambda rows: positive[rows]), (lambda rows: kept[rows])
        return pairs

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of references."""
        m = 0 if self.references is None else len(self.references)
        return self.rows, m + self.rows if self.contains_self else m

    @property
    def contains_self(self) -> bool:
        """Whether the rows are on the right side, too."""
        return self.references is None or self.with_rows

    @property
    def by_label(self) -> bool:
        """Whether labels say everything, so that rows can be sorted by label."""
        return (
            self.labels is not None
            and self.weight is None
            and self.row_weights is None
            and self.self_weight in (0, 1)
            and not self.per_row
        )

    @property
    def layout(self) -> Layout:
        """The order of the labels, computed once; of all processes if rows are gathered."""
        if self.cached_layout is None:
            assert self.labels is not None
            self.cached_layout = lay_out(
                self.labels,
                self.reference_labels,
                with_rows=self.with_rows,
                gather=self.gather,
                group=self.group,
            )
        return self.cached_layout

    def anchor_count(self) -> int:
        """Return the number of rows to average over, of all processes; at least 1."""
        if self.anchors == "all" and not self.gather:
            return max(self.rows, 1)
        left, right = self.layout.left, self.layout.right
        if self.anchors == "all":
            return max(len(left), 1)
        positives = members(left.labels, right) - int(self.layout.contains_self)
        return max(int((positives > 0).sum()), 1)

    def join(self, rows: Tensor, references: Tensor | None) -> Tensor:
        """Return the right side of the pairs, given what both sides are."""
        if references is None:
            return rows
        return torch.cat([rows, references.to(rows)]) if self.with_rows else references.to(rows)

    def targets(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Return q and w `(k, m)` of k rows; None if all weights are 1."""
        if self.target is not None:
            q = self.target(rows)
        else:
            assert self.labels is not None
            q = self.labels[rows, None] == self.join(self.labels, self.reference_labels)
        w = None if self.weight is None else self.weight(rows)
        if self.row_weights is not None:
            product = self.row_weights[rows, None] * self._column_weights(self.row_weights)
            w = product if w is None else w * product
        if self.contains_self and self.self_weight != 1:
            itself = self.itself(rows, q.device)
            if self.self_weight:
                factor = torch.ones_like(q, dtype=wide(q)).masked_fill(itself, self.self_weight)
                w = factor if w is None else w * factor
            else:
                w = ~itself if w is None else w.masked_fill(itself, 0)
        return q, w

    def positives(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        """Return w q `(k, m)` of k rows, without pairs (u, u)."""
        q, w = self.targets(rows)
        q = q.to(dtype) if w is None else w.to(dtype) * q.to(dtype)
        return q.masked_fill(self.itself(rows, q.device), 0) if self.contains_self else q

    def itself(self, rows: Rows, device: torch.device) -> Tensor:
        """Return which pairs of k rows are (u, u): `(k, m)`."""
        index = torch.arange(self.shape[1], device=device)
        return index[: self.rows][rows, None] == index

    def totals(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return Σ w and Σ w q, in float64 if possible."""
        exact = wide(device)
        total = torch.zeros(2, dtype=exact, device=device)
        for rows in self.bands():
            with torch.no_grad():  # as a decorator of a method, PyTorch 2.4 cannot compile it
                q, w = self.targets(rows)
            if w is None:
                parts = total.new_full((), q.numel()), q.sum(dtype=exact)
            else:
                both = w & q if w.dtype == q.dtype == torch.bool else w.to(exact) * q
                parts = w.sum(dtype=exact), both.sum(dtype=exact)
            total = total + torch.stack(parts)
        return total[0], total[1]

    def bands(self) -> Iterator[slice]:
        """Yield slices of rows that have at most BAND pairs; one empty slice without rows."""
        size = max(BAND // max(self.shape[1], 1), 1)
        for start in range(0, max(self.rows, 1), size):
            yield slice(start, min(start + size, self.rows))

    def over_rows(self, compute: Callable[[slice], Tensor], x: Tensor) -> Tensor:
        """Return `(n,)` values of rows of x, computed in bands.

        Bands are computed again in the backward pass, unless there is only one.
        """
        bands = [slice(0, self.rows)] if traced(x) else list(self.bands())
        if len(bands) == 1:
            return compute(bands[0])
        return torch.cat([checkpoint(compute, rows, use_reentrant=False) for rows in bands])

    def average(self, values: Tensor, positive: Tensor) -> Tensor:
        """Return the mean of values of rows, weighted by `row_weights`.

        Args:
            values: `(n,)`.
            positive: `(n,)`; rows with 0 have no positives.
        """
        weights = self.row_weights
        factors = torch.ones_like(values) if weights is None else weights.to(values.dtype)
        counted = factors if self.anchors == "all" else torch.where(positive > 0, factors, 0)
        divisor = counted.sum()
        values = values * (factors / torch.where(divisor > 0, divisor, 1))
        return values * self.rows if self.per_row else values.sum()

    def _column_weights(self, weights: Tensor) -> Tensor:
        m = self.shape[1]
        if not self.contains_self:
            return weights.new_ones(m)
        return torch.cat([weights, weights.new_ones(m - self.rows)])


def pair_weights(total: Any, positive: Any, divide_by: Weighting) -> tuple[Any, Any]:
    """Return the weights of a positive and of a negative pair, as numbers or tensors.

    Args:
        total: Σ w, the number of pairs if all weights are 1.
        positive: Σ w q, the number of positive pairs.
        divide_by: "all": the sum over pairs is divided by Σ w. "positives": by Σ w q. "balanced":
            half of the positive part divided by Σ w q, plus half of the negative part divided by
            Σ w (1 − q). A divisor of 0 counts as 1.
    """
    if divide_by == "balanced":
        return 0.5 / _or_one(positive), 0.5 / _or_one(total - positive)
    weight = 1 / _or_one(positive if divide_by == "positives" else total)
    return weight, weight


def _or_one(x: Any) -> Any:
    if isinstance(x, Tensor):
        x = x.to(wide(x))
        return torch.where(x > 0, x, torch.ones_like(x))
    return x if x > 0 else 1
