"""The result of a run: typed, read from its files, and as text."""

import json
import shutil

import pytest

from scs_supcon.errors import UserError
from scs_supcon.inference import load
from scs_supcon.training.result import ResultSummary, RunResult, describe, headline

CONTENT = {
    "accuracy": 0.875,
    "interval": [0.8, 0.93],
    "images": 1048,
    "split": "test",
    "baselines": {"knn_on_probe_input": 0.5, "linear_probe_of_encoder": 0.25},
    "probe_heads": [
        {"lr": 3.0, "weight_decay": 0.0, "plain": True, "own": False}
        | {"val_accuracy": 0.7, "val_nll": 1.0, "chosen": False},
        {"lr": 1.0, "weight_decay": 0.0, "plain": False, "own": False}
        | {"val_accuracy": 0.9, "val_nll": 0.5, "chosen": True},
    ],
    "threshold": 0.25,
    "rejected": 0.021,
    "path": "runs/x",
    "seconds": 12.5,
}
SUMMARY = ResultSummary.model_validate(CONTENT)


def test_a_summary_is_read():
    assert (SUMMARY.accuracy, SUMMARY.images, SUMMARY.split) == (0.875, 1048, "test")
    assert (SUMMARY.rejected, SUMMARY.threshold) == (0.021, 0.25)
    assert (SUMMARY.path, SUMMARY.seconds) == ("runs/x", 12.5)
    assert SUMMARY.baselines.measured() == {
        "knn_on_probe_input": 0.5,
        "linear_probe_of_encoder": 0.25,
    }
    assert [head.chosen for head in SUMMARY.probe_heads] == [False, True]


def test_a_finished_run_is_read_with_its_model_and_evaluation(finished):
    result = RunResult.read(finished)
    assert result.path == finished
    assert result.recipe == load(finished).info.recipe
    assert result.accuracy == result.evaluation.accuracy
    assert result.seconds > 0
    assert result.summary.latency > 0
    assert " MB, " in describe(result.summary)
    assert " ms per image)" in describe(result.summary)
    assert result.model.classes == result.evaluation.classes
    assert result.model is result.model, "loaded once"


def test_class_means_are_one_chosen_classifier(shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", ["fusion.classifier=means"])
    (head,) = RunResult.read(tmp_path / "run").summary.probe_heads
    assert head.chosen


def test_exactly_one_head_of_the_probe_is_chosen(finished):
    heads = RunResult.read(finished).summary.probe_heads
    (chosen,) = [head for head in heads if head.chosen]
    assert sum(head.plain for head in heads) == 1
    assert chosen.val_accuracy == max(head.val_accuracy for head in heads)


def test_an_unfinished_or_damaged_run_has_no_result(finished, tmp_path):
    with pytest.raises(UserError, match=r"has no finished\.json"):
        RunResult.read(tmp_path)
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "finished.json").write_text(json.dumps({"accuracy": 1.0}))
    with pytest.raises(UserError, match="cannot be read"):
        RunResult.read(run)


def test_the_text_lists_accuracy_baselines_rejection_and_commands():
    assert headline(SUMMARY) == (
        "87.5% test accuracy on 1,048 images (95% confidence interval 80.0% to 93.0%)"
    )
    text = describe(SUMMARY)
    assert text.startswith(headline(SUMMARY))
    for line in (
        "this model                         87.50%",
        "kNN on the probe input             50.00%",
        "validation accuracy of the probe heads: 70.00% to 90.00%",
        "2.1% of the test images are rejected as unknown (similarity below 0.250; change",
        "scs predict runs/x image.jpg",
        "scs evaluate runs/x",
    ):
        assert line in text
    assert "caution" not in text


def test_a_better_linear_probe_is_named_with_its_command(finished):
    recipe = RunResult.read(finished).recipe
    baselines = SUMMARY.baselines.model_copy(update={"linear_probe_of_encoder": 0.9})
    better = SUMMARY.model_copy(update={"baselines": baselines})
    text = describe(better, recipe)
    assert "the linear probe is 2.5 points better (may be chance); to train it:" in text
    options = "--method baseline --init-from runs/x --frozen --out runs/x-linear"
    assert f"  scs train {recipe.data.source} {options}" in text
    assert "to train it" not in describe(SUMMARY, recipe)
    encoder = recipe.encoder.model_copy(update={"frozen": True, "weights": "pretrained"})
    frozen = recipe.model_copy(update={"encoder": encoder})
    assert "--method baseline --encoder tiny --frozen --out" in describe(better, frozen)


def test_paths_with_spaces_are_quoted():
    text = describe(SUMMARY.model_copy(update={"path": "my runs/x"}))
    assert "scs predict 'my runs/x' image.jpg" in text
    assert "scs evaluate 'my runs/x'" in text


def test_an_accuracy_on_validation_images_comes_with_a_caution():
    text = describe(SUMMARY.model_copy(update={"split": "val"}))
    assert text.startswith("87.5% validation accuracy on 1,048 images")
    assert "caution: There is no test" in text
