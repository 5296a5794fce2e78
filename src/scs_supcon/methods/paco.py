"""PaCo: class centres join the contrast of SupCon (Cui et al., ICCV 2021).

    L = (1/B) Σ_i −[ β log p(i, y_i) + α Σ_{f∈P_i} log p(i, f) ] / (β + α |P_i|)

    p(i, c) = exp(u_ic)/Z_i for a class,   p(i, f) = exp(q_i·f/τ)/Z_i for a row
    Z_i = Σ_c exp(u_ic) + γ Σ_{f≠q_i} exp(q_i·f/τ)

q are the unit embeddings of view 1, the anchors; the rows f are those q, the unit embeddings k that
a momentum twin makes of view 2, and a queue of past k. P_i are the rows of i's class, other than
q_i; u_ic = w_c·h_i + a_c (+ log π_c) are the logits of a linear layer on the features h of view 1,
neither normalised nor divided by τ. k and the queue have no gradient. That layer is the classifier;
`prior` adds the logarithms of the class shares π, for long-tailed sets. It changes balanced sets
too: there it lowers every centre against every row.

Ours: the projection is the one all methods share (the original has batch norm in it), both views
are augmented alike, the queue starts empty rather than with random rows, and the twin's momentum is
lower in the first steps. α and τ are from the authors' ImageNet runs, the queue's length from those
on CIFAR: the images here are few. With α = γ = 0 it is cross-entropy.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, TaskInfo, flatten, not_negative, positive, share
from scs_supcon.methods.shared.momentum import (
    ClassifierMethod,
    MomentumEncoder,
    Queue,
    check_classes,
    like,
    needs_images,
    ready,
)
from scs_supcon.nn.head import unit


class PaCo(ClassifierMethod):
    """Parametric contrastive learning.

    Args:
        temperature: τ; similarities are divided by it.
        alpha: α; weight of each positive row. β and γ are 1 in all runs the authors released.
        beta: β; weight of the own centre.
        gamma: γ; how much rows count in the denominator.
        queue: how many past keys are kept.
        momentum: of the twin.
        prior: whether class shares shift the centres' logits.
        gather_across_devices: hold the rows against those of all processes.
    """

    log_prior: Tensor

    def __init__(
        self,
        temperature: float = 0.2,
        *,
        alpha: float = 0.05,
        beta: float = 1.0,
        gamma: float = 1.0,
        queue: int = 1024,
        momentum: float = 0.999,
        prior: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature)
        not_negative(alpha=alpha, beta=beta, gamma=gamma, queue=queue)
        share(momentum=momentum)
        if alpha + beta == 0:
            raise UserError("alpha and beta are both 0: nothing would be learned")
        self.temperature, self.alpha, self.beta, self.gamma = temperature, alpha, beta, gamma
        self.size, self.momentum, self.prior = queue, momentum, prior
        self.twin: MomentumEncoder | None = None
        self.queue: Queue | None = None
        self._fresh: tuple[Tensor, Tensor] | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Make the classifier, copy the network, set up an empty queue."""
        super().setup(task)
        self.twin = MomentumEncoder(task.network)
        self.queue = Queue(self.size, task.embedding_dim, like(task.network).detach())
        counts = torch.tensor(task.class_counts, dtype=torch.float64)
        shift = (counts / counts.sum()).log() if self.prior else torch.zeros_like(counts)
        self.register_buffer("log_prior", shift.to(like(task.network).detach()))
        return self

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        raise needs_images(self, "contrasts the network with its twin and its classifier")

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        twin, queue = ready(self, self.twin), ready(self, self.queue)
        first, second = batch.images.chunk(2)
        output = network(first)
        q, labels = flatten(output.embeddings, batch.labels)
        q, labels = unit(self.gather(q)), self.gather(labels)
        keys = unit(self.gather(flatten(twin(second).embeddings, batch.labels)[0]))
        self._fresh = (keys, labels)
        old, old_labels = queue.held()
        rows = torch.cat([keys, old.to(keys.dtype)])
        centres = self.logits(self.gather(output.features)) + self.log_prior
        check_classes(labels, centres.shape[1])
        same = labels[:, None] == torch.cat([labels, labels, old_labels])
        with torch.autocast(q.device.type, enabled=False):
            s = q @ torch.cat([q, rows]).T / self.temperature
        return {"contrast": parametric(centres, s, labels, same, self.weights)}

    @property
    def weights(self) -> tuple[float, float, float]:
        return self.alpha, self.beta, self.gamma

    def after_step(self, network: nn.Module, done: float) -> None:
        twin, queue = ready(self, self.twin), ready(self, self.queue)
        if self._fresh is not None:
            queue.push(*self._fresh)
            self._fresh = None
        twin.follow(network, twin.ramp(self.momentum))


def parametric(
    centres: Tensor,
    s: Tensor,
    labels: Tensor,
    same: Tensor,
    weights: tuple[float, float, float],
) -> Tensor:
    """The loss of B anchors.

    Args:
        centres: `(B, C)` logits of the classes.
        s: `(B, m)` logits of the rows, of which the first B are the anchors.
        labels: `(B,)`.
        same: `(B, m)` which rows are of the anchor's class.
        weights: (α, β, γ).
    """
    alpha, beta, gamma = weights
    with torch.autocast(s.device.type, enabled=False):
        own = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
        positives = same & ~own
        count = positives.sum(1).to(s.dtype)
        log_gamma = math.log(gamma) if gamma else -math.inf
        columns = torch.cat([centres, s.masked_fill(own, -torch.inf) + log_gamma], 1)
        log_z = columns.logsumexp(1)
        centre = centres.gather(1, labels[:, None])[:, 0] - log_z
        rows = s.masked_fill(~positives, 0).sum(1) - count * log_z
        loss = -(beta * centre + alpha * rows) / (beta + alpha * count)
        return loss.sum() / max(len(loss), 1)
