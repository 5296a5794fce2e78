"""PCL: SupCon, and every row drawn to the prototype of its cluster (Li et al., ICLR 2021).

    L = L_SupCon(z; τ) + (1/M) Σ_m L_m

    L_m = −(1/n) Σ_i log [ exp(z_i·c_s/φ_s) / Σ_{j∈{s}∪O_i} exp(z_i·c_j/φ_j) ]

z are the embeddings of unit length. At every epoch after a warm-up, the embeddings that a momentum
twin makes of all training images are clustered by spherical k-means inside each class, into
m ∈ {1, 2, 4} prototypes c of unit length; s is the cluster of i's image, O_i the clusters of
other classes: siblings, clusters of the same class, are left out. A prototype's temperature grows
with the spread of its Z members v,

    φ = Σ_v ‖v − c‖ / (Z ln(Z + 10)),

clusters without spread take the largest; then all are cut to their 10th and 90th percentile and
scaled to a mean of τ. Prototypes and φ have no gradient.

Adapted: the original has no labels, clusters all images together at three sizes of thousands, and
holds queries against a queue of momentum keys; the supervised form is ours. k-means starts from
members far apart, so it needs no seed and no restarts. The warm-up is a tenth of the epochs (there
20 of 200), at least one. The twin's momentum is lower in the first steps.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, Look, TaskInfo, positive, share
from scs_supcon.methods.shared.joint import JointMethod, supcon
from scs_supcon.methods.shared.momentum import MomentumEncoder, like, ready
from scs_supcon.nn.head import unit

SMOOTHING = 10
ITERATIONS = 20


class PCL(JointMethod):
    """SupCon and prototypes inside the classes; `forward` gives the first alone.

    Args:
        temperature: τ, of the pairs and in the mean of the prototypes.
        granularities: m; prototypes per class, one clustering each.
        warmup: share of the epochs before the first clustering.
        momentum: of the twin.
        gather_across_devices: hold the rows against those of all processes.
    """

    adapted = True
    labels: Tensor

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        granularities: tuple[int, ...] = (1, 2, 4),
        warmup: float = 0.1,
        momentum: float = 0.999,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature)
        share(warmup=warmup, momentum=momentum)
        if not granularities or min(granularities) < 1:
            raise UserError(f"granularities are {granularities}: give numbers ≥ 1, at least one")
        self.temperature, self.warmup, self.momentum = temperature, warmup, momentum
        self.granularities = tuple(granularities)
        self.twin: MomentumEncoder | None = None
        self.clusterings: nn.ModuleList | None = None
        self.first = 1

    def setup(self, task: TaskInfo) -> Self:
        """Copy the network and make room for the prototypes."""
        images, classes = len(task.labels), task.classes
        kind = like(task.network).detach()
        self.twin = MomentumEncoder(task.network)
        self.register_buffer("labels", task.labels.to(kind.device, torch.long), persistent=False)
        self.clusterings = nn.ModuleList(
            Clustering(m, classes, images, kind.new_zeros(classes * m, task.embedding_dim))
            for m in self.granularities
        )
        self.first = max(1, round(self.warmup * task.epochs))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"contrast": supcon(rows, labels, self.temperature)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        clusterings = ready(self, self.clusterings)
        seen = self.forward_batch(batch, network)
        indices = self.gather(batch.indices).to(seen.labels.device)
        self._check(indices)
        z, images = unit(seen.embeddings), indices.repeat(self.views)
        drawn = torch.stack([c(z, images) for c in clusterings]).mean()
        return self.compute_loss(seen.embeddings, seen.labels, self.views) | {"prototype": drawn}

    def _check(self, indices: Tensor) -> None:
        if len(indices) and int(indices.max()) >= len(self.labels):
            raise UserError(
                f"batch.indices go up to {int(indices.max())}, the task has {len(self.labels)} "
                "training images: number them from 0, in the order of the task's labels"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Before version 0.2 the labels were collected from the batches and saved.
        state_dict.pop(f"{prefix}known", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def on_epoch_start(self, epoch: int, look: Look) -> None:
        if epoch < self.first:
            return
        rows = unit(look(ready(self, self.twin).network).embeddings).to(self.labels.device)
        for clustering in ready(self, self.clusterings):
            clustering.renew(rows, self.labels, self.temperature)  # type: ignore[operator]

    def after_step(self, network: nn.Module, done: float) -> None:
        twin = ready(self, self.twin)
        twin.follow(network, twin.ramp(self.momentum))


class Clustering(nn.Module):
    """Prototypes of every class: those of class k are the rows k·m … k·m + m − 1.

    Args:
        m: prototypes per class.
        classes: how many there are.
        images: how many there are.
        room: `(classes·m, D)` zeros.
    """

    centres: Tensor
    phi: Tensor  # 0: nobody is in this cluster
    member: Tensor  # which cluster each image is in; −1: in none

    def __init__(self, m: int, classes: int, images: int, room: Tensor) -> None:
        super().__init__()
        self.m, self.classes = m, classes
        self.register_buffer("centres", room)
        self.register_buffer("phi", room.new_zeros(len(room)))
        self.register_buffer("member", torch.full((images,), -1, device=room.device))

    def forward(self, z: Tensor, images: Tensor) -> Tensor:
        """Mean over rows of −log softmax; a row without a cluster adds 0."""
        some = self.member[images] >= 0
        return prototype_loss(
            z[some], self.member[images[some]], self.centres.to(z.dtype), self.phi, self.m
        ) / max(len(z), 1)

    def renew(self, rows: Tensor, labels: Tensor, temperature: float) -> None:
        """Cluster unit rows inside their classes."""
        self.centres.zero_()
        self.member.fill_(-1)
        for k in range(self.classes):
            (inside,) = torch.where(labels == k)
            if len(inside):
                chosen, centres = spherical_kmeans(rows[inside], self.m)
                self.member[inside] = chosen + k * self.m
                self.centres[k * self.m : k * self.m + len(centres)] = centres.to(self.centres)
        (some,) = torch.where(self.member >= 0)
        member = self.member[some]
        far = torch.linalg.vector_norm(rows[some].to(self.centres) - self.centres[member], dim=1)
        self.phi.copy_(concentrations(far, member, len(self.phi), temperature))


def prototype_loss(z: Tensor, own: Tensor, centres: Tensor, phi: Tensor, m: int) -> Tensor:
    """Sum over rows of −log softmax over their own cluster and those of other classes."""
    with torch.autocast(z.device.type, enabled=False):
        everyone = torch.arange(len(centres), device=z.device)
        sibling = (everyone // m == own[:, None] // m) & (everyone != own[:, None])
        empty = phi == 0
        logits = z @ centres.T / torch.where(empty, 1, phi).to(z.dtype)
        logits = logits.masked_fill(sibling | empty, -torch.inf)
        return (logits.logsumexp(1) - logits.gather(1, own[:, None])[:, 0]).sum()


def concentrations(far: Tensor, member: Tensor, clusters: int, temperature: float) -> Tensor:
    """φ of each cluster from its members' distances, scaled to a mean of τ; 0 for empty ones."""
    count = torch.bincount(member, minlength=clusters).to(far.dtype)
    there = count > 0
    spread = torch.zeros_like(count).index_add_(0, member, far)
    spread = spread / (count * (count + SMOOTHING).log()).masked_fill(~there, 1)
    told = (count > 1) & (spread > 0)
    if not bool(told.any()):
        return there.to(far.dtype) * temperature
    spread = torch.where(told, spread, spread[told].max())
    low, high = torch.quantile(spread[there], spread.new_tensor([0.1, 0.9]))
    spread = spread.clamp(low, high)
    return torch.where(there, temperature * spread / spread[there].mean(), 0)


def spherical_kmeans(rows: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return (cluster of each unit row, at most m unit centres), from members far apart."""
    central = rows @ rows.mean(0)
    # Of two members both are as central: the first of equals, not the one rounding favours.
    first = int(torch.where(central >= central.max() - 1e-6)[0][0])
    start = [first]
    nearest = rows @ rows[first]
    while len(start) < min(m, len(rows)):
        start.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, rows @ rows[start[-1]])
    centres = rows[start]
    chosen = (rows @ centres.T).argmax(1)
    for _ in range(ITERATIONS):
        sums = torch.zeros_like(centres).index_add_(0, chosen, rows)
        kept = torch.bincount(chosen, minlength=len(centres)) > 0
        centres = torch.where(kept[:, None], unit(sums), centres)
        again = (rows @ centres.T).argmax(1)
        if torch.equal(again, chosen):
            break
        chosen = again
    return chosen, centres
