"""Every method is tuned with the same budget, on validation images only."""

import csv
import io
import json

import pytest

from scs_supcon.benchmark.compare import describe_tuning, dry_run, write_results
from scs_supcon.benchmark.rates import (
    best_run,
    choose_rates,
    tuning_csv,
)
from scs_supcon.benchmark.results import read_results
from scs_supcon.benchmark.table import TUNE_RATES
from scs_supcon.errors import UserError
from scs_supcon.evaluation.predictions import ValidationScores

RATES = (1 / 3, 1.0, 3.0)


@pytest.fixture(scope="module")
def tuned_runs(small_table, train_cells, tmp_path_factory):
    """A table of one method and cross-entropy with three rates each, and its runs."""
    table, runs = small_table(["supcon"], tune_rates=RATES), tmp_path_factory.mktemp("tuned")
    train_cells(table, runs)
    return table, runs


def test_every_method_has_the_same_rates_relative_to_its_own(small_table, cells_of):
    cells = cells_of(small_table(["supcon"], tune_rates=RATES, settings=["pretrain.lr=0.1"]))
    assert [(cell.row, cell.recipe.pretrain.lr) for cell in cells] == [
        (row, rate) for row in ("supcon", "baseline") for rate in (0.0333, 0.1, 0.3)
    ]
    assert len({cell.address for cell in cells}) == 6
    assert str(cells[0]) == "supcon on shapes, seed 0, learning rate 0.0333"
    (untuned, _) = cells_of(small_table(["supcon"], settings=["pretrain.lr=0.1"]))
    assert untuned.address == cells[1].address, "the middle rate is the ordinary run"


def test_rates_are_tuned_by_default_if_the_encoder_is_frozen(small_table, cells_of):
    recipe = cells_of(small_table())[0].recipe
    frozen = recipe.model_copy(
        update={"encoder": recipe.encoder.model_copy(update={"frozen": True})}
    )
    assert small_table().rate_factors(recipe) == (1.0,)
    assert small_table().rate_factors(frozen) == TUNE_RATES
    assert small_table(tune_rates=[1]).rate_factors(frozen) == (1.0,)
    assert small_table(tune_rates=[0.5, 1]).rate_factors(recipe) == (0.5, 1.0)
    for wrong in ([], [0, 1], [1, 1]):
        with pytest.raises(UserError, match="tune_rates"):
            small_table(tune_rates=wrong)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(1.0, 0.8), (0.5, 0.7), (0.1, 0.6)], 0),  # accuracy counts first
        ([(1.0, 0.8), (0.9, 0.8), (0.5, 0.8)], 2),  # then the likelihood
        ([(1.0, 0.8), (1.0, 0.8), (1.0, 0.8)], 1),  # then the method's own rate
        ([(1.0, 0.8), (1.0, 0.7), None], 0),  # a failed run is left out
        ([None, None, None], None),
    ],
)
def test_the_best_rate_on_the_validation_images_is_chosen(scores, best):
    assert best_run([score and ValidationScores(*score, 10) for score in scores], RATES) == best


def test_a_cell_whose_runs_all_failed_is_failed(small_table, cells_of, tmp_path):
    cells = cells_of(small_table(["baseline"], tune_rates=RATES))
    failures = {cell.address: "diverged" for cell in cells}
    (cell,) = choose_rates(read_results(cells, tmp_path, failures))
    assert (cell.result.status, cell.result.failure) == ("failed", "diverged")
    assert not any(candidate.chosen for candidate in cell.candidates)


def test_the_comparison_reports_the_chosen_runs(tuned_runs, cells_of, run_compare, tmp_path):
    table, runs = tuned_runs
    report = run_compare(table, runs)
    assert [result.cell.row for result in report.results] == ["supcon", "baseline"]
    out = tmp_path / "out"
    tried = list(csv.DictReader((out / "tuning.csv").open()))
    assert len(tried) == 6
    for row, result in zip(("supcon", "baseline"), report.results, strict=True):
        of_row = [line for line in tried if line["method"] == row]
        best = max(float(line["val_accuracy"]) for line in of_row)
        (chosen,) = [line for line in of_row if line["chosen"] == "1"]
        assert float(chosen["val_accuracy"]) == best
        assert chosen["run"] == result.cell.address
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [float(row["learning_rate"]) for row in rows] == [
        result.cell.recipe.pretrain.lr for result in report.results
    ]
    statistics = json.loads((out / "statistics.json").read_text())
    assert [entry["method"] for entry in statistics["chosen_rates"]] == ["supcon", "baseline"]
    page = (out / "comparison.html").read_text()
    assert "How often each rate was chosen" in page
    assert "tuned learning rate" in page
    assert "<code>pretrain.lr</code>" not in page


def test_a_missing_rate_leaves_the_method_without_a_result(tuned_runs, cells_of, tmp_path):
    table, runs = tuned_runs
    more = table.model_copy(update={"tune_rates": (*RATES, 9.0)})
    report = write_results(more, cells_of(more), {}, out=tmp_path, runs=runs)
    assert {result.status for result in report.results} == {"missing"}
    text = tuning_csv(choose_rates(read_results(cells_of(more), runs, {})))
    assert [row["status"] for row in csv.DictReader(io.StringIO(text))].count("missing") == 2


def test_the_dry_run_lists_every_rate(tuned_runs, compute, silent, cells_of, small_table):
    table, runs = tuned_runs
    text = dry_run(table, runs=runs, compute=compute, jobs=1, display=silent)
    assert text.count("finished") == 6
    assert "learning rate 0.3" in text
    assert text.splitlines()[-1].startswith("Every method is trained with 3 learning rates")
    assert describe_tuning(cells_of(small_table())) == ""
