"""OSCS-SupCon: SCS-SupCon with orthogonal fields (Wang & Dornaika, arXiv 2606.11233).

    L = L_SCS + λ O

    projected:  O = (1/n) Σ_i (ĉ_i·u_i)²,   u_i = ReLU(W s_i) of unit length
    xcov:       O = ‖Ĉᵀ Ŝ / n‖²  (Frobenius)

ĉ, ŝ are the common and the style field of unit length, as rows of Ĉ and Ŝ; W maps the style field
to the width of the common field.

Adapted: only the abstract was available ("orthogonality between common and style subspaces via a
linear projection with ReLU"), so formula and λ are ours. W is a fixed random orthogonal matrix: if
it were trained with the same loss, it would rotate u away from c, and the constraint would have no
effect. A row whose projection is 0 after the ReLU contributes 0. The cross moments of `xcov` are
not centred.
"""

from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scs_supcon.kernels import full_precision
from scs_supcon.kernels.targets import PairTargets
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.base import check_not_negative, check_one_of, flatten_soft_labels
from scs_supcon.nn.head import unit

Orthogonality = Literal["projected", "xcov"]


class OSCSSupCon(SCSSupCon):
    """SCS-SupCon with an orthogonality term.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        orthogonality: "projected" or "xcov", as above.
        weight: λ.
        options: as in `SCSSupCon`.
    """

    adapted = True

    def __init__(
        self,
        common_dim: int | None = None,
        *,
        orthogonality: Orthogonality = "projected",
        weight: float = 1e-2,
        **options: Any,
    ) -> None:
        super().__init__(common_dim, **options)
        check_one_of("orthogonality", orthogonality, ("projected", "xcov"))
        check_not_negative(weight=weight)
        self.orthogonality, self.weight = orthogonality, weight

    def loss_with_soft_labels(
        self, embeddings: Tensor, label_probabilities: Tensor, image_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """As in `SCSSupCon`; orthogonality does not depend on labels."""
        terms = super().loss_with_soft_labels(embeddings, label_probabilities, image_ids)
        rows, _ = flatten_soft_labels(embeddings, label_probabilities)
        return terms | self._orthogonality_term(rows)

    def row_terms(
        self,
        rows: Tensor,
        references: Tensor,
        targets: PairTargets,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As in `SCSSupCon`; orthogonality is computed from all rows, and the same for each."""
        terms = super().row_terms(rows, references, targets, weights)
        shared = self._orthogonality_term(rows)
        return terms | {name: term.expand(len(rows)) for name, term in shared.items()}

    def _terms(self, rows: Tensor, labels: Tensor, *references: Any) -> dict[str, Tensor]:
        """As in `SCSSupCon`; orthogonality is computed from the rows, not from the references."""
        return super()._terms(rows, labels, *references) | self._orthogonality_term(rows)

    def _orthogonality_term(self, rows: Tensor) -> dict[str, Tensor]:
        common, style = (unit(field) for field in self.fields(rows))
        if not self.weight or not style.shape[1]:
            return {}
        if self.gathers:
            common, style = self._joined(common), self._joined(style)
        measure = projected if self.orthogonality == "projected" else xcov
        return {"orthogonality": self.weight * measure(common, style)}


def projected(common: Tensor, style: Tensor) -> Tensor:
    """Return the mean squared cosine between the common field and the projected style field."""
    with full_precision(common):
        w = projection(common.shape[1], style.shape[1]).to(style)
        u = unit(torch.relu(style @ w.T))
        return (common * u).sum(1).square().sum() / max(len(common), 1)


def xcov(common: Tensor, style: Tensor) -> Tensor:
    """Return the squared Frobenius norm of the cross moments of the two fields."""
    with full_precision(common):
        return (common.T @ style / max(len(common), 1)).square().sum()


@lru_cache
def projection(common_dim: int, style_dim: int) -> Tensor:
    """Return W, a random orthogonal matrix that is the same in every run and process."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):  # training may use the cached matrix later
        w = torch.empty(common_dim, style_dim, dtype=torch.float64, device="cpu")
        return nn.init.orthogonal_(w, generator=generator)
