"""Reading what runs left."""

import csv
import io
import json
from dataclasses import replace

import numpy as np

from scs_supcon.benchmark.results import judged_cells, read_outcomes, results_csv


def test_accuracies_are_those_of_the_runs(two_seeds, cells_of):
    table, runs = two_seeds
    outcomes = read_outcomes(cells_of(table), runs, {})
    judged = judged_cells(outcomes)["shapes"]
    assert set(judged) == {"kNN", "scs_supcon", "supcon", "baseline"}
    for outcome in outcomes:
        summary = json.loads((outcome.run / "finished.json").read_text())
        one = judged[outcome.cell.row][outcome.cell.key]
        assert np.isclose(one.accuracy, 100 * summary["accuracy"])
        assert len(one.names) == summary["images"]
        assert list(one.names) == sorted(one.names)
        assert one.judged_on == summary["judged_on"] == "test"
        splits = (outcome.run / "splits.csv").read_text()
        assert one.trained_on == splits.count(",train")


def test_neighbours_of_a_trained_encoder_are_those_of_cross_entropy(two_seeds, cells_of):
    table, runs = two_seeds
    outcomes = read_outcomes(cells_of(table), runs, {})
    (first,) = [o for o in outcomes if o.cell.row == "baseline" and o.cell.seed == 1]
    found = judged_cells(outcomes)["shapes"]["kNN"][1, None]
    assert np.isclose(found.accuracy, 100 * first.summary["baselines"]["kNN on the encoder"])


def test_what_was_not_run_is_missing_and_what_failed_says_why(two_seeds, small_table, cells_of):
    _, runs = two_seeds
    cells = cells_of(small_table(["supcon", "simclr"], seeds=1))
    addresses = {cell.row: cell.address for cell in cells}
    outcomes = read_outcomes(cells, runs, {addresses["simclr"]: "no memory"})
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert judged_cells(outcomes)["shapes"]["simclr"] == {}
    rows = list(csv.DictReader(io.StringIO(results_csv(outcomes))))
    assert [row["method"] for row in rows] == ["supcon", "simclr", "baseline"]
    assert rows[1]["status"] == "failed"
    odd = read_outcomes([replace(cells[1], row="=1+1", column="@x")], runs, {cells[1].address: "-"})
    (row,) = csv.DictReader(io.StringIO(results_csv(odd)))
    assert (row["method"], row["column"], row["failure"]) == ("'=1+1", "'@x", "'-")
    assert rows[1]["failure"] == "no memory"
    assert rows[1]["accuracy"] == ""
    assert rows[0]["run"] == addresses["supcon"]
    assert float(rows[0]["accuracy"]) == outcomes[0].summary["accuracy"]
    assert float(rows[0]["seconds"]) > 0
