import math
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner, TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.distributed import (
    DistributedLossWrapper as PMLDistributedLossWrapper,
)
from torch import Tensor, nn

from scs_supcon import CSSupCon, Method, MetricLearningLoss, SCSSupCon, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods.byol import BYOL
from scs_supcon.methods.circle_pair import CirclePair
from scs_supcon.methods.oscs_supcon import OSCSSupCon
from scs_supcon.pml import CrossBatchMemory, DistributedLossWrapper, SelfSupervisedLoss

Listed = list[tuple[int, int, bool]]


def reference(
    z: list[list[float]],
    others: list[list[float]],
    listed: Listed,
    t: float,
    b: float,
    common_dim: int,
    beta: float,
    weighting: str = "all",
    self_weight: float = 0.0,
) -> float:
    """Cost of listed pairs, each counted once, minus β times the mean distance to positives.

    log(1 + exp(±(b − t c·c'))), summed and divided by the number of listed pairs, of listed
    positives, or each half by its own number. c and s are the fields of the row, c' and s' those of
    the reference, each of unit length. The distance is averaged per row, then over all rows.
    """

    def unit(x: list[float]) -> list[float]:
        length = math.hypot(*x)
        return [v / length for v in x] if length else x

    weights = dict.fromkeys(listed, 1.0)
    if self_weight:
        weights |= {(u, u, True): self_weight for u in range(len(z))}
    positives = math.fsum(w for (*_, same), w in weights.items() if same)
    negatives = math.fsum(weights.values()) - positives
    divisors = {
        "all": (positives + negatives,) * 2,
        "positives": (positives,) * 2,
        "balanced": (2 * positives, 2 * negatives),
    }[weighting]
    cost, distances = 0.0, [[] for _ in z]
    for (u, v, same), w in weights.items():
        c, s = unit(z[u][:common_dim]), unit(z[u][common_dim:])
        other_c, other_s = unit(others[v][:common_dim]), unit(others[v][common_dim:])
        x = (1 if same else -1) * (
            b - t * math.fsum(p * q for p, q in zip(c, other_c, strict=True))
        )
        cost += w * (max(x, 0) + math.log1p(math.exp(-abs(x)))) / divisors[0 if same else 1]
        if same and not (others is z and u == v):
            distances[u].append(math.dist(s, other_s))
    means = [math.fsum(d) / len(d) for d in distances if d]
    return cost - beta * math.fsum(means) / len(z)


def as_pairs(indices: tuple[Tensor, ...]) -> Listed:
    """Return the pairs of triplets (a, p, n) or of pairs (a, p, a', n)."""
    lists = [x.tolist() for x in indices]
    a, p, other, n = lists if len(lists) == 4 else (lists[0], lists[1], lists[0], lists[2])
    same = [(u, v, True) for u, v in zip(a, p, strict=True)]
    return same + [(u, v, False) for u, v in zip(other, n, strict=True)]


def batch(n: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=source, dtype=torch.float64), torch.arange(n) % 3


def scs(**options: Any) -> SCSSupCon:
    b0 = None if options.get("bias") == "solve" else 1.0
    return SCSSupCon(4, preset="paper", t0=5.0, b0=b0, beta=0.1, **options)


def value(loss: SCSSupCon, z: Tensor, others: Tensor, listed: Listed) -> Any:
    """Return the reference; pairs (u, u) are weighted by the share of listed positive pairs."""
    rows = z.tolist()
    right = rows if others is z else others.tolist()
    share = 0.0
    if others is z and loss.include_self:  # of the 3 × 4 × 3 positive pairs of `batch()`
        share = sum(same for *_, same in set(listed)) / 36
    t, b = loss.t.item(), loss.b.item()
    expected = reference(rows, right, listed, t, b, 4, loss.beta, loss.pairs, share)
    return pytest.approx(expected, rel=1e-10)


MINERS = {
    "pairs": MultiSimilarityMiner(epsilon=0.3),
    "triplets": TripletMarginMiner(margin=0.2, type_of_triplets="all"),
}
every_miner = pytest.mark.parametrize("miner", MINERS.values(), ids=MINERS)
presets = pytest.mark.parametrize("bias", ["learn", "fixed", "solve"])


@every_miner
@presets
@pytest.mark.parametrize("pairs", ["all", "balanced", "positives"])
@pytest.mark.parametrize("include_self", [True, False])
def test_the_loss_is_computed_on_mined_pairs_only(
    miner: nn.Module, bias: Any, pairs: Any, include_self: bool
) -> None:
    z, labels = batch()
    indices = miner(z, labels)
    listed = as_pairs(indices)
    assert 0 < len(listed) != 144
    method = scs(bias=bias, pairs=pairs, include_self=include_self)
    loss = MetricLearningLoss(method)
    assert loss(z, labels, indices).item() == value(method, z, z, listed)


@every_miner
def test_mined_pairs_of_rows_and_references(miner: nn.Module) -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(7, seed=1)
    indices = miner(z, labels, refs, ref_labels)
    method = scs()
    loss = MetricLearningLoss(method)(z, labels, indices, refs, ref_labels)
    assert loss.item() == value(method, z, refs, as_pairs(indices))


class EveryPair(nn.Module):
    """A miner that keeps every pair."""

    def forward(self, z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        same = labels[:, None] == labels
        return (*same.fill_diagonal_(False).nonzero().T, *(labels[:, None] != labels).nonzero().T)


EVERY_MINER = {
    "pairs": EveryPair(),
    "triplets": TripletMarginMiner(margin=5.0, type_of_triplets="all"),
}


@pytest.mark.parametrize("miner", EVERY_MINER.values(), ids=EVERY_MINER)
@pytest.mark.parametrize(
    "method",
    [
        *(SCSSupCon(pairs=pairs) for pairs in ("all", "balanced", "positives")),
        *(SCSSupCon(preset=preset) for preset in ("paper", "learned")),
        *(SCSSupCon(include_self=False), OSCSSupCon()),
        *(SupCon(), CSSupCon()),
    ],
)
@pytest.mark.parametrize("classes", [3, 8])
def test_a_miner_that_keeps_every_pair_changes_nothing(
    miner: nn.Module, method: Method, classes: int
) -> None:
    z, _ = batch(20)
    labels = torch.arange(20) % classes
    loss = MetricLearningLoss(method)
    results = []
    for indices in (None, miner(z, labels)):
        x = z.clone().requires_grad_()
        value = loss(x, labels, indices)
        value.backward()
        results.append((value.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-8)


def test_without_mined_pairs_the_loss_is_zero() -> None:
    z, labels = batch()
    z.requires_grad_()
    empty = torch.zeros(0, dtype=torch.long)
    for method in (scs(include_self=False), SCSSupCon(include_self=False), SupCon(), CSSupCon()):
        for indices in ((empty,) * 3, (empty,) * 4):
            loss = MetricLearningLoss(method)(z, labels, indices)
            loss.backward()
            assert loss.item() == 0
    assert z.grad is not None and not z.grad.any()


def test_gradients_of_mined_pairs() -> None:
    z, labels = batch(6)
    refs, ref_labels = batch(5, seed=1)
    indices = MINERS["pairs"](z, labels, refs, ref_labels)
    method = scs()
    loss = MetricLearningLoss(method)

    def compute(z: Tensor, refs: Tensor, *_: Tensor) -> Tensor:
        result: Tensor = loss(z, labels, indices, refs, ref_labels)
        return result

    leaves = (z.requires_grad_(), refs.requires_grad_(), method.log_t, method.b)
    assert torch.autograd.gradcheck(compute, leaves, atol=1e-7)


def test_without_pairs_and_references_the_loss_is_that_of_the_method() -> None:
    z, labels = batch()
    for method in (scs(), SCSSupCon(), SupCon(), CSSupCon()):
        method.eval()  # without the guess of the solved b of earlier calls
        assert torch.equal(MetricLearningLoss(method)(z, labels), method(z, labels))


def test_without_a_miner_all_rows_are_paired_with_all_references() -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(7, seed=1)
    listed = [(u, v, bool(labels[u] == ref_labels[v])) for u in range(12) for v in range(7)]
    method = SCSSupCon(4, preset="paper", t0=5.0, b0=1.0, beta=0)
    loss = MetricLearningLoss(method)(z, labels, ref_emb=refs, ref_labels=ref_labels)
    assert loss.item() == value(method, z, refs, listed)


def test_supcon_with_references_equals_pytorch_metric_learning() -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(9, seed=1)
    ours = MetricLearningLoss(SupCon(0.2))(z, labels, ref_emb=refs, ref_labels=ref_labels)
    theirs = SupConLoss(0.2, reducer=MeanReducer())(z, labels, ref_emb=refs, ref_labels=ref_labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)


def test_references_may_have_views() -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(8, seed=1)
    loss = MetricLearningLoss(scs())
    views = torch.stack([refs[:4], refs[4:]], 1)
    with_views = loss(z, labels, ref_emb=views, ref_labels=ref_labels[:4])
    flat = loss(z, labels, ref_emb=refs, ref_labels=ref_labels[:4].repeat(2))
    assert torch.equal(with_views, flat)


@pytest.mark.parametrize("miner", [None, MINERS["pairs"]], ids=["all pairs", "mined"])
def test_cross_batch_memory(miner: nn.Module | None) -> None:
    """Each batch is paired with itself and earlier batches, but no row with its copy."""
    method = scs()
    memory = CrossBatchMemory(
        MetricLearningLoss(method), embedding_size=6, memory_size=20, miner=miner
    )
    past = torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    for step in range(2):
        z, labels = batch(8, seed=step)
        start = len(past[0])
        past = torch.cat([past[0], z]), torch.cat([past[1], labels])
        loss = memory(z.requires_grad_(), labels)
        listed = [
            (u, v, bool(labels[u] == past[1][v]))
            for u in range(8)
            for v in range(len(past[0]))
            if v != start + u
        ]
        if miner is not None:
            mined = {p[:2] for p in as_pairs(miner(z, labels, *past))}
            listed = [p for p in listed if p[:2] in mined]
        assert loss.item() == value(method, z, past[0], listed)
        loss.backward()
        assert z.grad is not None and z.grad.isfinite().all()


@pytest.mark.parametrize("method", [SupCon(0.2), CSSupCon()])
def test_cross_batch_memory_of_softmax_losses(method: Method) -> None:
    memory = CrossBatchMemory(MetricLearningLoss(method), embedding_size=6, memory_size=20)
    theirs = losses.CrossBatchMemory(SupConLoss(0.2, reducer=MeanReducer()), 6, 20)
    for step in range(3):
        z, labels = batch(8, seed=step)
        expected, value = theirs(z, labels), memory(z.requires_grad_(), labels)
        value.backward()
        assert z.grad is not None and z.grad.any()
        if type(method) is SupCon:
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_views_of_a_self_supervised_loss() -> None:
    z, _ = batch()
    method = scs()
    loss = MetricLearningLoss(method)
    first, second, ids = z[:6], z[6:], torch.arange(6)
    both = SelfSupervisedLoss(loss)(first, second)
    assert torch.equal(both, method(z, ids.repeat(2)))
    one_way = SelfSupervisedLoss(loss, symmetric=False)(first, second)
    listed = [(u, v, u == v) for u in range(6) for v in range(6)]
    assert one_way.item() == value(method, first, second, listed)


def test_wrappers_check_the_loss_at_construction() -> None:
    scs_loss, byol = MetricLearningLoss(scs()), MetricLearningLoss(BYOL())
    with pytest.raises(UserError, match="BYOL does not support CrossBatchMemory: use SCSSupCon"):
        CrossBatchMemory(byol, 6)
    with pytest.raises(UserError, match="CrossBatchMemory needs a MetricLearningLoss, got SCSSup"):
        CrossBatchMemory(scs(), 6)
    with pytest.raises(UserError, match=r"BYOL does not support SelfSupervisedLoss\(symmetric"):
        SelfSupervisedLoss(byol, symmetric=False)
    with pytest.raises(UserError, match="efficient=True leaves out a part of the gradient"):
        DistributedLossWrapper(scs_loss, efficient=True)
    with pytest.raises(UserError, match="gathered twice"):
        DistributedLossWrapper(MetricLearningLoss(SCSSupCon(gather_across_devices=True)))
    for name in ("reducer", "distance", "embedding_regularizer"):
        with pytest.raises(UserError, match=f"does not support {name}: choose the reduction"):
            MetricLearningLoss(scs(), **{name: MeanReducer()})
    with pytest.raises(UserError, match='use reduction="mean"'):
        MetricLearningLoss(SCSSupCon(reduction="none"))
    assert losses.BaseMetricLossFunction in type(scs_loss).__mro__
    assert PMLDistributedLossWrapper(scs_loss).loss is scs_loss


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")  # from the progress bar
@pytest.mark.parametrize("miner", [None, MINERS["triplets"]], ids=["all pairs", "mined"])
def test_a_trainer_updates_the_network_t_and_b(miner: nn.Module | None) -> None:
    labels = torch.arange(24) % 3
    images = torch.eye(3)[labels] + 0.1 * torch.randn(24, 3)
    trunk = nn.Linear(3, 8)
    loss = MetricLearningLoss(SCSSupCon(preset="learned", t0=5.0, b0=2.0))
    before = loss(trunk(images), labels).item()
    start = loss.method.t.item(), loss.method.b.item()
    trainer = MetricLossOnly(
        models={"trunk": trunk},
        optimizers={
            "trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.2),
            "metric_loss_optimizer": torch.optim.SGD(loss.method.param_groups(lr=0.1)),
        },
        batch_size=12,
        loss_funcs={"metric_loss": loss},
        mining_funcs={} if miner is None else {"tuple_miner": miner},
        dataset=list(zip(images, labels.tolist(), strict=True)),
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        iterations_per_epoch=4,
    )
    trainer.train(num_epochs=2)
    assert loss(trunk(images), labels).item() < before
    assert loss.method.t.item() != start[0] and loss.method.b.item() != start[1]


def test_errors_describe_unsupported_or_wrong_arguments() -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(7, seed=1)
    indices = MINERS["pairs"](z, labels)
    other, loss = MetricLearningLoss(CirclePair()), MetricLearningLoss(scs())
    with pytest.raises(UserError, match="CirclePair does not support indices_tuple: use SCSSup"):
        other(z, labels, indices)
    with pytest.raises(UserError, match="CirclePair does not support ref_emb: use SCSSupCon"):
        other(z, labels, ref_emb=refs, ref_labels=ref_labels)
    with pytest.raises(UserError, match="ref_emb is given without ref_labels"):
        loss(z, labels, ref_emb=refs)
    with pytest.raises(UserError, match="references have 5 columns but embeddings have 6"):
        loss(z, labels, ref_emb=refs[:, :5], ref_labels=ref_labels)
    with pytest.raises(UserError, match=r"number of labels \(6\) must equal .*\(7\)"):
        loss(z, labels, ref_emb=refs, ref_labels=ref_labels[:6])
    refs[2, 1] = math.nan
    for pairs in (None, indices):
        with pytest.raises(UserError, match=r"NaN or infinity in 1 of 7 rows \(first: \[2\]\)"):
            loss(z, labels, pairs, refs, ref_labels)


def test_half_precision_and_autocast() -> None:
    z, labels = batch()
    z = z.bfloat16()
    indices = MINERS["pairs"](z.float(), labels)
    loss = MetricLearningLoss(scs())
    expected = loss(z.float(), labels, indices)
    assert torch.equal(loss(z, labels, indices), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(z, labels, indices), expected)


def test_state_dict_round_trip() -> None:
    loss, other = MetricLearningLoss(scs()), MetricLearningLoss(SCSSupCon(4, preset="paper"))
    other.load_state_dict(loss.state_dict())
    assert other.method.t.item() == loss.method.t.item() == pytest.approx(5.0)
