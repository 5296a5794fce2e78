"""Stage 2: each head of the bank is a head trained alone, the choice, the temperature, resuming.

Run by torchrun with a folder, this file is one of several processes.
"""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from sklearn.datasets import load_digits

from scs_supcon.data.sampler import plan_epoch
from scs_supcon.errors import UserError
from scs_supcon.recipe import ProbeRecipe, make_recipe, write_toml
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.loop import Progress
from scs_supcon.training.probe import Classifier, Readouts, train_bank, with_own

RECIPE = make_recipe({"data": {"source": "digits"}})


def digits(name: str = "probe", views: int = 2) -> Readouts:
    """Handwritten digits as readouts: 600 to learn from, 200 to choose on, lengths about 60."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)
    jitter = torch.randn(600, views, 64, generator=torch.Generator().manual_seed(0))
    return Readouts(name, x[:600, None] + jitter, y[:600], x[600:800], y[600:800], 10)


def train(folder: Path, readouts: Readouts, probe: ProbeRecipe, **more: object) -> Classifier:
    fabric = Fabric(accelerator="cpu", devices=1)
    with RunDir.open(folder, write_toml(RECIPE)) as run:
        return train_bank(fabric, run, readouts, probe, 0, **more)  # type: ignore[arg-type]


def alone(readouts: Readouts, probe: ProbeRecipe, lr: float, decay: float) -> torch.Tensor:
    """Validation logits of one head, trained on the only view by plain SGD with a cosine."""
    x, y = readouts.train[:, 0].double(), readouts.train_labels
    weight = torch.zeros(10, 64, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    groups = [{"params": [weight], "weight_decay": decay}, {"params": [bias]}]
    sgd = torch.optim.SGD(groups, lr=lr, momentum=probe.momentum)
    step, total = 0, probe.epochs * math.ceil(len(x) / probe.batch_size)
    for epoch in range(probe.epochs):
        plan = plan_epoch(
            y.numpy(), probe.batch_size, kind="shuffle", per_class=1, seed=0, epoch=epoch
        )
        for (rows,) in plan:
            for group in sgd.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * step / total)) / 2
            sgd.zero_grad()
            F.cross_entropy(x[rows] @ weight.T + bias, y[rows]).backward()
            sgd.step()
            step += 1
    return (readouts.val.double() @ weight.T + bias).detach()


def test_the_paper_s_head_is_a_member_of_the_bank(tmp_path: Path) -> None:
    readouts = digits(views=1)
    rate = 1e-4  # pixels are long vectors
    probe = ProbeRecipe(epochs=5, batch_size=128, lrs=(1e-12,), plain_lr=rate)
    found = train(tmp_path, readouts, probe)
    expected = alone(readouts, probe, rate, 0.0)
    logits = readouts.val.double() @ found.weight.T + found.bias
    assert found.bank[0].plain
    assert found.bank[0].chosen
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_every_other_head_sees_the_readout_centred_at_length_one(tmp_path: Path) -> None:
    readouts = digits(views=1)
    mean = readouts.train.mean((0, 1))
    length = float((readouts.train - mean).square().sum(-1).mean().sqrt())
    scaled = replace(
        readouts, train=(readouts.train - mean) / length, val=(readouts.val - mean) / length
    )
    probe = ProbeRecipe(epochs=5, batch_size=128, lrs=(3.0,), weight_decays=(1e-2,), plain_lr=1e-12)
    found = train(tmp_path, readouts, probe)
    expected = alone(scaled, probe, 3.0, 1e-2)
    logits = readouts.val.double() @ found.weight.T + found.bias
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_scale_and_offset_of_the_readout_do_not_matter(tmp_path: Path) -> None:
    small = digits()
    large = replace(small, train=small.train * 64 + 4096, val=small.val * 64 + 4096)
    probe = ProbeRecipe(epochs=3, lrs=(1.0, 10.0), plain_lr=1e-12)
    first = train(tmp_path / "a", small, probe).probabilities(small.val)
    second = train(tmp_path / "b", large, probe).probabilities(large.val)
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


def test_a_readout_without_any_variation_is_no_crash(tmp_path: Path) -> None:
    flat = digits()
    flat = replace(flat, train=torch.ones_like(flat.train), val=torch.ones_like(flat.val))
    found = train(tmp_path, flat, ProbeRecipe(epochs=1))
    assert found.probabilities(flat.val).isfinite().all()


def test_validation_chooses_the_most_likely_of_those_about_as_accurate(tmp_path: Path) -> None:
    readouts = digits()
    found = train(tmp_path, readouts, ProbeRecipe())
    (chosen,) = [member for member in found.bank if member.chosen]
    best = max(member.val_accuracy for member in found.bank)
    error = math.sqrt(best * (1 - best) / len(readouts.val_labels))
    level = [m for m in found.bank if m.val_accuracy >= best - error]
    assert chosen in level
    assert chosen.val_nll == min(m.val_nll for m in level)
    accuracy = (found.probabilities(readouts.val).argmax(1) == readouts.val_labels).double().mean()
    assert float(accuracy) == chosen.val_accuracy
    assert chosen.val_accuracy >= 0.9  # as logistic regression by scikit-learn
    assert len(found.bank) == 11
    assert [member.plain for member in found.bank] == [True] + 10 * [False]


def test_all_views_are_learnt_from(tmp_path: Path) -> None:
    """One view shows the class, the other shows the next class: no head can do well."""
    readouts = digits(views=1)
    turned = readouts.train[torch.argsort(readouts.train_labels, stable=True).roll(60)]
    ordered = readouts.train[torch.argsort(readouts.train_labels, stable=True)]
    labels = readouts.train_labels.sort(stable=True).values
    torn = replace(readouts, train=torch.cat([ordered, turned], 1), train_labels=labels)
    probe = ProbeRecipe(epochs=10)
    assert train(tmp_path / "a", torn, probe).bank != train(tmp_path / "b", readouts, probe).bank
    assert max(m.val_accuracy for m in train(tmp_path / "a", torn, probe).bank) < 0.9


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_stopped_run_ends_as_an_unbroken_one(tmp_path: Path, epoch: int) -> None:
    readouts, probe = digits(), ProbeRecipe(epochs=4, batch_size=200)

    def stop(progress: Progress) -> None:
        if progress.epoch == epoch:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = train(tmp_path / "whole", readouts, probe)
    with pytest.raises(Stopped):
        train(tmp_path / "broken", readouts, probe, after_epoch=stop)
    seen: list[int] = []
    again = train(tmp_path / "broken", readouts, probe, after_epoch=lambda p: seen.append(p.epoch))
    assert seen == list(range(epoch + 1, 5))
    assert torch.equal(again.weight, whole.weight)
    assert torch.equal(again.bias, whole.bias)
    assert again.temperature == whole.temperature
    assert again.bank == whole.bank
    metrics = [tmp_path / name / "metrics.csv" for name in ("whole", "broken")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


@pytest.mark.slow
def test_several_processes_train_the_same_bank(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", digits(), ProbeRecipe(epochs=3))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    subprocess.run([sys.executable, *torchrun, __file__, str(tmp_path)], check=True)
    for rank in range(2):
        assert np.array_equal(np.load(tmp_path / f"{rank}.npy"), alone.weight.numpy())
    metrics = [tmp_path / name / "metrics.csv" for name in ("alone", "together")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


def one_of_several(folder: Path) -> None:
    fabric = make_fabric("cpu")
    with RunDir.open(folder / "together", write_toml(RECIPE), fabric=fabric) as run:
        found = train_bank(fabric, run, digits(), ProbeRecipe(epochs=3), 0)
    np.save(folder / f"{fabric.global_rank}.npy", found.weight.numpy())


def test_a_finished_bank_is_read_and_not_trained_again(tmp_path: Path) -> None:
    readouts, probe = digits(), ProbeRecipe(epochs=2)
    epochs: list[int] = []
    first = train(tmp_path, readouts, probe, after_epoch=lambda p: epochs.append(p.epoch))
    second = train(tmp_path, readouts, probe, after_epoch=lambda p: epochs.append(p.epoch))
    assert epochs == [1, 2]
    assert torch.equal(first.weight, second.weight)
    assert first.bank == second.bank


def test_two_banks_of_one_run_do_not_meet(tmp_path: Path) -> None:
    probe = ProbeRecipe(epochs=2)
    on_features = train(tmp_path, digits("linear"), probe)
    on_readout = train(tmp_path, digits("probe"), probe)
    assert torch.equal(on_features.weight, on_readout.weight)
    stages = {line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().splitlines()}
    assert {"linear", "probe"} <= stages


def test_a_classifier_of_stage_one_is_calibrated_and_the_bank_stays(tmp_path: Path) -> None:
    readouts = digits()
    probe = train(tmp_path, readouts, ProbeRecipe(epochs=2))
    sharp = 50 * probe.weight.float(), 50 * probe.bias.float()
    own = with_own(probe, sharp, readouts.val, readouts.val_labels)
    assert own.bank[0].own and own.bank[0].chosen
    assert [(m.lr, m.val_nll) for m in own.bank[1:]] == [(m.lr, m.val_nll) for m in probe.bank]
    assert not any(member.chosen for member in own.bank[1:])
    assert own.temperature == pytest.approx(50 * probe.temperature, rel=1e-3)
    expected = probe.probabilities(readouts.val)
    torch.testing.assert_close(own.probabilities(readouts.val), expected, rtol=1e-3, atol=1e-5)
    assert [member.own for member in own.bank] == [True] + len(probe.bank) * [False]
    wrong = with_own(probe, (-sharp[0], -sharp[1]), readouts.val, readouts.val_labels)
    assert wrong.bank[0].own and not wrong.bank[0].chosen, "clearly behind: stage 2 takes its place"
    assert torch.equal(wrong.weight, probe.weight) and wrong.temperature == probe.temperature


def test_what_cannot_be_learnt_from_is_refused(tmp_path: Path) -> None:
    good = digits()
    empty = replace(good, val=good.val[:0], val_labels=good.val_labels[:0])
    flat = replace(good, train=good.train[:, 0])
    with pytest.raises(UserError, match="no validation image"):
        train(tmp_path / "a", empty, ProbeRecipe(epochs=1))
    with pytest.raises(UserError, match=r"\(n, views, D\)"):
        train(tmp_path / "b", flat, ProbeRecipe(epochs=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_of_several(Path(sys.argv[1]))
