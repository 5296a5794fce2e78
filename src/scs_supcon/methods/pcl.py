"""PCL: SupCon plus the contrast of each row with cluster prototypes (Li et al., ICLR 2021).

    L = L_SupCon(z; τ) + (1/M) Σ_m L_m

    L_m = −(1/n) Σ_i log [ exp(z_i·c_s/φ_s) / Σ_{j∈{s}∪O_i} exp(z_i·c_j/φ_j) ]

z are the unit embeddings. At the start of every epoch after a warm-up, a momentum encoder embeds
all training images, and spherical k-means splits each class into m ∈ {1, 2, 4} clusters with
prototypes c of unit length. s is the cluster of i's image, O_i the clusters of other classes;
other clusters of the same class are left out. The temperature of a prototype grows with the spread
of its Z members v around their mean v̄, which has a length below 1,

    φ = Σ_v ‖v − v̄‖ / (Z ln(Z + 10)),

clusters without spread take the largest φ; then all are clamped to their 10th and 90th percentile
and scaled to a mean of τ. Prototypes and φ have no gradient.

Adapted: the original has no labels, clusters all images together into thousands of clusters at
three sizes, and contrasts queries with a queue of momentum keys; the supervised form is ours.
k-means starts from members that are far apart, so it needs neither a seed nor restarts. The warm-up
is a tenth of the epochs (20 of 200 in the original), at least one. The momentum is lower in the
first steps.
"""

from typing import Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import full_precision
from scs_supcon.methods.shared.base import (
    Batch,
    EncodeTrainingSet,
    TaskInfo,
    after_setup,
    check_positive,
    check_share,
    like,
)
from scs_supcon.methods.shared.joint import JointMethod, supcon
from scs_supcon.methods.shared.momentum import add_momentum_encoder, momentum_encoder
from scs_supcon.nn.head import unit

SMOOTHING = 10
KMEANS_ITERATIONS = 20


class PCL(JointMethod):
    """SupCon and prototypes within the classes; `forward` returns SupCon alone.

    Args:
        temperature: τ of the pairs, and the mean of the prototypes' temperatures.
        granularities: numbers m of prototypes per class, each with a separate clustering.
        warmup: share of the epochs before the first clustering.
        momentum: momentum of the momentum encoder.
        gather_across_devices: use the pairs of the rows of all processes.
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
        check_positive(temperature=temperature)
        check_share(warmup=warmup, momentum=momentum)
        if not granularities or min(granularities) < 1:
            raise UserError(
                f"granularities must be one or more positive integers, got {granularities}"
            )
        self.temperature, self.warmup, self.momentum = temperature, warmup, momentum
        self.granularities = tuple(granularities)
        self.clusterings: nn.ModuleList | None = None
        self.first_epoch = 1

    def setup(self, task: TaskInfo) -> Self:
        """Copy the network and create empty clusterings."""
        weight = like(task.network).detach()
        add_momentum_encoder(self, task.network)
        self.register_buffer("labels", task.labels.to(weight.device, torch.long), persistent=False)
        self.clusterings = nn.ModuleList(
            Clustering(
                m,
                task.classes,
                len(task.labels),
                weight.new_zeros(task.classes * m, task.embedding_dim),
            )
            for m in self.granularities
        )
        self.first_epoch = max(1, round(self.warmup * task.epochs))
        return self

    def compute_loss(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"contrast": supcon(rows, labels, self.temperature)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        clusterings = after_setup(self, self.clusterings)
        gathered = self.forward_batch(batch, network)
        indices = self.gather(batch.indices).to(gathered.labels.device)
        if len(indices) and int(indices.max()) >= len(self.labels):
            raise UserError(
                f"batch.indices must be below the number of training images ({len(self.labels)}), "
                f"got {int(indices.max())}: count them from 0, in the order of the task's labels"
            )
        z, images = unit(gathered.embeddings), indices.repeat(self.views)
        prototype = torch.stack([clustering(z, images) for clustering in clusterings]).mean()
        terms = self.compute_loss(gathered.embeddings, gathered.labels, self.views)
        return terms | {"prototype": prototype}

    @torch.no_grad()
    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        if epoch < self.first_epoch:
            return
        output = encode_training_set(momentum_encoder(self).network)
        rows = unit(output.embeddings).to(self.labels.device)
        for clustering in after_setup(self, self.clusterings):
            clustering.fit(rows, self.labels, self.temperature)  # type: ignore[operator]

    def after_step(self, network: nn.Module, progress: float) -> None:
        average = momentum_encoder(self)
        average.update(network, average.warmup_momentum(self.momentum))


class Clustering(nn.Module):
    """Prototypes of every class; those of class k are the rows k·m … k·m + m − 1.

    Args:
        m: number of prototypes per class.
        classes: number of classes.
        images: number of training images.
        zeros: `(classes·m, D)` zeros, which become the prototypes.
    """

    centres: Tensor
    phi: Tensor  # 0 for an empty cluster
    member: Tensor  # cluster of each image; −1 before the first clustering

    def __init__(self, m: int, classes: int, images: int, zeros: Tensor) -> None:
        super().__init__()
        self.m, self.classes = m, classes
        self.register_buffer("centres", zeros)
        self.register_buffer("phi", zeros.new_zeros(len(zeros)))
        self.register_buffer("member", torch.full((images,), -1, device=zeros.device))

    def forward(self, z: Tensor, images: Tensor) -> Tensor:
        """Return L_m; a row without a cluster contributes 0."""
        clustered = self.member[images] >= 0
        return prototype_loss(
            z[clustered],
            self.member[images[clustered]],
            self.centres.to(z.dtype),
            self.phi,
            self.m,
        ) / max(len(z), 1)

    def fit(self, rows: Tensor, labels: Tensor, temperature: float) -> None:
        """Cluster unit rows within their classes."""
        self.centres.zero_()
        self.member.fill_(-1)
        for k in range(self.classes):
            (members,) = torch.where(labels == k)
            if len(members):
                assigned, centres = spherical_kmeans(rows[members], self.m)
                self.member[members] = assigned + k * self.m
                self.centres[k * self.m : k * self.m + len(centres)] = centres.to(self.centres)
        (clustered,) = torch.where(self.member >= 0)
        member = self.member[clustered]
        members = rows[clustered].to(self.centres)
        sums = torch.zeros_like(self.centres).index_add_(0, member, members)
        means = sums / torch.bincount(member, minlength=len(sums)).clamp_min(1)[:, None]
        distances = torch.linalg.vector_norm(members - means[member], dim=1)
        self.phi.copy_(concentrations(distances, member, len(self.phi), temperature))


def prototype_loss(z: Tensor, cluster: Tensor, centres: Tensor, phi: Tensor, m: int) -> Tensor:
    """Return the sum over rows of −log softmax over their cluster and those of other classes."""
    with full_precision(z):
        clusters = torch.arange(len(centres), device=z.device)
        same_class = clusters // m == cluster[:, None] // m
        left_out = same_class & (clusters != cluster[:, None])
        empty = phi == 0
        logits = z @ centres.T / torch.where(empty, 1, phi).to(z.dtype)
        logits = logits.masked_fill(left_out | empty, -torch.inf)
        return (logits.logsumexp(1) - logits.gather(1, cluster[:, None])[:, 0]).sum()


def concentrations(distances: Tensor, member: Tensor, clusters: int, temperature: float) -> Tensor:
    """Return φ of each cluster, given its members' distances; φ has mean τ, or is 0 if empty."""
    count = torch.bincount(member, minlength=clusters).to(distances.dtype)
    filled = count > 0
    spread = torch.zeros_like(count).index_add_(0, member, distances)
    spread = spread / (count * (count + SMOOTHING).log()).masked_fill(~filled, 1)
    has_spread = (count > 1) & (spread > 0)
    if not bool(has_spread.any()):
        return filled.to(distances.dtype) * temperature
    spread = torch.where(has_spread, spread, spread[has_spread].max())
    low, high = torch.quantile(spread[filled], spread.new_tensor([0.1, 0.9]))
    spread = spread.clamp(low, high)
    return torch.where(filled, temperature * spread / spread[filled].mean(), 0)


def spherical_kmeans(rows: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the cluster of each unit row, and at most m unit centres, which start far apart."""
    centrality = rows @ rows.mean(0)
    # Among equally central rows take the first, not the one that rounding favours.
    first = int(torch.where(centrality >= centrality.max() - 1e-6)[0][0])
    start = [first]
    nearest = rows @ rows[first]
    while len(start) < min(m, len(rows)):
        start.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, rows @ rows[start[-1]])
    centres = rows[start]
    assigned = (rows @ centres.T).argmax(1)
    for _ in range(KMEANS_ITERATIONS):
        sums = torch.zeros_like(centres).index_add_(0, assigned, rows)
        filled = torch.bincount(assigned, minlength=len(centres)) > 0
        centres = torch.where(filled[:, None], unit(sums), centres)
        reassigned = (rows @ centres.T).argmax(1)
        if torch.equal(reassigned, assigned):
            break
        assigned = reassigned
    return assigned, centres
