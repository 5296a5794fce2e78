"""Scores by group, against plain loops."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2

from scs_supcon.errors import UserError
from scs_supcon.evaluation.evaluate import evaluate
from scs_supcon.evaluation.format import describe
from scs_supcon.evaluation.groups import SMALL_GROUP, analyse_groups, groups_of_images


@pytest.fixture
def predictions():
    """100 images in three groups: 60 of a, 35 of b with more errors, 5 of c."""
    rng = np.random.default_rng(0)
    groups = ["a"] * 60 + ["b"] * 35 + ["c"] * 5
    labels = torch.from_numpy(rng.integers(0, 3, 100))
    logits = torch.from_numpy(rng.standard_normal((100, 3)))
    logits[torch.arange(60), labels[:60]] += 4
    rejected = torch.from_numpy(rng.random(100) < 0.2)
    return groups, labels, logits.softmax(1), rejected


def reference(groups, labels, probabilities, rejected, name):
    """Accuracy, calibration error and share of rejected images of a group, in plain loops."""
    members = [k for k, group in enumerate(groups) if group == name]
    right = sum(int(probabilities[k].argmax()) == int(labels[k]) for k in members)
    bins = [[] for _ in range(15)]
    for k in members:
        confidence = float(probabilities[k].max())
        number = max(0, math.ceil(confidence * 15) - 1)
        correct = int(probabilities[k].argmax()) == int(labels[k])
        bins[number].append(correct - confidence)
    ece = sum(abs(sum(gaps)) for gaps in bins) / len(members)
    return right, ece, sum(bool(rejected[k]) for k in members) / len(members)


def test_scores_of_each_group_equal_the_reference(predictions):
    groups, labels, probabilities, rejected = predictions
    analysis = analyse_groups("camera", groups, labels, probabilities, rejected)
    assert [row.name for row in analysis.groups] == ["a", "b", "c"]
    counts = []
    for row in analysis.groups:
        right, ece, share = reference(*predictions, row.name)
        assert row.accuracy.value == pytest.approx(right / row.images)
        interval = binomtest(right, row.images).proportion_ci(0.95, "wilson")
        assert (row.accuracy.low, row.accuracy.high) == pytest.approx(tuple(interval))
        assert row.calibration_error.value == pytest.approx(ece)
        assert row.calibration_error.low <= row.calibration_error.high
        assert row.rejected.value == pytest.approx(share)
        assert row.small == (row.images < SMALL_GROUP)
        counts.append((right, row.images))
    assert analysis.worst == "b"  # c is too small
    total = sum(right for right, _ in counts[:2]) / 95
    statistic = sum(
        (right - n * total) ** 2 / (n * total) + (n * total - right) ** 2 / (n * (1 - total))
        for right, n in counts[:2]
    )
    assert analysis.p_value == pytest.approx(chi2.sf(statistic, 1))


def test_the_bootstrap_equals_resampling_by_hand(predictions):
    groups, labels, probabilities, rejected = predictions
    row = analyse_groups("camera", groups, labels, probabilities, rejected, seed=3).groups[1]
    members = torch.arange(60, 95)
    generator = torch.Generator().manual_seed(3)
    draws = torch.randint(35, (500, 35), generator=generator)
    values = []
    for draw in draws:
        chosen = members[draw]
        names = ["b"] * 35
        values.append(
            reference(names, labels[chosen], probabilities[chosen], rejected[chosen], "b")[1]
        )
    expected = np.quantile(values, [0.025, 0.975])
    assert (row.calibration_error.low, row.calibration_error.high) == pytest.approx(expected)


def test_groups_without_a_difference_have_no_test(predictions):
    groups, labels, _, rejected = predictions
    certain = torch.eye(3, dtype=torch.float64)[labels]
    analysis = analyse_groups("camera", groups, labels, certain, rejected)
    assert analysis.p_value is None
    small = analyse_groups("camera", groups[-5:], labels[-5:], certain[-5:], rejected[-5:])
    assert small.worst is None and small.p_value is None


@pytest.fixture(scope="module")
def table(shapes, tmp_path_factory):
    """A table of `shapes` with a column camera, and a run on it."""
    folder = tmp_path_factory.mktemp("groups")
    file = folder / "images.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["image_path", "label", "split", "camera"])
        for number, path in enumerate(sorted(shapes.rglob("*.png"))):
            split = ("train", "train", "train", "val", "test", "test")[number % 6]
            writer.writerow([path, path.parent.name, split, ("left", "right", "")[number % 3]])
    return file


@pytest.fixture(scope="module")
def run(table, train_small, tmp_path_factory):
    out = tmp_path_factory.mktemp("groups-run") / "run"
    train_small(table, out)
    return out


def test_groups_of_the_run_and_of_given_data_agree(run, table):
    stored = evaluate(run, group="camera").groups
    again = evaluate(run, table, group="camera", device="cpu", workers=0, quiet=True)
    assert stored is not None and again.groups is not None
    assert [row.name for row in stored.groups] == ["(none)", "right"]  # images 4, 5, 10, 11, …
    assert sum(row.images for row in stored.groups) == 8
    for one, other in zip(stored.groups, again.groups.groups, strict=True):
        assert one.accuracy == other.accuracy and one.rejected == other.rejected
        assert one.calibration_error.value == pytest.approx(other.calibration_error.value, abs=1e-6)
    text = describe(again)
    assert "fewer than 30 images ('few'), too few for a conclusion: 2 of 2" in text
    assert json.loads(again.to_json())["groups"]["column"] == "camera"
    assert evaluate(run).groups is None


def test_errors(run, table, shapes, tmp_path):
    with pytest.raises(UserError, match=r"no column 'cam'; did you mean 'camera'\?"):
        evaluate(run, group="cam")
    with pytest.raises(UserError, match=r"needs a \.csv or \.parquet table"):
        groups_of_images(str(shapes), "camera", ["a.png"])
    with pytest.raises(UserError, match=r"does not list 'other\.png'"):
        groups_of_images(str(table), "camera", ["other.png"])


def test_a_parquet_table(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = {"image_path": ["a", "b"], "label": ["x", "y"], "site": [1, None]}
    pq.write_table(pa.table(content), tmp_path / "t.parquet")
    assert groups_of_images(str(tmp_path / "t.parquet"), "site", ["b", "a"]) == ["(none)", "1"]


def test_the_command(scs, run):
    result = scs("evaluate", run, "--group", "camera")
    assert result.code == 0, result.err
    assert "camera" in result.out and "right" in result.out
    assert scs("evaluate", run, "--group", "camera", "--shift").code == 2
