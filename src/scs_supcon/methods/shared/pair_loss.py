"""Base class of losses that are sums over pairs.

A subclass writes one formula, `terms(rows, pairs)`. This class turns what people have into `Pairs`:
labels, soft labels, several labels per row, references, targets and weights of pairs, weights of
samples and classes, ignored labels, one value per row instead of their mean.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import Anchors, Pairs, Weighting, join_rows
from scs_supcon.methods.shared.base import (
    Method,
    check_one_of,
    flatten,
    flatten_embeddings,
    flatten_soft_labels,
    total,
)

Reduction = Literal["mean", "none"]

TRACED_ROWS = 512  # whole matrices of larger batches would take too much memory
OPTIONS = ("ignore_index", "class_weights", "reduction")  # not part of a recipe


class PairSettings(TypedDict):
    """Attributes of `Pairs` that a loss sets."""

    self_weight: float
    divide_by: Weighting
    anchors: Anchors
    references: NotRequired[Tensor]


class PairLoss(Method):
    """A sum over pairs; a subclass writes `terms` and calls `set_pair_options`."""

    include_self = False  # whether pairs (u, u) count
    pairs: Weighting = "all"
    anchors: Anchors = "all"
    ignore_index: int | None = None
    reduction: Reduction = "mean"
    class_weights: Tensor | None
    # What computes the terms instead of `terms`, for a wrapper that changes rows or pairs.
    compute_terms: Callable[[Tensor, Pairs], dict[str, Tensor]] | None = None

    def set_pair_options(
        self,
        ignore_index: int | None,
        class_weights: Sequence[float] | Tensor | None,
        reduction: Reduction,
        anchors: Anchors = "all",
    ) -> None:
        """Check and store the options."""
        check_one_of("reduction", reduction, ("mean", "none"))
        check_one_of("anchors", anchors, ("all", "with positives"))
        self.ignore_index, self.reduction, self.anchors = ignore_index, reduction, anchors
        if class_weights is None:
            self.class_weights = None
            return
        weights = torch.as_tensor(class_weights, dtype=torch.float64)
        _check_weights("class_weights", weights, weights.shape[:1])
        self.register_buffer("class_weights", weights, persistent=False)

    def terms(
        self,
        rows: Tensor,  # (n, D)
        pairs: Pairs,
    ) -> dict[str, Tensor]:  # () each, or (n,) if pairs.per_row
        """Return the named terms of rows `(n, D)` compared with `pairs.references`, or themselves.

        A term is a number, or `(n,)` values if `pairs.per_row`.
        """
        raise NotImplementedError

    def forward(
        self,
        embeddings: Tensor,  # (N, D) or (B, V, D)
        labels: Tensor | None = None,  # (N,) or (N, K)
        *,
        references: Tensor | None = None,  # (M, D)
        reference_labels: Tensor | None = None,  # (M,) or (M, K)
        sample_weights: Tensor | None = None,  # (N,)
        pair_targets: Tensor | None = None,  # (N, N) or (N, M)
        pair_weights: Tensor | None = None,  # (N, N) or (N, M)
    ) -> Tensor:  # (), or (N,) or (B, V) if reduction="none"
        """Return the loss: the sum of `loss_terms`, which explains the arguments."""
        return total(
            self.loss_terms,
            embeddings,
            labels,
            references=references,
            reference_labels=reference_labels,
            sample_weights=sample_weights,
            pair_targets=pair_targets,
            pair_weights=pair_weights,
            traceable=self.traceable,
        )

    def traceable(self, embeddings: Tensor, labels: Tensor | None, **extras: Tensor | None) -> bool:
        """Return whether `torch.compile` can compile the loss: plain batches, not too large."""
        rows = embeddings.numel() // max(embeddings.shape[-1], 1)
        plain = self._is_plain(labels, *extras.values()) and self.ignore_index is None
        return plain and rows <= TRACED_ROWS and not self.gathers

    def loss_terms(
        self,
        embeddings: Tensor,  # (N, D) or (B, V, D)
        labels: Tensor | None,  # (N,) or (N, K)
        *,
        references: Tensor | None = None,  # (M, D)
        reference_labels: Tensor | None = None,  # (M,) or (M, K)
        sample_weights: Tensor | None = None,  # (N,)
        pair_targets: Tensor | None = None,  # (N, N) or (N, M)
        pair_weights: Tensor | None = None,  # (N, N) or (N, M)
    ) -> dict[str, Tensor]:  # each as the loss
        """Return the named terms whose sum is the loss.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers, `(N,)` or `(B,)`. Or `(N, K)`: probabilities of K classes (soft
                labels), which make a pair positive with probability p_u·p_v; or integers, 1 for
                each label of a row, whose Jaccard index is the target of a pair.
            references: `(M, D)`: compare each row with these instead of the other rows, for
                example with the rows of a second encoder.
            reference_labels: like labels, `(M,)` or `(M, K)`.
            sample_weights: `(N,)`, at least 0. A pair is weighted by the product of its two
                weights.
            pair_targets: `(N, N)`, or `(N, M)` with references, in [0, 1], instead of labels.
            pair_weights: of the same shape, at least 0, or booleans.
        """
        extras = (references, reference_labels, sample_weights, pair_targets, pair_weights)
        if self._is_plain(labels, *extras):
            if self.ignore_index is not None and labels is not None:
                kept = labels != self.ignore_index
                embeddings, labels = embeddings[kept.to(embeddings.device)], labels[kept]
            rows, labels = flatten(embeddings, labels, any_integers=not self.uses_labels)
            gather = self.gathers
            rows = self.scaled(rows) if gather else rows
            settings = self.pair_settings()
            pairs = Pairs.of(labels, gather=gather, group=self.group, **settings)
            return (self.compute_terms or self.terms)(rows, pairs)
        return self._terms_with(embeddings, labels, *extras)

    def pair_settings(self) -> PairSettings:
        """Return the settings of `Pairs` that belong to the loss."""
        return {
            "self_weight": 1.0 if self.include_self else 0.0,
            "divide_by": self.pairs,
            "anchors": self.anchors,
        }

    def _is_plain(self, labels: Tensor | None, *extras: Tensor | None) -> bool:
        """Return whether a batch has one label per row, and nothing else."""
        for extra in extras:  # `any` would cost more than the rest
            if extra is not None:
                return False
        if self.reduction == "none" or self.class_weights is not None:
            return False
        if not isinstance(labels, Tensor) or labels.dim() != 2:
            return True
        return labels.shape[1] == 1 and not labels.is_floating_point()

    def _terms_with(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        references: Tensor | None,
        reference_labels: Tensor | None,
        sample_weights: Tensor | None,
        pair_targets: Tensor | None,
        pair_weights: Tensor | None,
    ) -> dict[str, Tensor]:
        if self.gathers:
            if self.reduction == "none" or pair_targets is not None or pair_weights is not None:
                raise UserError(
                    "gather_across_devices cannot be combined with pair_targets, pair_weights or "
                    'reduction="none": compute the loss of the rows of each process'
                )
            everything = (embeddings, labels, references, reference_labels, sample_weights)
            embeddings, labels, references, reference_labels, sample_weights = self._joined(
                *everything
            )
        left = right = self._side(embeddings, labels)
        if references is not None:
            if references.shape[-1] != embeddings.shape[-1]:
                raise UserError(
                    f"references have {references.shape[-1]} columns but embeddings have "
                    f"{embeddings.shape[-1]}: both must have the same number"
                )
            if reference_labels is None and pair_targets is None:
                raise UserError("reference_labels are missing: give one label for each reference")
            right = self._side(references, reference_labels)
        settings = self.pair_settings()
        if references is not None:
            settings["references"] = right.rows
        if pair_targets is not None:
            pairs = Pairs.of_matrix(_matrix("pair_targets", pair_targets, left, right), **settings)
        else:
            pairs = _pairs_of(left.labels, None if right is left else right.labels, settings)
        if pair_weights is not None:
            matrix = _matrix("pair_weights", pair_weights, left, right)
            pairs.weight = lambda part: matrix[part]
        pairs.row_weights = self._row_weights(left, sample_weights)
        pairs.per_row = self.reduction == "none"
        terms = (self.compute_terms or self.terms)(left.rows, pairs)
        return {name: _restored(term, left) for name, term in terms.items()}

    def _side(self, embeddings: Tensor, labels: Tensor | None) -> "_Side":
        """Return the rows and labels of one side of the pairs, without ignored ones."""
        views = embeddings.shape[1] if embeddings.dim() == 3 else 1
        kept = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device)
        if labels is None:
            return _Side(flatten_embeddings(embeddings), None, kept, views)
        labels = labels.to(embeddings.device)
        if len(labels) != len(embeddings):
            raise UserError(
                f"the number of labels ({len(labels)}) must equal the number of rows of embeddings "
                f"({len(embeddings)})"
            )
        if self.ignore_index is not None and labels.dim() == 1:
            kept = labels != self.ignore_index
        z, labels = embeddings[kept], labels[kept]
        if labels.dim() != 2:
            rows, labels = flatten(z, labels, any_integers=not self.uses_labels)
        elif labels.is_floating_point():
            rows, labels = flatten_soft_labels(z, labels)
        else:
            if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) <= 1:
                raise UserError("labels of several columns must be 0 or 1")
            rows, labels = flatten_embeddings(z), labels.repeat(views, 1)
        return _Side(rows, labels, kept, views)

    def _joined(self, embeddings: Tensor, *others: Tensor | None) -> Any:
        """Return the rows of all processes, with their labels, references and weights.

        Every process computes the loss of the whole batch; only its own rows have a gradient, which
        is then that of the whole batch, as are those of t and b. Every process of the group has to
        pass the same kinds of arguments.
        """

        def join(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            x = x.to(embeddings.device)
            return join_rows(self.scaled(x) if x.requires_grad else x, group=self.group)

        return [join(x) for x in (embeddings, *others)]

    def _row_weights(self, side: "_Side", sample_weights: Tensor | None) -> Tensor | None:
        rows, weights = side.rows, None
        if sample_weights is not None:
            _check_weights("sample_weights", sample_weights, (len(side.kept),))
            weights = sample_weights.detach().to(rows)[side.kept].repeat(side.views)
        if self.class_weights is None:
            return weights
        if side.labels is None or side.labels.dim() != 1:
            raise UserError("class_weights need one integer label per row")
        if len(side.labels) and int(side.labels.max()) >= len(self.class_weights):
            raise UserError(
                f"class_weights has {len(self.class_weights)} numbers, but a label is "
                f"{int(side.labels.max())}: give one weight for each class"
            )
        by_class = self.class_weights.to(rows)[side.labels]
        return by_class if weights is None else weights * by_class


class _Side(NamedTuple):
    """One side of the pairs of n rows, which are V views of B images."""

    rows: Tensor  # (n, D), view-major
    labels: Tensor | None  # (n,) integers, (n, K) soft labels or sets of labels
    kept: Tensor  # (B,), False for images with an ignored label, which are not among the rows
    views: int


def _pairs_of(labels: Tensor | None, others: Tensor | None, settings: PairSettings) -> Pairs:
    """Return the pairs of rows with labels, and of references with other labels, if any."""
    if labels is None:
        raise UserError("labels are missing: pass labels or pair_targets")
    if others is not None and (others.dim(), others.dtype) != (labels.dim(), labels.dtype):
        raise UserError("labels and reference_labels must be of the same kind")
    if labels.dim() == 1:
        return Pairs.of(labels, others, **settings)
    if labels.is_floating_point():
        return Pairs.of_soft(labels, others, **settings)
    return Pairs.of_sets(labels, others, **settings)


def _restored(term: Tensor, side: _Side) -> Tensor:
    """Return one value per row of the embeddings: `(B, V)` for views, 0 for ignored rows.

    The mean over all rows stays that of the kept ones.
    """
    if not term.dim():
        return term
    kept, views = side.kept, side.views
    values = term.view(views, -1).T
    whole = values.new_zeros(len(kept), views)
    whole[kept] = values * (len(kept) / max(len(values), 1))
    return whole if views > 1 else whole[:, 0]


def _matrix(name: str, x: Tensor, left: _Side, right: _Side) -> Tensor:
    """Check a matrix of targets or weights of pairs, and return that of the kept, flat rows."""
    shape = len(left.kept), len(right.kept)
    if not isinstance(x, Tensor) or x.shape != shape:
        raise UserError(f"{name} must be a tensor of shape {shape}, got {_shape(x)}")
    if x.dtype != torch.bool:
        largest = 1.0 if name == "pair_targets" else float("inf")
        if x.numel() and not (float(x.min()) >= 0 and float(x.max()) <= largest):
            raise UserError(
                f"{name} must be between 0 and {largest:g}, got {float(x.min()):g} to "
                f"{float(x.max()):g}"
            )
        x = x.to(left.rows.dtype)
    x = x.detach().to(left.rows.device)
    return x[left.kept][:, right.kept].repeat(left.views, right.views)


def _check_weights(name: str, weights: Tensor, shape: Sequence[int]) -> None:
    if not isinstance(weights, Tensor) or weights.shape != torch.Size(shape):
        raise UserError(f"{name} must be a tensor of shape {tuple(shape)}, got {_shape(weights)}")
    if weights.numel() and not (float(weights.min()) >= 0 and bool(torch.isfinite(weights).all())):
        raise UserError(f"{name} must be finite and at least 0, got {float(weights.min()):g}")


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
