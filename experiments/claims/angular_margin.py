"""SCS-SupCon with an angular margin m: positive pairs have the similarity ψ(θ) instead of cos θ.

    ψ(θ) = cos(θ + m) for θ ≤ π − m,   −2 − cos(θ + m) beyond, so that ψ decreases everywhere

A pair (u, u) has no margin, and b is solved on these similarities. It did not help
(docs/paper_choices.md, section 30), so the package does not have this option.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon.kernels import Pairs, solve_bias
from scs_supcon.methods.scs_supcon import SCSSupCon


class AngularMargin(SCSSupCon):
    """SCS-SupCon whose positive pairs have to be closer by the angle `margin`."""

    def __init__(
        self, common_dim: int | None = None, *, margin: float = 0.1, **options: Any
    ) -> None:
        super().__init__(common_dim, **options)
        self.margin = margin

    def terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """Return the contrast of a batch with labels, from whole matrices."""
        c, _ = self.sides(rows, pairs, style=False)
        labels, t = pairs.labels, float(self.t)
        r = c.rows @ c.rows.T
        same = labels[:, None] == labels
        others = same & ~torch.eye(len(same), dtype=torch.bool)
        r = torch.where(others, with_margin(r, self.margin), r)
        b = solve_bias((t * r).detach(), int(same.sum()))
        self.store_bias(torch.tensor([b], dtype=torch.float64))
        a = t * r - b
        return {"contrast": F.softplus(torch.where(same, -a, a)).sum() / same.sum()}


def with_margin(r: Tensor, m: float) -> Tensor:
    """Return ψ of similarities; the gradient of equal and of opposite rows is finite."""
    sine = (1 - r * r).clamp_min(1e-6).sqrt()
    shifted = r * math.cos(m) - sine * math.sin(m)
    return torch.where(r >= -math.cos(m), shifted, -2 - shifted)
