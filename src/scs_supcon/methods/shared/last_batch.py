"""Statistics of the pairs in a batch, computed when they are logged."""

import math

from torch import Tensor

from scs_supcon.kernels import count_pairs, expected_positives, mean_cosines


class LastBatch:
    """The last batch of a loss; nothing is computed before it is asked for."""

    def __init__(self) -> None:
        self.labels: Tensor | None = None
        self.reference_labels: Tensor | None = None
        self.rows: Tensor | None = None
        self.row_labels: Tensor | None = None

    def store(
        self,
        labels: Tensor,
        reference_labels: Tensor | None,
        rows: Tensor | None,
        row_labels: Tensor,
    ) -> None:
        """Store a batch.

        Args:
            labels: of all processes.
            reference_labels: of the right side of the pairs; None: the rows themselves.
            rows: unit rows of this process; None if they are traced.
            row_labels: of this process; `(n, K)` probabilities for soft labels.
        """
        self.labels, self.reference_labels = labels, reference_labels
        self.rows, self.row_labels = rows, row_labels

    def count(self, include_self: bool) -> tuple[int, int, int]:
        """Return the numbers of pairs, of positive pairs, and of rows without positives.

        Args:
            include_self: whether pairs (u, u) count.
        """
        assert self.labels is not None
        return count_pairs(self.labels, self.reference_labels, include_self=include_self)

    def scalars(self, include_self: bool) -> dict[str, float]:
        """Return the share of positive pairs, rows without positives, and mean cosines.

        The mean cosines are those of pairs of two different rows of this process.
        """
        if self.labels is None:
            return {}
        total, same, without = self.count(include_self)
        values = {
            "positive_share": same / max(total, 1),
            "anchors_without_positives": float(without),
        }
        if self.rows is None or self.row_labels is None:
            return values
        if self.row_labels.dim() == 2:  # soft labels
            pairs = len(self.rows) * (len(self.rows) - (not include_self))
            positive = expected_positives(self.row_labels, include_self)
            values["positive_share"] = positive / max(pairs, 1)
        cosines = mean_cosines(self.rows, self.row_labels)
        named = zip(("positive_cosine", "negative_cosine"), cosines, strict=True)
        return values | {name: value for name, value in named if not math.isnan(value)}
