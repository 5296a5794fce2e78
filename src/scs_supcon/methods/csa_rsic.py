"""CSA-RSIC: SupCon plus the distance between the two views of an image.

    L = L_SupCon(z; τ) + λ (1/B) Σ_i ‖ẑ_i¹ − ẑ_i²‖²

ẑ¹, ẑ² are the embeddings of an image's two views, at unit length: the second term is 2 − 2 cos.
λ = 0 is SupCon.

Adapted: the original (Cheng, Liu, Mao, Wu & Cambria, IEEE GRSL 2025) captions remote-sensing
images; only its abstract was available. We keep its two losses, contrast and consistency, with two
views instead of image and text. Its modules for channel weights and for fusing scales are left out,
because no other method here has additional modules.
"""

from torch import Tensor

from scs_supcon.methods.shared.base import check_not_negative, check_positive
from scs_supcon.methods.shared.joint import JointMethod, supcon, two_views
from scs_supcon.nn.head import unit


class CSARSIC(JointMethod):
    """SupCon and view consistency; `forward` expects `(B, 2, D)` embeddings.

    Args:
        temperature: τ; similarities are divided by it.
        weight: λ.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    adapted = True

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        weight: float = 0.1,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(temperature=temperature)
        check_not_negative(weight=weight)
        self.temperature, self.weight = temperature, weight

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        first, second = two_views(self, unit(rows), views)
        distance = (first - second).square().sum() / max(len(first), 1)
        return {
            "contrast": supcon(rows, labels, self.temperature),
            "consistency": self.weight * distance,
        }
