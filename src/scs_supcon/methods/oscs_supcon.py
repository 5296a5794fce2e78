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

from scs_supcon.kernels import Pairs, full_precision, join_rows
from scs_supcon.methods.scs_supcon import SCSSupCon
from scs_supcon.methods.shared.base import check_not_negative, check_one_of
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

    def terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """As in `SCSSupCon`; orthogonality is computed from all rows, and the same for each."""
        terms = super().terms(rows, pairs)
        common, style = (unit(field) for field in self.fields(rows))
        if not self.weight or not style.shape[1]:
            return terms
        if pairs.gather:
            common, style = join_rows(common, group=self.group), join_rows(style, group=self.group)
        measure = projected if self.orthogonality == "projected" else xcov
        value = self.weight * measure(common, style)
        return terms | {"orthogonality": value.expand(len(rows)) if pairs.per_row else value}


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
