"""Stage 2: the heads equal heads trained alone; selection, calibration and resuming.

Under torchrun this file is one of several processes.
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
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
from scs_supcon.recipe.defaults import complete_options
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.probe import Probe, ProbeData, fit_probe, select_classifier

METHOD = {"name": "supcon", "options": complete_options("supcon", None, {})}
RECIPE = make_recipe({"data": {"source": "digits"}, "method": METHOD})


def digits(views: int = 2) -> ProbeData:
    """Return handwritten digits: 600 for training, 200 for validation, vectors of length 60."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)
    jitter = torch.randn(600, views, 64, generator=torch.Generator().manual_seed(0))
    return ProbeData(x[:600, None] + jitter, y[:600], x[600:800], y[600:800], 10)


def train(
    folder: Path,
    data: ProbeData,
    recipe: ProbeRecipe,
    name: str = "probe",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probe:
    fabric = Fabric(accelerator="cpu", devices=1)
    with RunDir.open(folder, write_toml(RECIPE)) as run:
        return fit_probe(fabric, run, name, data, recipe, 0, progress)


def train_alone(data: ProbeData, recipe: ProbeRecipe, lr: float, decay: float) -> torch.Tensor:
    """Return the validation logits of one head, trained by plain SGD with a cosine schedule."""
    x, y = data.train[:, 0].double(), data.train_labels
    weight = torch.zeros(10, 64, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    groups = [{"params": [weight], "weight_decay": decay}, {"params": [bias]}]
    sgd = torch.optim.SGD(groups, lr=lr, momentum=recipe.momentum)
    step, total = 0, recipe.epochs * math.ceil(len(x) / recipe.batch_size)
    for epoch in range(recipe.epochs):
        plan = plan_epoch(
            y.numpy(), recipe.batch_size, kind="shuffle", per_class=1, seed=0, epoch=epoch
        )
        for (rows,) in plan:
            for group in sgd.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * step / total)) / 2
            sgd.zero_grad()
            F.cross_entropy(x[rows] @ weight.T + bias, y[rows]).backward()
            sgd.step()
            step += 1
    return (data.val.double() @ weight.T + bias).detach()


def test_the_plain_head_equals_a_head_trained_alone(tmp_path: Path) -> None:
    data = digits(views=1)
    rate = 1e-4  # the inputs are long vectors
    probe = ProbeRecipe(epochs=5, batch_size=128, lrs=(1e-12,), plain_lr=rate)
    result = train(tmp_path, data, probe)
    expected = train_alone(data, probe, rate, 0.0)
    logits = data.val.double() @ result.classifier.weight.T + result.classifier.bias
    assert result.heads[0].plain
    assert result.heads[0].chosen
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_single_classifier_equals_plain_sgd_with_one_rate(tmp_path: Path) -> None:
    data = digits(views=1)
    data = replace(data, train=data.train / 60, val=data.val / 60)
    recipe = ProbeRecipe(
        classifier="single", plain_lr=3.0, weight_decays=(1e-2,), epochs=3, batch_size=48
    )
    probe = train(tmp_path / "run", data, recipe)
    (head,) = probe.heads
    assert (head.lr, head.weight_decay, head.chosen) == (3.0, 1e-2, True)
    classifier = probe.classifier
    logits = data.val.double() @ classifier.weight.double().T + classifier.bias.double()
    torch.testing.assert_close(logits, train_alone(data, recipe, 3.0, 1e-2), rtol=1e-4, atol=1e-4)


def test_dropout_changes_training_and_is_resumed(tmp_path: Path) -> None:
    data = digits()
    recipe = ProbeRecipe(classifier="single", epochs=3, plain_lr=0.01)
    dropped = recipe.model_copy(update={"dropout": 0.5})
    plain = train(tmp_path / "plain", data, recipe)
    once = train(tmp_path / "once", data, dropped)
    assert not torch.equal(plain.classifier.weight, once.classifier.weight)

    def stop(done: int, total: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(tmp_path / "twice", data, dropped, progress=stop)
    torch.manual_seed(123)
    again = train(tmp_path / "twice", data, dropped)
    assert torch.equal(again.classifier.weight, once.classifier.weight)


def test_the_other_heads_get_centred_inputs_of_unit_length(tmp_path: Path) -> None:
    data = digits(views=1)
    mean = data.train.mean((0, 1))
    length = float((data.train - mean).square().sum(-1).mean().sqrt())
    scaled = replace(data, train=(data.train - mean) / length, val=(data.val - mean) / length)
    probe = ProbeRecipe(epochs=5, batch_size=128, lrs=(3.0,), weight_decays=(1e-2,), plain_lr=1e-12)
    result = train(tmp_path, data, probe)
    expected = train_alone(scaled, probe, 3.0, 1e-2)
    logits = data.val.double() @ result.classifier.weight.T + result.classifier.bias
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_scale_and_offset_of_the_inputs_do_not_matter(tmp_path: Path) -> None:
    small = digits()
    large = replace(small, train=small.train * 64 + 4096, val=small.val * 64 + 4096)
    probe = ProbeRecipe(epochs=3, lrs=(1.0, 10.0), plain_lr=1e-12)
    first = train(tmp_path / "a", small, probe).classifier.probabilities(small.val)
    second = train(tmp_path / "b", large, probe).classifier.probabilities(large.val)
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


def test_constant_inputs_give_finite_probabilities(tmp_path: Path) -> None:
    flat = digits()
    flat = replace(flat, train=torch.ones_like(flat.train), val=torch.ones_like(flat.val))
    result = train(tmp_path, flat, ProbeRecipe(epochs=1))
    assert result.classifier.probabilities(flat.val).isfinite().all()


def test_the_most_likely_of_the_most_accurate_heads_is_selected(tmp_path: Path) -> None:
    data = digits()
    result = train(tmp_path, data, ProbeRecipe())
    (chosen,) = [head for head in result.heads if head.chosen]
    best = max(head.val_accuracy for head in result.heads)
    error = math.sqrt(best * (1 - best) / len(data.val_labels))
    level = [h for h in result.heads if h.val_accuracy >= best - error]
    assert chosen in level
    assert chosen.val_nll == min(h.val_nll for h in level)
    accuracy = (
        (result.classifier.probabilities(data.val).argmax(1) == data.val_labels).double().mean()
    )
    assert float(accuracy) == chosen.val_accuracy
    assert chosen.val_accuracy >= 0.9  # like logistic regression of scikit-learn
    assert len(result.heads) == 11
    assert [head.plain for head in result.heads] == [True] + 10 * [False]


def test_all_views_are_used_for_training(tmp_path: Path) -> None:
    """One view shows the class, the other the next class: no head can be accurate."""
    data = digits(views=1)
    turned = data.train[torch.argsort(data.train_labels, stable=True).roll(60)]
    ordered = data.train[torch.argsort(data.train_labels, stable=True)]
    labels = data.train_labels.sort(stable=True).values
    mixed = replace(data, train=torch.cat([ordered, turned], 1), train_labels=labels)
    probe = ProbeRecipe(epochs=10)
    assert train(tmp_path / "a", mixed, probe).heads != train(tmp_path / "b", data, probe).heads
    assert max(h.val_accuracy for h in train(tmp_path / "a", mixed, probe).heads) < 0.9


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_stopped_probe_ends_like_an_uninterrupted_one(tmp_path: Path, epoch: int) -> None:
    data, probe = digits(), ProbeRecipe(epochs=4, batch_size=200)

    def stop(done: int, total: int) -> None:
        if done == epoch:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = train(tmp_path / "whole", data, probe)
    with pytest.raises(Stopped):
        train(tmp_path / "stopped", data, probe, progress=stop)
    epochs: list[int] = []
    resumed = train(tmp_path / "stopped", data, probe, progress=lambda done, _: epochs.append(done))
    assert epochs == list(range(epoch + 1, 5))
    assert torch.equal(resumed.classifier.weight, whole.classifier.weight)
    assert torch.equal(resumed.classifier.bias, whole.classifier.bias)
    assert resumed.classifier.temperature == whole.classifier.temperature
    assert resumed.heads == whole.heads
    metrics = [tmp_path / name / "metrics.csv" for name in ("whole", "stopped")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


@pytest.mark.slow
def test_several_processes_train_the_same_heads(tmp_path: Path) -> None:
    single = train(tmp_path / "single", digits(), ProbeRecipe(epochs=3))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    subprocess.run([sys.executable, *torchrun, __file__, str(tmp_path)], check=True)
    for rank in range(2):
        assert np.array_equal(np.load(tmp_path / f"{rank}.npy"), single.classifier.weight.numpy())
    metrics = [tmp_path / name / "metrics.csv" for name in ("single", "together")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()


def train_as_worker(folder: Path) -> None:
    fabric = make_fabric("cpu")
    with RunDir.open(folder / "together", write_toml(RECIPE), fabric=fabric) as run:
        probe = fit_probe(fabric, run, "probe", digits(), ProbeRecipe(epochs=3), 0)
    np.save(folder / f"{fabric.global_rank}.npy", probe.classifier.weight.numpy())


def test_a_finished_probe_is_not_trained_again(tmp_path: Path) -> None:
    data, probe = digits(), ProbeRecipe(epochs=2)
    epochs: list[int] = []
    first = train(tmp_path, data, probe, progress=lambda done, _: epochs.append(done))
    second = train(tmp_path, data, probe, progress=lambda done, _: epochs.append(done))
    assert epochs == [1, 2]
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    assert first.heads == second.heads


def test_two_probes_of_one_run_have_separate_checkpoints(tmp_path: Path) -> None:
    probe = ProbeRecipe(epochs=2)
    first = train(tmp_path, digits(), probe, name="linear")
    second = train(tmp_path, digits(), probe, name="probe")
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    stages = {line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().splitlines()}
    assert {"linear", "probe"} <= stages


def test_the_classifier_of_the_method_is_calibrated_and_the_heads_are_kept(tmp_path: Path) -> None:
    data = digits()
    probe = train(tmp_path, data, ProbeRecipe(epochs=2))
    sharp = 50 * probe.classifier.weight.float(), 50 * probe.classifier.bias.float()
    selected = select_classifier(probe, sharp, data.val, data.val_labels)
    assert selected.heads[0].own and selected.heads[0].chosen
    assert [(h.lr, h.val_nll) for h in selected.heads[1:]] == [
        (h.lr, h.val_nll) for h in probe.heads
    ]
    assert not any(head.chosen for head in selected.heads[1:])
    assert selected.classifier.temperature == pytest.approx(
        50 * probe.classifier.temperature, rel=1e-3
    )
    expected = probe.classifier.probabilities(data.val)
    torch.testing.assert_close(
        selected.classifier.probabilities(data.val), expected, rtol=1e-3, atol=1e-5
    )
    assert [head.own for head in selected.heads] == [True] + len(probe.heads) * [False]
    wrong = select_classifier(probe, (-sharp[0], -sharp[1]), data.val, data.val_labels)
    assert wrong.heads[0].own and not wrong.heads[0].chosen, "clearly worse than the probe"
    assert wrong.classifier == probe.classifier


def test_unusable_probe_data_is_an_error(tmp_path: Path) -> None:
    good = digits()
    empty = replace(good, val=good.val[:0], val_labels=good.val_labels[:0])
    flat = replace(good, train=good.train[:, 0])
    with pytest.raises(UserError, match="no validation image"):
        train(tmp_path / "a", empty, ProbeRecipe(epochs=1))
    with pytest.raises(UserError, match=r"\(n, views, D\)"):
        train(tmp_path / "b", flat, ProbeRecipe(epochs=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_as_worker(Path(sys.argv[1]))
