"""CSTCN: SupCon, and the cluster of a view predicted from the other view.

    L = L_SupCon(z; τ) + λ L_swap

    L_swap = −(1/2B) Σ_i Σ_k [ q_ik² log softmax(C z_i¹/τ_p)_k + q_ik¹ log softmax(C z_i²/τ_p)_k ]

z¹, z² are the unit embeddings of an image's two views, C holds K learnable prototypes of unit
length, and q¹, q² are codes without gradient: softmax-like shares exp(C z/ε), balanced by three
rounds of Sinkhorn so that every prototype gets about the same share of the batch. A batch smaller
than K is balanced together with a queue of past embeddings. K = max(300, 3 per class). The
prototypes rest during the first epoch. `alternate` takes turns instead of the sum: SupCon on even
steps, λ L_swap on odd ones.

Adapted: the original (Wang et al., "Learning Representations by Contrastive Spatio-Temporal
Clustering for Skeleton-Based Action Recognition", IEEE TMM 2024) is self-supervised, for skeleton
sequences; only its abstract could be read. Kept are online clustering by optimal transport and
prediction across two looks at one thing; its priors over time and its two modalities have no
counterpart in images. SupCon and the formula above are ours, after SwAV.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.methods.shared.base import Look, TaskInfo, not_negative, positive
from scs_supcon.methods.shared.joint import JointMethod, supcon, two_views
from scs_supcon.methods.shared.momentum import Queue, like, ready
from scs_supcon.nn.head import unit

CODE_SHARPNESS = 0.05  # ε
ROUNDS = 3


class CSTCN(JointMethod):
    """SupCon and swapped cluster prediction; `forward` takes `(B, 2, D)`.

    Args:
        temperature: τ of SupCon.
        weight: λ.
        prototypes: K; 0: the larger of 300 and three per class.
        prototype_temperature: τ_p.
        queue: how many past images join a batch smaller than K.
        alternate: take turns, as the original does with its two losses.
        gather_across_devices: hold the rows against those of all processes.
    """

    adapted = True
    step: Tensor
    resting: Tensor

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        weight: float = 1.0,
        prototypes: int = 0,
        prototype_temperature: float = 0.1,
        queue: int = 3840,
        alternate: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature, prototype_temperature=prototype_temperature)
        not_negative(weight=weight, prototypes=prototypes, queue=queue)
        self.temperature, self.prototype_temperature = temperature, prototype_temperature
        self.weight, self.count, self.size = weight, prototypes, queue
        self.alternate = alternate
        self.prototypes: nn.Parameter | None = None
        self.queue: Queue | None = None
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("resting", torch.zeros((), dtype=torch.bool))
        self._fresh: Tensor | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Draw the prototypes, set up an empty queue."""
        count = self.count or max(300, 3 * task.classes)
        kind = like(task.network).detach()
        self.prototypes = nn.Parameter(unit(torch.randn(count, task.embedding_dim).to(kind)))
        self.queue = Queue(self.size, 2 * task.embedding_dim, kind)
        return self

    def on_epoch_start(self, epoch: int, look: Look) -> None:
        self.resting.fill_(epoch == 0)

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        first, second = two_views(self, unit(rows), views)
        turn = int(self.step) % 2 if self.alternate else None
        parts = {"contrast": rows.new_zeros(()), "swap": rows.new_zeros(())}
        if turn != 1:
            parts["contrast"] = supcon(rows, labels, self.temperature)
        if turn != 0:
            parts["swap"] = self.weight * self._swap(first, second)
        return parts

    def after_step(self, network: nn.Module, done: float) -> None:
        prototypes, queue = ready(self, self.prototypes), ready(self, self.queue)
        with torch.no_grad():
            prototypes.copy_(unit(prototypes))
        if self._fresh is not None:
            queue.push(self._fresh)
            self._fresh = None
        self.step += 1

    def _swap(self, first: Tensor, second: Tensor) -> Tensor:
        prototypes = ready(self, self.prototypes)
        c = unit(prototypes.detach() if self.resting else prototypes).to(first.dtype)
        past_first, past_second = self._past(first, second)
        with torch.autocast(first.device.type, enabled=False):
            return swapped(
                (first @ c.T, second @ c.T),
                (codes(first, past_first, c), codes(second, past_second, c)),
                self.prototype_temperature,
            )

    def _past(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Past embeddings of both views, for a batch with fewer images than prototypes."""
        queue, prototypes = ready(self, self.queue), ready(self, self.prototypes)
        if len(first) >= len(prototypes):
            return first[:0], second[:0]
        self._fresh = torch.cat([first, second], 1).detach()
        past_first, past_second = queue.held()[0].to(first.dtype).chunk(2, 1)
        return past_first, past_second


def swapped(scores: tuple[Tensor, Tensor], codes: tuple[Tensor, Tensor], tau: float) -> Tensor:
    """Cross-entropy of each view's code and the other view's softmax."""
    one = (codes[1] * (scores[0] / tau).log_softmax(1)).sum()
    two = (codes[0] * (scores[1] / tau).log_softmax(1)).sum()
    return -(one + two) / (2 * max(len(scores[0]), 1))


@torch.no_grad()
def codes(rows: Tensor, past: Tensor, prototypes: Tensor) -> Tensor:
    """Codes of the rows, balanced together with the past ones."""
    scores = torch.cat([past, rows]) @ prototypes.T
    return sinkhorn(scores / CODE_SHARPNESS)[len(past) :]


@torch.no_grad()
def sinkhorn(logits: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Balance exp(logits): columns get like sums, then every row sums to 1.

    Cosines over ε differ by at most 40, so that no exponential here is too small for float32.
    """
    if not len(logits):
        return logits
    share = torch.exp(logits - logits.max())
    row = share.new_ones(len(share))
    for _ in range(rounds):
        column = 1 / (row @ share)
        row = 1 / (share @ column)
    return share * row[:, None] * column
