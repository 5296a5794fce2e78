"""CSTCN: SupCon plus the prediction of the cluster of one view from the other view.

    L = L_SupCon(z; τ) + λ L_swap

    L_swap = −(1/2B) Σ_i Σ_k [ q_ik² log softmax(C z_i¹/τ_p)_k + q_ik¹ log softmax(C z_i²/τ_p)_k ]

z¹, z² are the unit embeddings of an image's two views, C holds K learnable prototypes of unit
length, and q¹, q² are codes without gradient: exp(C z/ε), balanced by three Sinkhorn iterations so
that every prototype gets about the same share of the batch. A batch smaller than K is balanced
together with a queue of past embeddings. K = max(300, 3 per class). The prototypes are frozen
during the first epoch. With `alternate`, even steps use only SupCon and odd steps only λ L_swap.

Adapted: the original (Wang et al., "Learning Representations by Contrastive Spatio-Temporal
Clustering for Skeleton-Based Action Recognition", IEEE TMM 2024) is self-supervised, for skeleton
sequences; only its abstract was available. We keep online clustering by optimal transport and
prediction across two views; its temporal priors and its two modalities have no counterpart in
images. SupCon and the formula above, which follows SwAV, are ours.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.kernels import full_precision
from scs_supcon.methods.shared.base import (
    EncodeTrainingSet,
    TaskInfo,
    after_setup,
    check_not_negative,
    check_positive,
    like,
)
from scs_supcon.methods.shared.joint import JointMethod, supcon, two_views
from scs_supcon.methods.shared.queue import Queue
from scs_supcon.nn.head import unit

EPSILON = 0.05  # ε: sharpness of the codes
SINKHORN_ITERATIONS = 3


class CSTCN(JointMethod):
    """SupCon and swapped cluster prediction; `forward` expects `(B, 2, D)` embeddings.

    Args:
        temperature: τ of SupCon.
        weight: λ.
        prototypes: K; 0 means the larger of 300 and three per class.
        prototype_temperature: τ_p.
        queue: number of past images that a batch smaller than K is balanced with.
        alternate: alternate between the two losses, as the original does.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    adapted = True
    step: Tensor
    resting: Tensor  # whether the prototypes are frozen

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
        check_positive(temperature=temperature, prototype_temperature=prototype_temperature)
        check_not_negative(weight=weight, prototypes=prototypes, queue=queue)
        self.temperature, self.prototype_temperature = temperature, prototype_temperature
        self.weight, self.prototype_count, self.queue_size = weight, prototypes, queue
        self.alternate = alternate
        self.prototypes: nn.Parameter | None = None
        self.queue: Queue | None = None
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("resting", torch.zeros((), dtype=torch.bool))
        self._to_push: Tensor | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Create random prototypes and an empty queue."""
        count = self.prototype_count or max(300, 3 * task.classes)
        weight = like(task.network).detach()
        self.prototypes = nn.Parameter(unit(torch.randn(count, task.embedding_dim).to(weight)))
        self.queue = Queue(self.queue_size, 2 * task.embedding_dim, weight)
        return self

    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        self.resting.fill_(epoch == 0)

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        first, second = two_views(self, unit(rows), views)
        turn = int(self.step) % 2 if self.alternate else None
        terms = {"contrast": rows.new_zeros(()), "swap": rows.new_zeros(())}
        if turn != 1:
            terms["contrast"] = supcon(rows, labels, self.temperature)
        if turn != 0:
            terms["swap"] = self.weight * self._swap(first, second)
        return terms

    def after_step(self, network: nn.Module, progress: float) -> None:
        prototypes, queue = after_setup(self, self.prototypes), after_setup(self, self.queue)
        with torch.no_grad():
            prototypes.copy_(unit(prototypes))
        if self._to_push is not None:
            queue.push(self._to_push)
            self._to_push = None
        self.step += 1

    def _swap(self, first: Tensor, second: Tensor) -> Tensor:
        prototypes = after_setup(self, self.prototypes)
        c = unit(prototypes.detach() if self.resting else prototypes).to(first.dtype)
        past_first, past_second = self._past_embeddings(first, second)
        with full_precision(first):
            return swap_loss(
                (first @ c.T, second @ c.T),
                (codes(first, past_first, c), codes(second, past_second, c)),
                self.prototype_temperature,
            )

    def _past_embeddings(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return past embeddings of both views if the batch has fewer images than prototypes."""
        queue, prototypes = after_setup(self, self.queue), after_setup(self, self.prototypes)
        if len(first) >= len(prototypes):
            return first[:0], second[:0]
        self._to_push = torch.cat([first, second], 1).detach()
        past_first, past_second = queue.contents()[0].to(first.dtype).chunk(2, 1)
        return past_first, past_second


def swap_loss(scores: tuple[Tensor, Tensor], codes: tuple[Tensor, Tensor], tau: float) -> Tensor:
    """Return the cross-entropy between each view's code and the softmax of the other view."""
    first = (codes[1] * (scores[0] / tau).log_softmax(1)).sum()
    second = (codes[0] * (scores[1] / tau).log_softmax(1)).sum()
    return -(first + second) / (2 * max(len(scores[0]), 1))


@torch.no_grad()
def codes(rows: Tensor, past: Tensor, prototypes: Tensor) -> Tensor:
    """Return the codes of the rows, balanced together with those of past rows."""
    scores = torch.cat([past, rows]) @ prototypes.T
    return sinkhorn(scores / EPSILON)[len(past) :]


@torch.no_grad()
def sinkhorn(logits: Tensor, iterations: int = SINKHORN_ITERATIONS) -> Tensor:
    """Return exp(logits), balanced: all columns have nearly equal sums and every row sums to 1.

    Cosines divided by ε differ by at most 40, so no exponential underflows in float32.
    """
    if not len(logits):
        return logits
    share = torch.exp(logits - logits.max())
    row = share.new_ones(len(share))
    for _ in range(iterations):
        column = 1 / (row @ share)
        row = 1 / (share @ column)
    return share * row[:, None] * column
