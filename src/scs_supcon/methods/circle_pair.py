"""Circle loss, pair form: distant positive and close negative pairs weigh more (Sun et al., 2020).

    L = softplus( log Σ_n exp(γ α_n (s_n − m)) + log Σ_p exp(−γ α_p (s_p − (1 − m))) )

    α_p = [1 + m − s_p]₊,   α_n = [s_n + m]₊,   both without gradient

s_p are the cosines of positive pairs, s_n those of negative pairs; m = 0.25, γ = 256.
`reduction="anchor"` computes L from the pairs of each row and averages over the rows; a row without
positives or without negatives contributes 0. `reduction="batch"` computes L once, from all
unordered pairs of the batch, as the reference code does. The two values differ. Initial losses of
100 and more are normal: clip the gradient. Published at CVPR 2020.
"""

from typing import Literal

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision, positives
from scs_supcon.methods.shared.base import check_one_of, check_positive
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.nn.head import unit

Reduction = Literal["anchor", "batch"]


class CirclePair(JointMethod):
    """Circle loss on the pairs of a batch.

    Args:
        margin: m, between 0 and 1.
        gamma: γ, the scale of the logits.
        reduction: "anchor" or "batch", as above.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    def __init__(
        self,
        *,
        margin: float = 0.25,
        gamma: float = 256.0,
        reduction: Reduction = "anchor",
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(gamma=gamma)
        if not 0 <= margin < 1:
            raise UserError(f"margin must be at least 0 and below 1, got {margin}")
        check_one_of("reduction", reduction, ("anchor", "batch"))
        self.margin, self.gamma, self.reduction = margin, gamma, reduction

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        with full_precision(rows):
            z = unit(rows)
            s = z @ z.T
        same, different = positives(labels), labels[:, None] != labels
        if self.reduction == "batch":  # one row of all unordered pairs
            s = s.flatten()[None]
            same, different = same.triu(1).flatten()[None], different.triu(1).flatten()[None]
        return {"circle": pair_circle(s, same, different, self.margin, self.gamma)}


def pair_circle(s: Tensor, same: Tensor, different: Tensor, m: float, gamma: float) -> Tensor:
    """Return the mean loss of the rows of `s`; rows without positives or negatives contribute 0.

    Args:
        s: similarities.
        same: mask of the positive pairs.
        different: mask of the negative pairs.
        m: margin.
        gamma: scale.
    """
    complete = same.any(1) & different.any(1)
    s_complete = s[complete]
    push = gamma * (s_complete.detach() + m).clamp_min(0) * (s_complete - m)
    pull = gamma * (1 + m - s_complete.detach()).clamp_min(0) * (s_complete - (1 - m))
    x = push.masked_fill(~different[complete], -torch.inf).logsumexp(1)
    x = x + (-pull).masked_fill(~same[complete], -torch.inf).logsumexp(1)
    return torch.logaddexp(x, torch.zeros_like(x)).sum() / max(len(s), 1)
