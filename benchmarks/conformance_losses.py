"""The losses that `benchmarks/conformance.py` checks, each with its own formula in NumPy.

A formula follows the conventions of its library. It accepts complex rows, for derivatives by a
complex step.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scs_supcon import CSSupCon, SCSSupCon, SimCLR, SupCon
from scs_supcon.kernels import mean_distance, scs_loss, sigmoid_pairs, softmax_pairs

ROWS, MOST_ROWS, WIDTH, COMMON = 96, 2048, 128, 96
BANK = 256  # rows in the memory bank of lightly
T, B, BETA, ALPHA = 10.0, 5.0, 1e-3, 0.01
LOG_T = math.log(T)

Array = np.ndarray
Function = Callable[[Tensor, Tensor], Tensor]
WithParameters = tuple[Function, list[Tensor]]  # a loss of rows and labels, and its learned numbers


# The formulas. q is the matrix of targets: 1 for pairs of one class, p_u·p_v for soft labels.


def unit(z: Array) -> Array:
    length = np.sqrt((z * z).sum(1, keepdims=True))
    return z / np.where(length == 0, 1, length)


def targets(y: Array) -> Array:
    return (y[:, None] == y).astype(float) if y.ndim == 1 else y @ y.T


def log_sum_exp(x: Array) -> Any:
    largest = x.real.max()
    return largest + np.log(np.exp(x - largest).sum())


def softplus(x: Array) -> Array:
    far = np.log1p(np.exp(-np.where(x.real > 0, x, -x)))
    return np.where(x.real > 0, x, 0) + far


def softmax_rows(r: Array, q: Array) -> list[Any]:
    """Return −log softmax, averaged over the positives, of each row that has positives."""
    losses = []
    for i in range(len(r)):
        others = np.arange(len(r)) != i
        weight, logits = q[i, others], r[i, others]
        if weight.sum() > 0:
            losses.append(log_sum_exp(logits) - (weight * logits).sum() / weight.sum())
    return losses


def supcon(z: Array, y: Array, tau: float = 0.1) -> Any:
    """SupCon: anchors without positives count in the mean."""
    x = unit(z)
    return sum(softmax_rows(x @ x.T / tau, targets(y))) / len(z)


def style_distance(z: Array, q: Array) -> Any:
    s, total = unit(z), 0.0
    for i in range(len(s)):
        weight = np.where(np.arange(len(s)) == i, 0, q[i])
        square = ((s - s[i]) ** 2).sum(1)
        distance = np.sqrt(np.where(square.real > 0, square, 0))  # equal rows have no gradient
        total = total + (weight * distance).sum() / (weight.sum() or 1)
    return total / len(s)


def solved_bias(logits: Array, q: Array) -> float:
    """Return b for which the mean of σ is the share of positives, half a pair from 0 and 1."""
    share = min(max(q.sum(), 0.5), q.size - 0.5) / q.size
    low, high = logits.min() - 40, logits.max() + 40
    for _ in range(100):
        b = (low + high) / 2
        low, high = (b, high) if (1 / (1 + np.exp(b - logits))).mean() > share else (low, b)
    return (low + high) / 2


def scs(
    z: Array,
    y: Array,
    log_t: Any = LOG_T,
    b: Any = None,
    *,
    divide_by: str = "positives",
    width: int = COMMON,
) -> Any:
    """SCS-SupCon; b is solved unless it is given."""
    q, c = targets(y), unit(z[:, :width])
    logits = np.exp(log_t) * (c @ c.T)
    a = logits - (solved_bias(logits.real, q) if b is None else b)
    cost = (q * softplus(-a) + (1 - q) * softplus(a)).sum()
    contrast = cost / (q.size if divide_by == "all" else q.sum())
    return contrast - (BETA * style_distance(z[:, width:], q) if width < z.shape[1] else 0)


def cs_supcon(z: Array, y: Array) -> Any:
    common, style = z[:, :COMMON], z[:, COMMON:]
    distance = BETA * style_distance(style, targets(y))
    return supcon(common, y) - ALPHA * supcon(style, y) - distance


def pml_supcon(z: Array, y: Array) -> Any:
    """0 without positive or without negative pairs; otherwise the mean over losses above 0."""
    x, q = unit(z), targets(y)
    losses = [loss for loss in softmax_rows(x @ x.T / 0.1, q) if loss.real > 0]
    return sum(losses) / len(losses) if losses and (q == 0).any() else 0.0


def pml_ntxent(z: Array, y: Array, tau: float = 0.07) -> Any:
    """The mean over positive pairs, each against the negatives of its row; 0 as above."""
    r, losses = unit(z) @ unit(z).T / tau, []
    for i in range(len(z)):
        for p in np.flatnonzero(y == y[i]):
            if p != i:
                losses.append(log_sum_exp(np.append(r[i, y != y[i]], r[i, p])) - r[i, p])
    return sum(losses) / len(losses) if losses and (y != y[0]).any() else 0.0


def pml_multi_similarity(z: Array, y: Array) -> Any:
    r, total = unit(z) @ unit(z).T - 0.5, 0.0
    for i in range(len(z)):
        positive = (y == y[i]) & (np.arange(len(y)) != i)
        total = total + np.log1p(np.exp(-2 * r[i, positive]).sum()) / 2
        total = total + np.log1p(np.exp(50 * r[i, y != y[i]]).sum()) / 50
    return total / len(z)


def cross_entropy(logits: Array) -> Any:
    return sum(log_sum_exp(row) - row[i] for i, row in enumerate(logits)) / len(logits)


def info_nce(z: Array, y: Array, scale: float = 10.0) -> Any:
    a, b = np.split(unit(z), 2)
    return cross_entropy(scale * a @ b.T)


def symmetric_info_nce(z: Array, y: Array, scale: Any = 20.0, normalize: bool = True) -> Any:
    a, b = np.split(unit(z) if normalize else z, 2)
    logits = scale * a @ b.T
    return (cross_entropy(logits) + cross_entropy(logits.T)) / 2


def siglip(z: Array, y: Array, t: Any, b: Any, *, normalize: bool = False) -> Any:
    a, other = np.split(unit(z) if normalize else z, 2)
    logits = t * a @ other.T + b
    return softplus(np.where(np.eye(len(a)) > 0, -logits, logits)).sum() / len(a)


def siglip_t(z: Array, y: Array, log_t: Any, b: Any) -> Any:
    """SigLIP of normalised rows, with our parameters."""
    return siglip(z, y, np.exp(log_t), -b, normalize=True)


def moco(z: Array, y: Array) -> Any:
    a, b = np.split(unit(z), 2)
    bank, total = lightly_loss("NTXentLoss", bank=True).memory_bank.bank.double().numpy(), 0.0
    for u, v in zip(a, b, strict=True):
        total = total + log_sum_exp(np.append(bank @ u, u @ v) / 0.5) - u @ v / 0.5
    return total / len(a)


def dcl(z: Array, y: Array) -> Any:
    a, b = np.split(unit(z), 2)
    total, others = 0.0, ~np.eye(len(a), dtype=bool)
    for u, v in ((a, b), (b, a)):
        same, cross = u @ u.T / 0.1, u @ v.T / 0.1
        for i, keep in enumerate(others):
            negatives = np.append(same[i, keep], cross[i, keep])
            total = total + log_sum_exp(negatives) - cross[i, i]
    return total / len(z)


# The losses. A function that makes one takes
#     chunk: compute it in chunks of this size,
#     rank: join the rows of two processes; the rank of this one.


def own(
    new: Callable[..., torch.nn.Module],
    wrap: Callable[[Any], WithParameters] | None = None,
    chunk: int | None = None,
    rank: int | None = None,
) -> WithParameters:
    """Make a loss of this package, given its constructor."""
    loss_and_parameters = (wrap or module)(
        new() if rank is None else new(gather_across_devices=True)
    )
    return loss_and_parameters if chunk is None else in_tiles(loss_and_parameters, chunk)


def module(loss: torch.nn.Module) -> WithParameters:
    return loss, [p for p in loss.parameters() if p.requires_grad]


def towers(loss: SCSSupCon) -> WithParameters:
    """Compare rows with those of a second tower."""

    def function(z: Tensor, y: Tensor) -> Tensor:
        (a, b), (ids, other_ids) = z.chunk(2), y.chunk(2)
        return loss(a, ids, references=b, reference_labels=other_ids)

    return function, module(loss)[1]


def in_tiles(loss_and_parameters: WithParameters, size: int) -> WithParameters:
    """Use tiles of another size in the kernels of this package."""
    function, parameters = loss_and_parameters
    kernels = {
        "scs_supcon.sigmoid_pairs": partial(sigmoid_pairs, tile=size),
        "scs_supcon.mean_distance": partial(mean_distance, piece=size),
        "cs_supcon.softmax_pairs": partial(softmax_pairs, tile=size),
        "cs_supcon.mean_distance": partial(mean_distance, piece=size),
        "supcon.softmax_pairs": partial(softmax_pairs, tile=size),
    }

    def tiled(z: Tensor, y: Tensor) -> Tensor:
        with ExitStack() as stack:
            for name, kernel in kernels.items():
                stack.enter_context(patch(f"scs_supcon.methods.{name}", kernel))
            stack.enter_context(patch("scs_supcon.kernels.pairs.BAND", size * ROWS))
            return function(z, y)

    return tiled, parameters


def adapter(
    new: Callable[[], Any], mined: bool, chunk: int | None = None, rank: int | None = None
) -> WithParameters:
    """Use a loss of this package as one of pytorch-metric-learning."""
    from pytorch_metric_learning.utils.distributed import all_gather
    from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices

    from scs_supcon.pml import DistributedLossWrapper, MetricLearningLoss

    loss = MetricLearningLoss(new())
    if rank is not None:
        loss = DistributedLossWrapper(loss)

    def function(z: Tensor, y: Tensor) -> Tensor:
        if not mined:
            return loss(z, y)
        every = y if rank is None else torch.cat([y, all_gather(y)])
        return loss(z, y, get_all_pairs_indices(every))  # as from a miner that keeps all pairs

    loss_and_parameters = function, module(loss)[1]
    return loss_and_parameters if chunk is None else in_tiles(loss_and_parameters, chunk)


def pml(name: str, rank: int | None = None) -> WithParameters:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    loss = getattr(losses, name)()
    return module(loss if rank is None else DistributedLossWrapper(loss))


def on_views(loss: Callable[..., Tensor]) -> WithParameters:
    return lambda z, y: loss(*z.chunk(2)), []


def lightly_loss(name: str, bank: bool = False, **options: Any) -> Any:
    import lightly.loss

    torch.manual_seed(0)  # of the bank
    if bank:
        options["memory_bank_size"] = (BANK, WIDTH)
    return getattr(lightly.loss, name)(**options)


def lightly_views(name: str, bank: bool = False, rank: int | None = None) -> WithParameters:
    return on_views(lightly_loss(name, bank, gather_distributed=rank is not None))


def open_clip(
    name: str,
    scalars: tuple[float, ...],
    chunk: int | None = None,
    rank: int | None = None,
    **joined: Any,
) -> WithParameters:
    import open_clip.loss

    options = {} if chunk is None else {"chunk_size": chunk}
    if rank is not None:
        options |= {"rank": rank, "world_size": 2, **joined}
    loss = getattr(open_clip.loss, name)(**options)
    learned = [torch.tensor(x, requires_grad=True) for x in scalars]
    return lambda z, y: loss(*z.chunk(2), *learned), learned


def siglip_has_chunks() -> bool:
    try:
        from open_clip.loss import SigLipLoss
    except ImportError:
        return False
    return "chunk_size" in inspect.signature(SigLipLoss).parameters


class Identity(torch.nn.Module):
    """A model of sentence-transformers whose inputs are the embeddings."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["input_ids"]}

    def __getitem__(self, index: int) -> "Identity":
        return self


def sentences(name: str, chunk: int | None = None, rank: int | None = None) -> WithParameters:
    from sentence_transformers.sentence_transformer import losses

    options = {} if chunk is None else {"mini_batch_size": chunk}
    loss = getattr(losses, name)(Identity(), gather_across_devices=rank is not None, **options)
    return lambda z, y: loss([{"input_ids": x} for x in z.chunk(2)], None), []


def info_nce_library() -> WithParameters:
    from info_nce import InfoNCE

    return on_views(InfoNCE())


def keops_pairs(z: Tensor, y: Tensor) -> tuple[Any, Any, Any]:
    """Return similarities, which pairs have the same class, and which are (u, u)."""
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    columns = F.normalize(z, dim=1), y[:, None].to(z), torch.arange(len(z))[:, None].to(z)
    left, right = ([LazyTensor(x.unsqueeze(k).contiguous()) for x in columns] for k in (1, 0))
    same, itself = ((0.5 - (left[k] - right[k]).abs()).step() for k in (1, 2))
    return (left[0] | right[0]), same, itself


def keops_supcon(z: Tensor, y: Tensor) -> Tensor:
    r, same, itself = keops_pairs(z, y)
    positive = same - itself
    log_z = (r * 10.0 - itself * 1e6).logsumexp(1)[:, 0]
    count = positive.sum(1)[:, 0]
    attracted = (r * 10.0 * positive).sum(1)[:, 0] / count.clamp_min(1)
    return torch.where(count > 0, log_z - attracted, 0).mean()


def keops_sigmoid(z: Tensor, y: Tensor) -> Tensor:
    r, same, _ = keops_pairs(z, y)
    a = (r * T - B) * (1 - same * 2)
    return (1 + a.exp()).log().sum(1).sum() / same.sum(1).sum()


def dense_supcon(z: Tensor, y: Tensor) -> Tensor:
    x = F.normalize(z, dim=1)
    logits = x @ x.T / 0.1
    logits = logits - logits.max(1, keepdim=True).values.detach()
    others = 1 - torch.eye(len(y))
    mask = (y[:, None] == y).float() * others
    log_p = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    return (-(mask * log_p).sum(1) / mask.sum(1).clamp_min(1)).mean()


def dense_scs(z: Tensor, y: Tensor) -> Tensor:
    c, s = F.normalize(z[:, :COMMON], dim=1), F.normalize(z[:, COMMON:], dim=1)
    contrast, style = scs_loss(c, s, y[:, None] == y, T, B, BETA)
    return contrast + style


@cache
def compiled_scs() -> Function:
    return torch.compile(dense_scs, dynamic=True)


# The table.

LABELS = "no positives", "one class", "all different"
SCALED = "rows × 1e4", "rows × 1e18", "rows × 1e30"


@dataclass(frozen=True)
class Loss:
    """A row of the tables.

    Attributes:
        library: name of its package.
        name: shown in the tables.
        make: returns the loss.
        formula: its value in float64, given rows, labels and learned numbers.
        without: checks that the library does not offer.
        views: it takes n rows and their n positives instead of labels.
        scalars: initial values of learned numbers.
        unit_rows: rows must have unit length.
        times_world: its value is multiplied by the number of processes, for DDP's average.
        most_rows: more would not fit into memory.
    """

    library: str
    name: str
    make: Callable[..., WithParameters]
    formula: Callable[..., Any]
    without: tuple[str, ...] = ()
    views: bool = False
    scalars: tuple[float, ...] = ()
    unit_rows: bool = False
    times_world: bool = False
    most_rows: int = MOST_ROWS


SCS, PML, CLIP = "scs-supcon", "pytorch-metric-learning", "open_clip_torch"
WHOLE = "chunks", "soft targets"
ALONE = *WHOLE, "two processes"
LEARNED = LOG_T, 10.0
new_scs = partial(SCSSupCon, COMMON)
new_towers = partial(SCSSupCon, WIDTH, preset="learned", pairs="positives")
mean_scs = partial(scs, divide_by="all")
given_b = partial(scs, b=B)


def of_views(library: str, name: str, make: Any, formula: Any, *without: str, **more: Any) -> Loss:
    without = (*LABELS, "soft targets", *without)
    return Loss(library, name, make, formula, without, views=True, **more)


def of_pml(name: str, formula: Any, **more: Any) -> Loss:
    return Loss(PML, name, partial(pml, name), formula, WHOLE, times_world=True, **more)


def of_lightly(name: str, shown: str, formula: Any, **options: Any) -> Loss:
    return of_views("lightly", shown, partial(lightly_views, name, **options), formula, "chunks")


def of_sentences(name: str, formula: Any, *without: str) -> Loss:
    make = partial(sentences, name)
    return of_views("sentence-transformers", name, make, formula, *without)


def of_clip(name: str, formula: Any, scalars: tuple[float, ...], **joined: Any) -> Loss:
    make = partial(open_clip, name, scalars, **joined)
    shown = f"{name}, {' and '.join(joined)}" if joined else name
    without = (*SCALED, "chunks")
    return of_views(CLIP, shown, make, formula, *without, scalars=scalars, unit_rows=True)


def of_clip_chunks() -> list[Loss]:
    """Return the chunked SigLipLoss, if the version of open_clip has it."""
    if not siglip_has_chunks():
        return []
    make = partial(open_clip, "SigLipLoss", (T, -B), chunk=32)
    without = (*SCALED, "two processes")
    more = {"scalars": (T, -B), "unit_rows": True}
    return [of_views(CLIP, "SigLipLoss, chunks of 32", make, siglip, *without, **more)]


def adapted(name: str, new: Callable[[], Any], formula: Any, mined: bool = False) -> Loss:
    make = partial(adapter, new, mined)
    return Loss(SCS, name, make, formula, ("soft targets",), times_world=True)


clip = partial(symmetric_info_nce, normalize=False)
ranking = partial(info_nce, scale=20.0)
exact = {"local_loss": True, "gather_with_grad": True}
paper = partial(SCSSupCon, COMMON, preset="paper")
learned = partial(SCSSupCon, COMMON, preset="learned")

LOSSES = [
    Loss(SCS, "SCSSupCon, solved", partial(own, new_scs), scs),
    Loss(SCS, "SCSSupCon, learned", partial(own, learned), mean_scs, scalars=LEARNED),
    Loss(SCS, "SCSSupCon, paper", partial(own, paper), mean_scs, scalars=(math.log(0.1), 0.0)),
    of_views(
        SCS, "SCSSupCon, two towers", partial(own, new_towers, towers), siglip_t, scalars=LEARNED
    ),
    Loss(SCS, "SupCon", partial(own, SupCon), supcon),
    Loss(SCS, "CSSupCon", partial(own, partial(CSSupCon, COMMON)), cs_supcon),
    of_views(SCS, "SimCLR", partial(own, SimCLR), partial(supcon, tau=0.5)),
    adapted("MetricLearningLoss(SCSSupCon)", new_scs, scs),
    adapted("MetricLearningLoss(SupCon), all pairs mined", SupCon, supcon, mined=True),
    of_pml("SupConLoss", pml_supcon),
    of_pml("NTXentLoss", pml_ntxent, most_rows=ROWS),
    of_pml("MultiSimilarityLoss", pml_multi_similarity),
    of_lightly("NTXentLoss", "NTXentLoss", partial(supcon, tau=0.5)),
    of_lightly("NTXentLoss", "NTXentLoss, memory bank", moco, bank=True),
    of_lightly("DCLLoss", "DCLLoss", dcl),
    of_clip("SigLipLoss", siglip, (T, -B)),
    *of_clip_chunks(),
    of_clip("ClipLoss", clip, (T,)),
    of_clip("ClipLoss", clip, (T,), **exact),
    of_sentences("MultipleNegativesRankingLoss", ranking, "chunks"),
    of_sentences("CachedMultipleNegativesRankingLoss", ranking),
    of_sentences("CachedMultipleNegativesSymmetricRankingLoss", symmetric_info_nce),
    of_views("info-nce-pytorch", "InfoNCE", info_nce_library, info_nce, *ALONE),
    Loss("pykeops", "SupCon", lambda: (keops_supcon, []), supcon, (*ALONE, "bfloat16")),
    Loss(
        "pykeops",
        "sigmoid loss",
        lambda: (keops_sigmoid, []),
        partial(given_b, width=WIDTH),
        (*ALONE, "bfloat16"),
    ),
    Loss("torch", "dense SupCon", lambda: (dense_supcon, []), supcon, ALONE),
    Loss("torch", "dense `scs_loss`", lambda: (dense_scs, []), given_b, ALONE),
    Loss("torch", "compiled `scs_loss`", lambda: (compiled_scs(), []), given_b, ALONE),
]
