"""Labels and weights that people have: for every loss that is a sum over pairs.

Ignored labels, weights of samples and classes, several labels per row, a target and a weight for
every pair, pairs from a miner, and one value per row instead of their mean. All of them are targets
q and weights w of pairs (`kernels.targets`).
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import count_pairs
from scs_supcon.kernels.gather import gather_rows
from scs_supcon.kernels.targets import (
    PairTargets,
    label_targets,
    listed_targets,
    matrix_targets,
    multi_label_targets,
)
from scs_supcon.methods.shared.base import Method, check_one_of, flatten, flatten_embeddings, total

Reduction = Literal["mean", "none"]

TRACED_ROWS = 512  # whole matrices of larger batches would take too much memory
OPTIONS = ("ignore_index", "class_weights", "reduction")  # not part of a recipe


class PairLoss(Method):
    """A sum over pairs; a subclass writes `row_terms` and calls `set_pair_options`."""

    include_self = False  # whether pairs (u, u) count
    ignore_index: int | None = None
    reduction: Reduction = "mean"
    class_weights: Tensor | None

    def set_pair_options(
        self,
        ignore_index: int | None,
        class_weights: Sequence[float] | Tensor | None,
        reduction: Reduction,
    ) -> None:
        """Check and store the options."""
        check_one_of("reduction", reduction, ("mean", "none"))
        self.ignore_index, self.reduction = ignore_index, reduction
        if class_weights is None:
            self.class_weights = None
            return
        weights = torch.as_tensor(class_weights, dtype=torch.float64)
        _check_weights("class_weights", weights, weights.shape[:1])
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
        pair_targets: Tensor | None = None,
        pair_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss: the sum of `loss_terms`."""
        return total(
            self.loss_terms,
            embeddings,
            labels,
            sample_weights=sample_weights,
            pair_targets=pair_targets,
            pair_weights=pair_weights,
            traceable=self.traceable,
        )

    def traceable(
        self, embeddings: Tensor, labels: Tensor | None, **options: Tensor | None
    ) -> bool:
        """Return whether `torch.compile` can compile the loss: plain batches, not too large."""
        rows = embeddings.numel() // max(embeddings.shape[-1], 1)
        plain = not self.needs_targets(None, *options.values())
        return plain and rows <= TRACED_ROWS and not self.gathers and self.ignore_index is None

    def loss_terms(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        *,
        sample_weights: Tensor | None = None,
        pair_targets: Tensor | None = None,
        pair_weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss; arguments as in `targeted_terms`."""
        options = (sample_weights, pair_targets, pair_weights)
        if self.needs_targets(labels, *options):
            return self.targeted_terms(embeddings, labels, *options)
        return self.plain_terms(*self.without_ignored(embeddings, labels))

    def plain_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the terms of a batch with one label per row, all pairs and equal weights."""
        raise NotImplementedError

    def row_terms(
        self,
        rows: Tensor,
        references: Tensor,
        targets: PairTargets,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return terms with one value per row, whose mean over rows is the term, or its mean.

        Args:
            rows: `(n, D)` embeddings.
            references: `(m, D)`; may be the rows themselves.
            targets: targets and weights of pairs.
            weights: `(n,)` weights of rows, which are part of the weights of pairs.
        """
        raise NotImplementedError

    def loss_on_pairs(
        self,
        embeddings: Tensor,
        pairs: tuple[Tensor, Tensor],
        same: Tensor,
        ref_emb: Tensor,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms over listed pairs (row, reference); a pair counts once.

        Divisors are those of the loss, counted over the listed pairs: a list of all pairs gives the
        loss without a list. Lists do not contain pairs (u, u): if the references are the embeddings
        themselves and `include_self` is set, these pairs are weighted by the share of positive
        pairs that are listed.

        Args:
            embeddings: `(N, D)` rows.
            pairs: indices of rows, indices of references.
            same: which of the pairs are positive pairs.
            ref_emb: `(M, D)` references; may be the embeddings themselves.
            labels: `(N,)`, to count positive pairs; default: all of them are listed.
        """
        u, v = pairs
        positives, negatives = (u[same], v[same]), (u[~same], v[~same])
        return self.loss_on_lists(embeddings, positives, negatives, ref_emb, labels)

    def loss_on_lists(
        self,
        embeddings: Tensor,
        positives: tuple[Tensor, Tensor],
        negatives: tuple[Tensor, Tensor],
        ref_emb: Tensor,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As `loss_on_pairs`, with a list of positive and a list of negative pairs."""
        one_set = ref_emb is embeddings
        shape = len(embeddings), len(ref_emb)
        listed = listed_targets(shape, positives, negatives, one_set=one_set)
        if one_set and self.include_self:
            share = 1.0
            if labels is not None:
                _, positive = listed.totals(embeddings.device)
                _, most, _ = count_pairs(labels.to(embeddings.device), include_self=False)
                share = float(positive) / most if most else 1.0
            listed = listed_targets(shape, positives, negatives, one_set=True, self_weight=share)
        return self._reduced(self.row_terms(embeddings, ref_emb, listed))

    def without_ignored(
        self, embeddings: Tensor, labels: Tensor | None, *others: Tensor | None
    ) -> Any:
        """Return embeddings, labels and others without the rows whose label is `ignore_index`."""
        if self.ignore_index is None or not isinstance(labels, Tensor):
            return embeddings, labels, *others
        kept = labels != self.ignore_index
        return [None if x is None else x[kept.to(x.device)] for x in (embeddings, labels, *others)]

    def needs_targets(self, labels: Tensor | None, *options: Tensor | None) -> bool:
        """Return whether a batch needs targets and weights of pairs."""
        for option in options:  # `any` would cost more than the rest
            if option is not None:
                return True
        return (
            self.reduction == "none"
            or self.class_weights is not None
            or (isinstance(labels, Tensor) and labels.dim() == 2 and labels.shape[1] > 1)
        )

    def targeted_terms(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        sample_weights: Tensor | None = None,
        pair_targets: Tensor | None = None,
        pair_weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms of a batch with targets and weights of pairs.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers `(N,)`, or `(N, K)` with 1 for each label of a row; None if
                pair_targets are given.
            sample_weights: `(N,)`, at least 0.
            pair_targets: `(N, N)` in [0, 1], instead of labels.
            pair_weights: `(N, N)`, at least 0, or booleans.
        """
        if self.gathers:
            if self.reduction == "none" or pair_targets is not None or pair_weights is not None:
                raise UserError(
                    "gather_across_devices cannot be combined with pair_targets, pair_weights or "
                    'reduction="none": compute the loss of the rows of each process'
                )
            embeddings, labels, sample_weights = self._gathered(embeddings, labels, sample_weights)
        number = len(embeddings)
        kept = self._kept(labels, number)
        rows, (views,) = flatten_embeddings(embeddings[kept]), embeddings.shape[1:-1] or (1,)
        q, w = (
            _square(x, number, kept, views, rows, name)
            for x, name in ((pair_targets, "pair_targets"), (pair_weights, "pair_weights"))
        )
        weights = self._row_weights(labels, sample_weights, kept, views, rows)
        options: dict[str, Any] = {"weights": weights, "include_self": self.include_self}
        if q is not None:
            targets = matrix_targets(q, w, **options)
        elif labels is None:
            raise UserError("labels are missing: pass labels or pair_targets")
        elif labels.dim() == 2:
            _check_multi_hot(labels, number)
            targets = multi_label_targets(labels.repeat(views, 1).to(rows.device), **options)
        else:
            _, flat = flatten(embeddings[kept], labels[kept])
            targets = label_targets(flat, **options)
        if w is not None and q is None:
            inner = targets
            everything = torch.arange(len(rows), device=rows.device)
            targets = matrix_targets(inner.target(everything), w, **options)
        terms = self._reduced(self.row_terms(rows, rows, targets, weights))
        return {name: _restored(term, kept, views) for name, term in terms.items()}

    def _gathered(
        self, embeddings: Tensor, labels: Tensor | None, sample_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the rows of all processes, with their labels and weights.

        Every process computes the loss of the whole batch; only its own rows have a gradient, which
        is then that of the whole batch, as are those of t and b. Every process of the group has to
        pass the same kinds of arguments.
        """
        given = [x.to(embeddings.device) for x in (labels, sample_weights) if x is not None]
        (rows, *others), local = gather_rows(embeddings, *given, group=self.group)
        own = self.scaled(embeddings)
        rows = torch.cat([rows[: local.start], own, rows[local.stop :]])
        joined = iter(others)
        return (
            rows,
            None if labels is None else next(joined),
            None if sample_weights is None else next(joined),
        )

    def _kept(self, labels: Tensor | None, number: int) -> Tensor:
        if self.ignore_index is None or labels is None or labels.dim() != 1:
            return torch.ones(number, dtype=torch.bool)
        return labels.cpu() != self.ignore_index

    def _row_weights(
        self,
        labels: Tensor | None,
        sample_weights: Tensor | None,
        kept: Tensor,
        views: int,
        rows: Tensor,
    ) -> Tensor | None:
        weights = None
        if sample_weights is not None:
            _check_weights("sample_weights", sample_weights, (len(kept),))
            weights = sample_weights.detach().to(rows)[kept.to(rows.device)].repeat(views)
        if self.class_weights is None:
            return weights
        if labels is None or labels.dim() != 1:
            raise UserError("class_weights need one integer label per row")
        flat = labels[kept.to(labels.device)].repeat(views)
        if len(flat) and int(flat.max()) >= len(self.class_weights):
            raise UserError(
                f"class_weights has {len(self.class_weights)} numbers, but a label is "
                f"{int(flat.max())}: give one weight for each class"
            )
        by_class = self.class_weights.to(rows)[flat.to(rows.device)]
        return by_class if weights is None else weights * by_class

    def _reduced(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.reduction == "none":
            return terms
        return {
            name: term.sum() / max(len(term), 1) if term.dim() else term
            for name, term in terms.items()
        }


def mean_one(weights: Tensor | None) -> Tensor | None:
    """Return weights, scaled to a mean of 1."""
    if weights is None:
        return None
    total = weights.sum()
    return weights * len(weights) / torch.where(total > 0, total, 1)


def weighted_rows(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return values of rows times their weights, which are scaled to a mean of 1."""
    factors = mean_one(weights)
    return values if factors is None else values * factors


def _restored(term: Tensor, kept: Tensor, views: int) -> Tensor:
    """Return one value per row of the embeddings: 0 for ignored rows, `(B, V)` for views."""
    if not term.dim():
        return term
    values = term.view(views, -1).T
    whole = values.new_zeros(len(kept), views)
    whole[kept.to(values.device)] = values
    return whole if views > 1 else whole[:, 0]


def _square(
    x: Tensor | None, number: int, kept: Tensor, views: int, rows: Tensor, name: str
) -> Tensor | None:
    if x is None:
        return None
    if not isinstance(x, Tensor) or x.shape != (number, number):
        raise UserError(f"{name} must be a tensor of shape ({number}, {number}), got {_shape(x)}")
    if x.dtype != torch.bool:
        largest = 1.0 if name == "pair_targets" else float("inf")
        if x.numel() and not (float(x.min()) >= 0 and float(x.max()) <= largest):
            raise UserError(
                f"{name} must be between 0 and {largest:g}, got {float(x.min()):g} to "
                f"{float(x.max()):g}"
            )
        x = x.to(rows.dtype)
    device = kept.to(x.device)
    return x.detach()[device][:, device].repeat(views, views).to(rows.device)


def _check_weights(name: str, weights: Tensor, shape: Sequence[int]) -> None:
    if not isinstance(weights, Tensor) or weights.shape != torch.Size(shape):
        raise UserError(f"{name} must be a tensor of shape {tuple(shape)}, got {_shape(weights)}")
    if weights.numel() and not (float(weights.min()) >= 0 and bool(torch.isfinite(weights).all())):
        raise UserError(f"{name} must be finite and at least 0, got {float(weights.min()):g}")


def _check_multi_hot(labels: Tensor, number: int) -> None:
    if labels.is_floating_point():
        raise UserError(
            f"labels of shape {tuple(labels.shape)} must be integers or booleans, 1 for each label "
            "of a row, got floating-point numbers: use loss_with_soft_labels for probabilities"
        )
    if len(labels) != number:
        raise UserError(f"labels must have {number} rows, got {len(labels)}")
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) <= 1:
        raise UserError("labels of several columns must be 0 or 1")


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
