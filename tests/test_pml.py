import math
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner, TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import Tensor, nn

from scs_supcon import CSSupCon, MetricLearningLoss, SCSSupCon, SupCon
from scs_supcon.errors import UserError

Listed = list[tuple[int, int, bool]]


def reference(
    z: list[list[float]],
    others: list[list[float]],
    listed: Listed,
    t: float,
    b: float,
    common_dim: int,
    beta: float,
) -> float:
    """Mean of log(1 + exp(±(b − t c·c'))) over listed pairs − β mean of ‖s − s'‖ over positives.

    c and s are the fields of the row, c' and s' those of the reference, each of unit length.
    """

    def unit(x: list[float]) -> list[float]:
        length = math.hypot(*x)
        return [v / length for v in x] if length else x

    costs, distances = [], []
    for u, v, same in listed:
        c, s = unit(z[u][:common_dim]), unit(z[u][common_dim:])
        other_c, other_s = unit(others[v][:common_dim]), unit(others[v][common_dim:])
        x = (1 if same else -1) * (
            b - t * math.fsum(p * q for p, q in zip(c, other_c, strict=True))
        )
        costs.append(max(x, 0) + math.log1p(math.exp(-abs(x))))
        if same:
            distances.append(math.dist(s, other_s))
    style = beta * math.fsum(distances) / len(distances) if distances else 0.0
    return (math.fsum(costs) / len(costs) if costs else 0.0) - style


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
    return SCSSupCon(4, preset="paper", t0=5.0, b0=1.0, beta=0.1, **options)


def value(loss: SCSSupCon, z: Tensor, others: Tensor, listed: Listed) -> Any:
    expected = reference(
        z.tolist(), others.tolist(), listed, loss.t.item(), loss.b.item(), 4, loss.beta
    )
    return pytest.approx(expected, rel=1e-10)


MINERS = {
    "pairs": MultiSimilarityMiner(epsilon=0.3),
    "triplets": TripletMarginMiner(margin=0.2, type_of_triplets="all"),
}
every_miner = pytest.mark.parametrize("miner", MINERS.values(), ids=MINERS)
presets = pytest.mark.parametrize("bias", ["learn", "fixed", "solve"])


@every_miner
@presets
def test_the_loss_is_computed_on_mined_pairs_only(miner: nn.Module, bias: Any) -> None:
    z, labels = batch()
    indices = miner(z, labels)
    listed = as_pairs(indices)
    assert 0 < len(listed) != 144
    method = scs(bias=bias)
    loss = MetricLearningLoss(method)
    assert loss(z, labels, indices).item() == value(method, z, z, listed)


@every_miner
def test_mined_pairs_of_rows_and_references(miner: nn.Module) -> None:
    (z, labels), (refs, ref_labels) = batch(), batch(7, seed=1)
    indices = miner(z, labels, refs, ref_labels)
    method = scs()
    loss = MetricLearningLoss(method)(z, labels, indices, refs, ref_labels)
    assert loss.item() == value(method, z, refs, as_pairs(indices))


def test_without_mined_pairs_the_loss_is_zero() -> None:
    z, labels = batch()
    z.requires_grad_()
    empty = torch.zeros(0, dtype=torch.long)
    for method in (scs(), SCSSupCon()):
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


class Memory(CrossBatchMemory):  # type: ignore[misc]
    @staticmethod
    def supported_losses() -> list[str]:
        return ["MetricLearningLoss"]


@pytest.mark.parametrize("miner", [None, MINERS["pairs"]], ids=["all pairs", "mined"])
def test_cross_batch_memory(miner: nn.Module | None) -> None:
    """Each batch is paired with itself and earlier batches, but no row with its copy."""
    method = scs()
    memory = Memory(MetricLearningLoss(method), embedding_size=6, memory_size=20, miner=miner)
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


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")  # from the progress bar
@pytest.mark.parametrize("miner", [None, MINERS["triplets"]], ids=["all pairs", "mined"])
def test_a_trainer_updates_the_network_t_and_b(miner: nn.Module | None) -> None:
    labels = torch.arange(24) % 3
    images = torch.eye(3)[labels] + 0.1 * torch.randn(24, 3)
    trunk = nn.Linear(3, 8)
    loss = MetricLearningLoss(SCSSupCon(preset="siglip", t0=5.0, b0=2.0))
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
    supcon, loss = MetricLearningLoss(SupCon()), MetricLearningLoss(scs())
    with pytest.raises(UserError, match="SupCon does not support indices_tuple: use SCSSupCon"):
        supcon(z, labels, indices)
    with pytest.raises(UserError, match="CSSupCon does not support ref_emb: use SCSSupCon"):
        MetricLearningLoss(CSSupCon())(z, labels, ref_emb=refs, ref_labels=ref_labels)
    with pytest.raises(UserError, match="ref_emb is given without ref_labels"):
        loss(z, labels, ref_emb=refs)
    with pytest.raises(UserError, match="ref_emb has 5 columns but embeddings have 6"):
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
