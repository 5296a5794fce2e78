"""Heads are trained again without each fold, to calibrate on images that were held out."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from scs_supcon.data.splits import divide_into_folds
from scs_supcon.inference import load
from scs_supcon.recipe import make_recipe
from scs_supcon.training.checkpointing import CheckpointManager
from scs_supcon.training.out_of_fold import fold_phase, usable_folds

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


def as_lists(folds):
    return [(held_out.tolist(), others.tolist()) for held_out, others in folds]


def test_a_fold_holds_out_its_images_and_trains_on_the_others() -> None:
    folds = usable_folds(np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1]))
    assert as_lists(folds) == [([1, 3], [0, 2]), ([0, 2], [1, 3])]


def test_an_image_whose_class_would_have_no_other_image_is_not_held_out() -> None:
    folds = usable_folds(np.array([0, 1, 0, 1, 1]), np.array([0, 0, 1, 1, 2]))
    assert as_lists(folds) == [([0, 2], [1, 3, 4]), ([1, 3], [0, 2])]


@pytest.mark.parametrize(
    ("numbers", "labels"),
    [
        ([0, 0, 0, 0], [0, 0, 1, 1]),  # one group
        ([0, 1, 2, 3], [0, 1, 2, 3]),  # one image of each class
        ([0, 0, 1, 1], [0, 0, 1, 1]),  # every class is one group
        ([0, 1], [0, 0]),  # one class
    ],
)
def test_folds_that_cannot_be_trained_or_tested_are_not_used(numbers, labels) -> None:
    assert usable_folds(np.array(numbers), np.array(labels)) == []


def test_empty_folds_are_not_used() -> None:
    folds = usable_folds(np.array([0, 4, 0, 4]), np.array([0, 0, 1, 1]))
    assert len(folds) == 2


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
    options, shapes, train_small, train_stopped, tmp_path, monkeypatch, deterministic_files
):
    whole = train_small(shapes, tmp_path / "whole", **options)
    train_stopped(shapes, tmp_path / "run", step=2, stage="fold2", **options)
    after_step = CheckpointManager.after_step
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


def test_a_fold_has_no_early_stopping():
    recipe = make_recipe({"data": {"source": "x"}, "pretrain": {"patience": 3}})
    assert fold_phase(recipe).pretrain.patience == 0, "it would need other validation images"


@pytest.mark.parametrize("per_class", [2, 3, 4])
def test_few_images_of_a_class_are_enough(
    per_class, shapes, weights, train_small, tmp_path, capsys
):
    """The default recipe: folds if more images can be held out than validation has, else none."""
    for folder in shapes.iterdir():
        target = tmp_path / "few" / folder.name
        target.mkdir(parents=True)
        for file in sorted(folder.iterdir())[:per_class]:
            (target / file.name).write_bytes(file.read_bytes())
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "quiet": False}
    run = train_small(tmp_path / "few", tmp_path / "run", **options)
    err = capsys.readouterr().err
    info = load(run.path).info
    used = info.rejection.rule == "out_of_fold"
    assert used == (per_class == 4)
    assert ("folds     none can be held out; the validation images are used" in err) == (not used)
    assert ("more times without a fold" in err) == used
    assert 0 < info.temperature < 100, "not fitted to images that cannot be right"
    assert info.pairs.t > 0.1, "more similar images are more likely of one class"


def test_a_head_of_another_run_is_calibrated_on_validation_images(
    options, shapes, train_small, tmp_path, capsys
):
    first = train_small(shapes, tmp_path / "first", **options)
    capsys.readouterr()
    del options["weights"]
    run = train_small(
        shapes, tmp_path / "second", init_from=first.path, **options | {"quiet": False}
    )
    err = capsys.readouterr().err
    assert "chosen on 4 validation images" in err
    assert "folds     none can be held out" in err
    assert load(run.path).info.rejection.rule == "quantile"


def test_taps_are_not_whitened(options, shapes, train_small, tmp_path):
    options |= {"method": "selfcon", "settings": [*SETTINGS, "head.heads=1"]}
    run = train_small(shapes, tmp_path / "run", **options)
    model = load(run.path)
    assert model.info.rejection.rule == "out_of_fold"
    assert len(model.classifier.probe_inputs.whitening.mean) == model.encoder.num_features


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
