"""Heads are trained again without each fold, to calibrate on images that were held out."""

import os
import signal
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from scs_supcon.data.splits import divide_into_folds
from scs_supcon.inference import load
from scs_supcon.training.checkpointing import CheckpointManager, SavePolicy, Stopped

SETTINGS = ["head.heads=2", "fusion.whitened=true", "fusion.folds=3"]


@dataclass
class Columns:
    labels: NDArray[np.int64]
    groups: NDArray[np.str_] | None = None
    splits: NDArray[np.str_] | None = None
    folds: NDArray[np.int64] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in range(int(self.labels.max()) + 1))

    def __len__(self) -> int:
        return len(self.labels)


@pytest.fixture
def options(weights):
    return {
        "encoder": "tiny",
        "weights": weights,
        "frozen": True,
        "method": "scs_supcon@solved",
        "settings": SETTINGS,
    }


def test_every_image_is_in_one_fold_and_classes_are_divided_evenly() -> None:
    labels = np.repeat(np.arange(4), [10, 11, 12, 1])
    members = np.arange(1, len(labels))
    folds = divide_into_folds(Columns(labels), members, 5, 0)
    assert folds.shape == members.shape
    assert set(folds.tolist()) == set(range(5))
    for label in range(3):
        sizes = np.bincount(folds[labels[members] == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_groups_stay_together() -> None:
    labels = np.arange(60) % 3
    groups = np.array([str(number // 4) for number in range(60)])
    folds = divide_into_folds(Columns(labels, groups), np.arange(60), 4, 0)
    for group in set(groups):
        assert len(set(folds[groups == group].tolist())) == 1


def test_every_training_image_is_held_out_once(options, shapes, train_small, tmp_path, capsys):
    run = train_small(shapes, tmp_path / "run", quiet=False, **options)
    err = capsys.readouterr().err
    assert "chosen on 16 training images, out of fold" in err
    info = load(run.path).info
    assert info.rejection.rule == "out_of_fold"
    assert not info.pairs.learned
    stages = {line.split(",")[0] for line in (run.path / "metrics.csv").read_text().splitlines()}
    assert {"pretrain", "fold1", "fold2", "fold3"} <= stages


def test_a_run_stopped_in_the_second_fold_ends_with_the_same_bytes(
    options, shapes, train_small, tmp_path, monkeypatch, deterministic_files
):
    often = partial(SavePolicy, every=0.0, at_most=0.0)
    monkeypatch.setattr("scs_supcon.training.checkpointing.SavePolicy", often)
    whole = train_small(shapes, tmp_path / "whole", **options)
    after_step = CheckpointManager.after_step
    stopped = []

    def interrupt(self, position, terms):
        if self._stage.name == "fold2" and position.global_step == 2:
            stopped.append(position.global_step)
            os.kill(os.getpid(), signal.SIGTERM)
        after_step(self, position, terms)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(CheckpointManager, "after_step", interrupt)
        train_small(shapes, tmp_path / "run", **options)
    assert stopped == [2]
    stages = []

    def record(self, position, terms):
        stages.append(self._stage.name)
        after_step(self, position, terms)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointManager, "after_step", record)
        train_small(shapes, tmp_path / "run", **options)
    assert not {"pretrain", "fold1"} & set(stages), "stages that were completed before"
    assert {"fold2", "fold3"} <= set(stages)
    assert deterministic_files(tmp_path / "run") == deterministic_files(whole.path)


def test_the_folds_leave_out_a_style_field_that_cannot_change_the_common_field(
    options, shapes, train_small, tmp_path, monkeypatch
):
    # Clipping would join the gradients of both fields in one norm.
    settings = ["head.style_input=erased", "method.options.style=instance", "pretrain.clip_norm=0"]
    options |= {"settings": [*SETTINGS, *settings]}
    quick = load(train_small(shapes, tmp_path / "quick", **options).path)
    monkeypatch.setattr("scs_supcon.training.out_of_fold._style_is_separate", lambda _recipe: False)
    whole = load(train_small(shapes, tmp_path / "whole", **options).path)
    assert quick.info.pairs == whole.info.pairs
    assert quick.info.rejection == whole.info.rejection


@pytest.mark.parametrize("folds", [0, 1])
def test_without_folds_the_validation_images_are_used(
    folds, options, shapes, train_small, tmp_path, capsys
):
    options |= {"settings": [*SETTINGS, f"fusion.folds={folds}"]}
    run = train_small(shapes, tmp_path / "run", quiet=False, **options)
    assert "chosen on 4 validation images" in capsys.readouterr().err
    assert load(run.path).info.rejection.rule == "quantile"


@pytest.mark.parametrize("method", ["baseline", "supcon", "paco"])
def test_other_methods_can_be_fused(method, options, shapes, train_small, tmp_path):
    run = train_small(shapes, tmp_path / "run", **options | {"method": method})
    assert load(run.path).info.omega is not None
    assert 0 <= run.accuracy <= 1


def test_the_extra_training_is_announced_before_it_starts(
    shapes, weights, train_small, tmp_path, capsys
):
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "quiet": False}
    train_small(shapes, tmp_path / "run", ["fusion.folds=3"], **options)
    lines = capsys.readouterr().err.splitlines()
    titles = [line.split()[0] for line in lines]
    assert "3 more times without a fold" in lines[titles.index("folds")]
    assert titles.index("folds") < next(
        k for k, line in enumerate(lines) if "out of fold 1" in line
    )
    train_small(shapes, tmp_path / "other", ["fusion.folds=0"], **options)
    assert "folds  " not in capsys.readouterr().err
