"""The weights a stage ends with: running average, best epoch, a share of the initial ones."""

import csv

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from scs_supcon.methods import Network, build_method
from scs_supcon.training.checkpointing import StageMemo
from scs_supcon.training.weight_copy import FinalWeights, WeightCopy, describe_best, ema_decay


def modules(seed=0):
    torch.manual_seed(seed)
    network = Network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 192))
    return network, build_method("scs_supcon", "learned")


def test_the_average_is_the_recursion_of_its_formula():
    copy = WeightCopy(*modules())
    expected = {name: value.clone().double() for name, value in copy.state_dict().items()}
    for step in range(20):
        network, method = modules(seed=step + 1)
        network(torch.randn(5, 3))  # changes the running statistics
        decay = ema_decay(0.6, step)
        copy.move_towards(network, method, 1 - decay)
        assert decay == min(0.6, (1 + step) / (10 + step))
        values = {f"network.{k}": v for k, v in network.state_dict().items()}
        values |= {f"method.{k}": v for k, v in method.state_dict().items()}
        for name, value in values.items():
            whole = not value.is_floating_point()
            expected[name] = value if whole else decay * expected[name] + (1 - decay) * value
    for name, value in copy.state_dict().items():
        assert torch.allclose(value.double(), expected[name].double(), atol=1e-6), name


def test_a_copy_does_not_share_memory_and_can_be_loaded():
    network, method = modules()
    copy = WeightCopy(network, method)
    before = [value.clone() for value in copy.state_dict().values()]
    with torch.no_grad():
        for parameter in (*network.parameters(), *method.parameters()):
            parameter.add_(1)
    pairs = zip(before, copy.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not any(p.requires_grad for p in copy.parameters())
    copy.load_into(network, method)
    now = [*network.state_dict().values(), *method.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))


def test_a_copy_of_a_copy_is_exact():
    copy = WeightCopy(*modules())
    network, method = modules(seed=1)
    copy.move_towards(network, method)
    now = [*network.state_dict().values(), *method.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(copy.state_dict().values(), now, strict=True))


def test_modules_move_towards_a_copy_by_a_share_of_the_distance():
    network, method = modules()
    copy = WeightCopy(network, method)
    later, later_method = modules(seed=1)
    later(torch.randn(5, 3))  # changes the running statistics, and their integer count
    trained = {name: value.clone() for name, value in later.state_dict().items()}
    copy.load_into(later, later_method, 0.25)
    for name, value in later.state_dict().items():
        initial = copy.network.state_dict()[name]
        expected = 0.25 * initial + 0.75 * trained[name]
        if not value.is_floating_point():
            expected = trained[name]
        assert torch.allclose(value, expected, atol=1e-7), name


def metrics(run):
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["stage"] == "pretrain"]


def test_averages_replace_the_weights_at_the_end(shapes, train_small, tmp_path):
    plain = train_small(shapes, tmp_path / "plain")
    averaged = train_small(shapes, tmp_path / "average", ["pretrain.ema=0.9"])
    assert metrics(plain.path) == metrics(averaged.path), "training itself is the same"
    vectors = [pq.read_table(run.path / "embeddings.parquet") for run in (plain, averaged)]
    assert not vectors[0].equals(vectors[1])


@pytest.mark.parametrize("start", ["scratch", "frozen", "unfreeze"])
def test_a_resumed_run_with_average_and_validation_ends_with_the_same_bytes(
    start, shapes, weights, train_small, tmp_path, train_stopped, deterministic_files
):
    options = {} if start == "scratch" else {"encoder": "tiny", "weights": weights, start: True}
    options["settings"] = ["pretrain.ema=0.9", "pretrain.patience=2"]
    if start == "unfreeze":
        options["settings"] += ["pretrain.initial_share=0.5", "pretrain.head_epochs=2"]
    whole = train_small(shapes, tmp_path / "whole", **options)
    train_stopped(shapes, tmp_path / "run", step=2, **options)
    train_small(shapes, tmp_path / "run", **options)
    assert deterministic_files(tmp_path / "run") == deterministic_files(whole.path)


def train_epochs(accuracies, patience, ema=0.0, initial_share=0.0):
    """Return final weights, memo and log after epochs with these validation accuracies.

    The weights of epoch e are all equal to e, the initial ones to 0.
    """
    network, method = modules()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0)
    scores = iter(accuracies)
    weights = FinalWeights(
        network, method, ema, patience, lambda network, method: next(scores), initial_share
    )
    memo, log = StageMemo(), []
    for epoch in range(1, len(accuracies) + 1):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(epoch)
        weights.after_step(epoch - 1)
        log.append(weights.after_epoch(epoch, memo))
        if memo.stopped:
            break
    weights.finish()
    return float(network.projection.weight.detach()[0, 0]), memo, log


def test_training_stops_when_the_accuracy_has_not_risen_for_patience_epochs():
    final, memo, log = train_epochs([0.5, 0.7, 0.6, 0.6, 0.9], patience=2)
    assert [values["val_accuracy"] for values in log] == [0.5, 0.7, 0.6, 0.6]
    assert memo.stopped
    assert final == 2
    assert describe_best(memo.best, 4, 5) == (
        "weights   stopped after epoch 4 of 5: best validation accuracy 70.0% in epoch 2, whose "
        "weights are used"
    )


def test_the_latest_of_several_best_epochs_is_used_but_does_not_prolong_training():
    final, memo, log = train_epochs([0.7, 0.6, 0.7, 0.8], patience=2)
    assert final == 3
    assert memo.stopped
    assert len(log) == 3


def test_training_ends_with_the_best_epoch_also_without_an_early_stop():
    final, memo, _ = train_epochs([0.5, 0.7, 0.6], patience=3)
    assert final == 2
    assert not memo.stopped
    assert describe_best(memo.best, 3, 3) == (
        "weights   best validation accuracy 70.0% in epoch 2, whose weights are used"
    )


def test_the_best_epoch_has_the_averaged_weights():
    final, _, _ = train_epochs([0.5, 0.4], patience=5, ema=0.9)
    assert final == pytest.approx(0.1 * 0 + 0.9 * 1)


def test_the_best_epoch_is_averaged_with_the_initial_weights():
    assert train_epochs([0.5, 0.7, 0.6], patience=3, initial_share=0.25)[0] == 0.25 * 0 + 0.75 * 2
    assert train_epochs([0.5, 0.7, 0.6], patience=0, initial_share=0.25)[0] == 0.25 * 0 + 0.75 * 3


def test_without_patience_nothing_is_measured():
    final, memo, log = train_epochs([0.5, 0.4], patience=0)
    assert (final, memo, log) == (2, StageMemo(), [{}, {}])


def test_patience_needs_a_validation_set():
    with pytest.raises(ValueError, match="validation"):
        FinalWeights(*modules(), patience=2)
