"""`scs add-class`: the model stays loadable and keeps its other classes."""

import shutil

import numpy as np
import pytest

from scs_supcon import load
from scs_supcon.io.lock import Lock


@pytest.fixture(scope="module")
def images(shapes, tmp_path_factory):
    """A new class: the stars of the built-in dataset, which the model does not know."""
    from scs_supcon.data.builtin import SHAPES
    from scs_supcon.data.builtin import shapes as builtin

    folder = tmp_path_factory.mktemp("star")
    stars = builtin(per_class=6)
    for index in np.flatnonzero(stars.labels == SHAPES.index("star")).tolist():
        stars.open(index).resize((16, 16)).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_the_class_is_added_to_the_run(scs, run, images):
    before = load(run)
    result = scs("add-class", run, "star", images)
    assert result.code == 0, result.err
    assert f"star: added from 6 images; {run / 'model'} now has 5 classes" in result.out
    after = load(run)
    assert after.classes == (*before.classes, "star")
    assert after.info.trained_classes == 4
    file = next(images.iterdir())
    old, new = (model.predict([file], topk=5).records[0] for model in (before, after))
    # The probabilities of the trained classes keep their ratios.
    old_share, new_share = (dict(prediction.top) for prediction in (old, new))
    rest = 1 - new_share["star"]
    assert new_share == pytest.approx(
        {name: share * rest for name, share in old_share.items()} | {"star": new_share["star"]}
    )
    for command in (("predict", run, file), ("evaluate", run), ("report", run)):
        assert scs(*command).code == 0
    assert scs("add-class", run, "star", images).code == 2


def test_another_directory_and_too_few_images(scs, run, images, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"nonsense")
    few = sorted(images.iterdir())[:2]
    out = tmp_path / "extended"
    result = scs("add-class", run, "star", *few, tmp_path / "broken.png", "--out", out)
    assert result.code == 1
    assert "broken.png" in result.err and "caution: 2 images" in result.out
    assert len(load(out).classes) == 5
    assert len(load(run).classes) == 4


def test_a_run_in_use_is_not_changed(scs, run, images):
    with Lock(run / ".lock"):
        result = scs("add-class", run, "star", images)
    assert result.code == 2 and "in use" in result.err
    assert len(load(run).classes) == 4
