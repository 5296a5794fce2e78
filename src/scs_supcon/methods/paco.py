"""PaCo: SupCon with learnable class centres as additional positives (Cui et al., ICCV 2021).

    L = (1/B) Σ_i −[ β log p(i, y_i) + α Σ_{f∈P_i} log p(i, f) ] / (β + α |P_i|)

    p(i, c) = exp(u_ic)/Z_i for a class,   p(i, f) = exp(q_i·f/τ)/Z_i for a row
    Z_i = Σ_c exp(u_ic) + γ Σ_{f≠q_i} exp(q_i·f/τ)

q are the unit embeddings of view 1, the anchors. The rows f are q itself, the unit embeddings k of
view 2 by a momentum encoder, and a queue of past k. P_i are the rows of i's class other than q_i.
u_ic = w_c·h_i + a_c (+ log π_c) are the logits of a linear layer on the features h of view 1,
neither normalised nor divided by τ; this layer is the classifier. k and the queue have no gradient.
`prior` adds the logarithms of the class frequencies π, for long-tailed datasets. It also changes
the loss of balanced datasets: there it lowers every centre relative to every row.

With α = γ = 0 this is cross-entropy. β and γ are 1 in all runs that the authors published.

Differences from the original: all methods share one projection head (the original's has batch
norm), both views are augmented in the same way, the queue starts empty rather than with random
rows, and the momentum is lower in the first steps. τ is from the authors' ImageNet runs, the length
of the queue is from their CIFAR runs, because the datasets here are small.

α follows the number of classes C and the length Q of the queue. The queue has about Q/C positives
for an anchor, so that the centre has the weight β/(β + α Q/C). A fixed α would give it less weight
the fewer classes there are. α = "auto" keeps the ratio of the authors' ImageNet runs, where
α = 0.05, Q = 8192 and C = 1000:

    α = min(1, 0.41 C/Q);   0.05 without a queue
"""

import math
from typing import Literal, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision
from scs_supcon.methods.shared.base import (
    Batch,
    TaskInfo,
    after_setup,
    check_not_negative,
    check_one_of,
    check_positive,
    check_share,
    flatten,
    like,
    needs_images,
)
from scs_supcon.methods.shared.classifier import ClassifierMethod, check_labels
from scs_supcon.methods.shared.momentum import add_momentum_encoder, momentum_encoder
from scs_supcon.methods.shared.queue import Queue
from scs_supcon.nn.head import unit

RATIO = 0.05 * 8192 / 1000  # α Q/C of the authors' ImageNet runs


class PaCo(ClassifierMethod):
    """Parametric contrastive learning.

    Args:
        temperature: τ; similarities are divided by it.
        alpha: α, weight of each positive row; "auto": from the number of classes and the queue.
        beta: β, weight of the class centre.
        gamma: γ, weight of the rows in the denominator.
        queue: length of the queue of past keys.
        momentum: momentum of the momentum encoder.
        prior: whether class frequencies shift the logits of the centres.
        gather_across_devices: use the pairs of the rows of all processes.
    """

    log_prior: Tensor

    def __init__(
        self,
        temperature: float = 0.2,
        *,
        alpha: float | Literal["auto"] = "auto",
        beta: float = 1.0,
        gamma: float = 1.0,
        queue: int = 1024,
        momentum: float = 0.999,
        prior: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        check_positive(temperature=temperature)
        if isinstance(alpha, str):
            check_one_of("alpha", alpha, ("auto",))
        else:
            check_not_negative(alpha=alpha)
        check_not_negative(beta=beta, gamma=gamma, queue=queue)
        check_share(momentum=momentum)
        if alpha == beta == 0:
            raise UserError("alpha and beta must not both be 0: nothing would be learnt")
        self.temperature, self.alpha, self.beta, self.gamma = temperature, alpha, beta, gamma
        self.queue_size, self.momentum, self.prior = queue, momentum, prior
        self.queue: Queue | None = None
        self._to_push: tuple[Tensor, Tensor] | None = None

    def setup(self, task: TaskInfo) -> Self:
        """Create the classifier, copy the network and create an empty queue."""
        super().setup(task)
        if self.alpha == "auto":
            self.alpha = alpha_for(task.classes, self.queue_size)
        weight = like(task.network).detach()
        add_momentum_encoder(self, task.network)
        self.queue = Queue(self.queue_size, task.embedding_dim, weight)
        counts = torch.tensor(task.class_counts, dtype=torch.float64)
        shift = (counts / counts.sum()).log() if self.prior else torch.zeros_like(counts)
        self.register_buffer("log_prior", shift.to(weight))
        return self

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        raise needs_images(self, "contrasts the network with its momentum encoder and classifier")

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        average, queue = momentum_encoder(self), after_setup(self, self.queue)
        first, second = batch.images.chunk(2)
        output = network(first)
        q, labels = flatten(output.embeddings, batch.labels)
        q, labels = unit(self.gather(q)), self.gather(labels)
        keys = unit(self.gather(flatten(average(second).embeddings, batch.labels)[0]))
        self._to_push = (keys, labels)
        past, past_labels = queue.contents()
        rows = torch.cat([keys, past.to(keys.dtype)])
        centres = self.logits(self.gather(output.features)) + self.log_prior
        check_labels(labels, centres.shape[1])
        same = labels[:, None] == torch.cat([labels, labels, past_labels])
        with full_precision(q):
            s = q @ torch.cat([q, rows]).T / self.temperature
        weights = float(self.alpha), self.beta, self.gamma
        return {"contrast": parametric(centres, s, labels, same, weights)}

    def after_step(self, network: nn.Module, progress: float) -> None:
        average, queue = momentum_encoder(self), after_setup(self, self.queue)
        if self._to_push is not None:
            queue.push(*self._to_push)
            self._to_push = None
        average.update(network, average.warmup_momentum(self.momentum))


def alpha_for(classes: int, queue: int) -> float:
    """Return α with which the positives of a full queue weigh as in the authors' ImageNet runs."""
    return min(1.0, RATIO * classes / queue) if queue else 0.05


def parametric(
    centres: Tensor,
    s: Tensor,
    labels: Tensor,
    same: Tensor,
    weights: tuple[float, float, float],
) -> Tensor:
    """Return the loss of B anchors.

    Args:
        centres: `(B, C)` logits of the classes.
        s: `(B, m)` logits of the rows; the first B rows are the anchors.
        labels: `(B,)`.
        same: `(B, m)` mask of the rows of the anchor's class.
        weights: (α, β, γ).
    """
    alpha, beta, gamma = weights
    with full_precision(s):
        self_pairs = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
        positives = same & ~self_pairs
        count = positives.sum(1).to(s.dtype)
        log_gamma = math.log(gamma) if gamma else -math.inf
        columns = torch.cat([centres, s.masked_fill(self_pairs, -torch.inf) + log_gamma], 1)
        log_z = columns.logsumexp(1)
        centre = centres.gather(1, labels[:, None])[:, 0] - log_z
        rows = s.masked_fill(~positives, 0).sum(1) - count * log_z
        loss = -(beta * centre + alpha * rows) / (beta + alpha * count)
        return loss.sum() / max(len(loss), 1)
