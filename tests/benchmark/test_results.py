"""Results read from run directories."""

import csv
import io
from dataclasses import replace

import numpy as np

from scs_supcon.benchmark.results import evaluated_runs, read_results, results_csv
from scs_supcon.evaluation.record import Evaluation


def test_accuracies_are_those_of_the_runs(two_seeds, cells_of):
    table, runs = two_seeds
    results = read_results(cells_of(table), runs, {})
    evaluated = evaluated_runs(results)["shapes"]
    assert set(evaluated) == {"kNN", "scs_supcon", "supcon", "baseline"}
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
    run = evaluated_runs(results)["shapes"]["kNN"][1, None]
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
