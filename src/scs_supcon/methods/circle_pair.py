"""Circle loss, pair form: far positives and near negatives pull harder (Sun et al., CVPR 2020).

    L = softplus( log Σ_n exp(γ α_n (s_n − m)) + log Σ_p exp(−γ α_p (s_p − (1 − m))) )

    α_p = [1 + m − s_p]₊,   α_n = [s_n + m]₊,   both without gradient

s_p are the cosines of positive, s_n of negative pairs; m = 0.25, γ = 256. `reduction="anchor"`:
the pairs of each row by itself, then the mean over rows, where a row without positives or without
negatives adds 0; "batch": all unordered pairs of the batch at once, as in the reference code. The
two give different values. Losses of 100 and more are normal at the start: clip the gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import one_of, positive
from scs_supcon.methods.shared.joint import JointMethod
from scs_supcon.nn.head import unit

Reduction = Literal["anchor", "batch"]


class CirclePair(JointMethod):
    """Circle loss on the pairs of a batch.

    Args:
        margin: m, between 0 and 1.
        gamma: γ; scale of the logits.
        reduction: "anchor" or "batch", as above.
        gather_across_devices: hold the rows against those of all processes.
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
        positive(gamma=gamma)
        if not 0 <= margin < 1:
            raise UserError(f"margin is {margin}: choose 0 ≤ margin < 1")
        one_of("reduction", reduction, ("anchor", "batch"))
        self.margin, self.gamma, self.reduction = margin, gamma, reduction

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        with torch.autocast(rows.device.type, enabled=False):
            z = unit(rows)
            s = z @ z.T
        same = labels[:, None] == labels[None, :]
        pairs = torch.ones_like(same)
        if self.reduction == "anchor":
            pairs.fill_diagonal_(False)
        else:
            pairs = pairs.triu(1).flatten()[None]
            s, same = s.flatten()[None], same.flatten()[None]
        return {"circle": pair_circle(s, same & pairs, ~same & pairs, self.margin, self.gamma)}


def pair_circle(s: Tensor, positives: Tensor, negatives: Tensor, m: float, gamma: float) -> Tensor:
    """Mean over the rows of `s`; those that lack positives or negatives add 0."""
    some = positives.any(1) & negatives.any(1)
    kept = s[some]
    push = gamma * (kept.detach() + m).clamp_min(0) * (kept - m)
    pull = gamma * (1 + m - kept.detach()).clamp_min(0) * (kept - (1 - m))
    x = push.masked_fill(~negatives[some], -torch.inf).logsumexp(1)
    x = x + (-pull).masked_fill(~positives[some], -torch.inf).logsumexp(1)
    return torch.logaddexp(x, torch.zeros_like(x)).sum() / max(len(s), 1)
