"""Costs before anything is trained."""

import pytest

from scs_supcon.device import find_compute
from scs_supcon.progress import Display
from scs_supcon.reproduce.cost import ExperimentCost, describe, estimate, multiplications
from scs_supcon.reproduce.plan import ReproduceOptions
from scs_supcon.reproduce.resources import Resources


@pytest.fixture
def resources(tmp_path):
    compute = find_compute("cpu", 0)
    return Resources(tmp_path / "out", tmp_path / "runs", compute, 1, Display(quiet=True))


def test_gpu_hours_start_from_the_papers_timing(resources):
    # Table 6: three methods with two views each, two epochs of 17.5 s.
    text = estimate(["table6_efficiency"], ReproduceOptions("paper"), resources)
    assert text.startswith("table6_efficiency     3 runs,    3 to do; 0 GPU hours")
    assert "RTX 4090" in text
    # Table 5: of nine trained rows, cross-entropy and SelfCon have one view; five folds.
    text = estimate(["table5_folds"], ReproduceOptions("paper"), resources)
    work = multiplications("resnet50", 32) / multiplications("resnet18", 32)
    hours = (7 + 2 / 2) * 5 * 1000 * 17.5 * work / 3600
    assert f"{hours:,.0f} GPU hours" in text


def test_the_operations_of_an_encoder_are_counted():
    # ResNet-18 with the stem for small images: 0.56 billion multiplications, two operations each.
    assert multiplications("resnet18", 32) == pytest.approx(1.11e9, rel=0.01)


def test_runs_that_experiments_share_are_counted_once(resources, shapes):
    options = ReproduceOptions("smoke", {"cifar10": str(shapes)}, rows=("SCS-SupCon",))
    text = estimate(["table8_ablation", "table4_resnet18", "figure_sigmoid"], options, resources)
    lines = text.splitlines()
    assert lines[0].startswith("table8_ablation     2 runs,    2 to do: ")
    assert lines[1] == "table4_resnet18     2 runs,    0 to do"
    assert lines[2] == "figure_sigmoid      0 runs,    0 to do"
    assert not resources.runs.exists()


def test_costs_as_text():
    text = describe([ExperimentCost("x", 4, 2, 7200.0), ExperimentCost("yy", 1, 1, 3600.0, 9.6)], 2)
    assert text.splitlines()[:2] == [
        "x      4 runs,    2 to do: about 60 min",
        "yy     1 runs,    1 to do: about 30 min; 10 GPU hours",
    ]
    assert "total on this device with 2 jobs: about 1.5 h" in text
