"""DACL: SupCon with adversarial margins, one per class.

    L = −(1/n) Σ_i log softmax(W h_i + a)_{y_i} + λ (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} L_ip

    L_ip = −log [ e_ip / (e_ip + Σ_{a≠i,p} exp(z_i·z_a/τ)) ],   e_ip = exp((z_i·z_p − m_{y_i})/τ)

z are the unit embeddings, h the features. All margins m start equal; after each step
m ← Π(m + η g), gradient ascent, where g is the derivative of the second sum (without λ) and Π
projects onto 0 ≤ m ≤ 0.5 with the mean of the start. g is never negative: without a fixed mean
every margin would rise to the cap. m = 0 is SupCon.

Adapted: the original (cited as xu2025few) could not be found; the paper describes it as "dynamic
adversarial margins for contrastive learning", in one stage. The whole formula is ours.
"""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision, positives
from scs_supcon.methods.shared.base import TaskInfo, check_not_negative, check_positive
from scs_supcon.methods.shared.classifier import ClassifierMethod, check_labels
from scs_supcon.nn.head import unit

EMPTY_SUM = 1e-300  # keeps the logarithm of an empty sum finite


class DACL(ClassifierMethod):
    """SupCon with adversarial margins, and cross-entropy; `forward` returns λ × the former.

    Args:
        temperature: τ; similarities are divided by it.
        weight: λ.
        margin: initial margin of every class; the mean of the margins stays at this value.
        cap: upper limit of a margin.
        rate: η, the step size of the gradient ascent.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    adapted = True
    margins: Tensor | None

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        weight: float = 1.0,
        margin: float = 0.1,
        cap: float = 0.5,
        rate: float = 0.01,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(temperature=temperature)
        check_not_negative(weight=weight, margin=margin, rate=rate)
        if not margin <= cap <= 2:
            raise UserError(f"cap must be between margin ({margin}) and 2, got {cap}")
        self.temperature, self.weight, self.margin = temperature, weight, margin
        self.cap, self.rate = cap, rate
        self.register_buffer("margins", None)
        self._slope: Tensor | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier and a margin for every class."""
        super().setup(task)
        assert self.classifier is not None
        self.margins = torch.full_like(self.classifier.weight.detach()[:, 0], self.margin)
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        if self.margins is None:
            margins = torch.full_like(rows.detach()[:, 0], self.margin)
        else:
            check_labels(labels, len(self.margins))
            margins = self.margins[labels].to(rows.dtype)
        contrast, slope = margin_contrast(unit(rows), labels, margins, self.temperature)
        if self.margins is not None:
            self._slope = torch.zeros_like(self.margins).index_add_(
                0, labels, slope.to(self.margins.dtype)
            )
        return {"contrast": self.weight * contrast}

    def after_step(self, network: nn.Module, progress: float) -> None:
        if self._slope is not None and self.margins is not None:
            raised = self.margins + self.rate * self._slope
            self.margins = project(raised, self.margin, self.cap)
            self._slope = None

    def scalars(self) -> dict[str, float]:
        if self.margins is None:
            return {}
        return {
            "least_margin": float(self.margins.min()),
            "largest_margin": float(self.margins.max()),
        }


def margin_contrast(
    z: Tensor, labels: Tensor, margins: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the contrast and its derivative with respect to the margin of each row (detached)."""
    with full_precision(z):
        same = positives(labels)
        anchors = same.any(1)
        same = same[anchors]
        self_pairs = torch.eye(len(z), dtype=torch.bool, device=z.device)[anchors]
        weights = same.double() / (same.sum(1, keepdim=True) * max(len(z), 1))
        s = (z[anchors] @ z.T / temperature).masked_fill(self_pairs, -torch.inf).double()
        s = s - s.detach().logsumexp(1, keepdim=True)
        others = _sums_of_others(s.exp())  # float64: terms far below the largest do not underflow
        pull = s - margins[anchors, None] / temperature
        logits = (pull - others.clamp_min(EMPTY_SUM).log()).masked_fill(~same, 0)
        slope = torch.zeros_like(margins)
        with torch.no_grad():
            slope[anchors] = ((weights * torch.sigmoid(-logits)).sum(1) / temperature).to(slope)
        return -(weights * F.logsigmoid(logits)).sum().to(z.dtype), slope


def _sums_of_others(e: Tensor) -> Tensor:
    """Return, for each entry, the sum of the others in its row; subtraction would lose digits."""
    before = F.pad(e.cumsum(1)[:, :-1], (1, 0))
    after = F.pad(e.flip(1).cumsum(1)[:, :-1], (1, 0)).flip(1)
    return before + after


def project(margins: Tensor, mean: float, cap: float) -> Tensor:
    """Return the nearest point with 0 ≤ m ≤ cap and this mean: shift all equally, then clamp."""
    low, high = float(margins.min()) - cap, float(margins.max())
    for _ in range(100):
        shift = (low + high) / 2
        if float((margins.double() - shift).clamp(0, cap).mean()) > mean:
            low = shift
        else:
            high = shift
    return (margins.double() - high).clamp(0, cap).to(margins.dtype)
