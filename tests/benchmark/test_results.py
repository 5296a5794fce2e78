"""Results read from run directories."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.benchmark.metrics import find_metric
from scs_supcon.benchmark.results import evaluated_runs, knn_name, read_results, results_csv
from scs_supcon.errors import UserError
from scs_supcon.evaluation.record import Evaluation

KNN = "kNN on tiny, trained by baseline"


def test_accuracies_are_those_of_the_runs(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    evaluated = evaluated_runs(results)["shapes"]
    assert set(evaluated) == {KNN, "scs_supcon", "supcon", "baseline"}
    for result in results:
        evaluation = Evaluation.read(result.run / "evaluation.json")
        run = evaluated[result.cell.row][result.cell.key]
        assert np.isclose(run.accuracy, 100 * evaluation.accuracy)
        assert len(run.images) == evaluation.images
        assert list(run.images) == sorted(run.images)
        assert run.split == evaluation.split == "test"
        splits = (result.run / "splits.csv").read_text()
        assert run.training_images == splits.count(",train")


def test_knn_of_a_trained_encoder_is_taken_from_cross_entropy(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    (baseline,) = [r for r in results if r.cell.row == "baseline" and r.cell.seed == 1]
    run = evaluated_runs(results)["shapes"][KNN][1, None]
    assert np.isclose(run.accuracy, 100 * baseline.evaluation.baselines.knn_on_encoder)


def test_missing_and_failed_runs_are_listed_with_the_reason(two_seeds, small_table, cells_of):
    _, runs = two_seeds
    cells = cells_of(small_table(["supcon", "simclr"], seeds=1))
    addresses = {cell.row: cell.address for cell in cells}
    results = read_results(cells, runs, {addresses["simclr"]: "no memory"})
    assert [result.status for result in results] == ["done", "failed", "done"]
    assert evaluated_runs(results)["shapes"]["simclr"] == {}
    rows = list(csv.DictReader(io.StringIO(results_csv(results))))
    assert [row["method"] for row in rows] == ["supcon", "simclr", "baseline"]
    assert rows[1]["status"] == "failed"
    odd = read_results([replace(cells[1], row="=1+1", column="@x")], runs, {cells[1].address: "-"})
    (row,) = csv.DictReader(io.StringIO(results_csv(odd)))
    assert (row["method"], row["column"], row["failure"]) == ("'=1+1", "'@x", "'-")
    assert rows[1]["failure"] == "no memory"
    assert rows[1]["accuracy"] == ""
    assert rows[0]["run"] == addresses["supcon"]
    assert float(rows[0]["accuracy"]) == results[0].evaluation.accuracy
    assert float(rows[0]["seconds"]) > 0


def test_every_metric_of_a_run_is_in_the_file(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    rows = list(csv.DictReader(io.StringIO(results_csv(results))))
    for result, row in zip(results, rows, strict=True):
        evaluation = result.evaluation
        expected = {
            "map_at_r": evaluation.retrieval.map_at_r,
            "precision_at_1": evaluation.retrieval.precision_at_1,
            "ece": evaluation.calibration.after.ece,
            "nll": evaluation.calibration.nll,
            "pair_auc": evaluation.pairs.auc,
            "rejected": evaluation.rejection.known_rejected,
        }
        for name, value in expected.items():
            assert float(row[name]) == value, name
        assert row["readout"] == result.summary.readout
        seconds = float(row["seconds_without_extraction"]) + float(row["seconds_extraction"] or 0)
        assert seconds == pytest.approx(result.seconds)
        if result.evaluation.leakage is not None:
            assert float(row["class_from_style"]) == evaluation.leakage.class_from_style
            assert float(row["leakage"]) == evaluation.leakage.excess
    by_method = {row["method"]: row for row in rows}
    assert by_method["supcon"]["t"] == ""
    log = csv.DictReader((runs / by_method["scs_supcon"]["run"] / "metrics.csv").open())
    last = {row["metric"]: row["value"] for row in log if row["stage"] == "pretrain"}
    assert float(by_method["scs_supcon"]["t"]) == float(last["t"])
    assert float(by_method["scs_supcon"]["b"]) == float(last["b"])


def test_t_and_b_are_logged_after_every_step(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    (result, *_) = [r for r in results if r.cell.row == "scs_supcon"]
    steps, values = result.pair_curves["t"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > result.cell.recipe.pretrain.epochs
    assert len(values) == len(result.pair_curves["b"][1]) == len(steps)


def test_the_row_of_knn_names_its_encoder(cells_of, small_table, shapes):
    cells = cells_of(small_table(["supcon"], seeds=1))
    assert knn_name(cells) == KNN
    frozen = [with_encoder(cell, "resnet18", frozen=True) for cell in cells]
    assert knn_name(frozen) == "kNN on resnet18"
    assert knn_name([*frozen, with_encoder(cells[0], "resnet50", frozen=True)]) == (
        "kNN on encoder of the column"
    )


def with_encoder(cell, name, frozen):
    encoder = cell.recipe.encoder.model_copy(update={"name": name, "frozen": frozen})
    return replace(cell, recipe=cell.recipe.model_copy(update={"encoder": encoder}))


def test_runs_can_be_compared_by_another_metric(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    metric = find_metric("nll")
    evaluated = evaluated_runs(results, metric)["shapes"]
    assert set(evaluated) == {"scs_supcon", "supcon", "baseline"}, "kNN has no probabilities"
    for result in results:
        run = evaluated[result.cell.row][result.cell.key]
        assert run.score == result.evaluation.calibration.nll
    with pytest.raises(UserError, match=r"unknown metric 'nl'.*did you mean"):
        find_metric("nl")
