"""The estimated cost of a table."""

import pytest

from scs_supcon.benchmark.cost import describe_costs, estimate_costs, stage_1_seconds
from scs_supcon.training import estimate
from scs_supcon.training.estimate import StageCost


def test_finished_runs_give_the_estimate(two_seeds, small_table, cells_of, source):
    _, runs = two_seeds
    table = small_table(["supcon", "simclr"], seeds=3)
    cells = cells_of(table)
    costs = estimate_costs(cells, runs, {table.columns[0].data: source})
    by_cell = {(cell.row, cell.seed): costs[cell.address] for cell in cells}
    assert by_cell["supcon", 0] is None
    assert by_cell["supcon", 2].basis == "from its finished runs"
    assert by_cell["simclr", 0].basis == "from finished runs of other methods"
    text = describe_costs(cells, costs, jobs=2)
    assert "supcon on shapes, seed 0    finished" in text
    assert "9 runs, 5 to do: " in text.splitlines()[-1]
    assert text.endswith("with 2 jobs")


def test_without_finished_runs_a_step_is_timed(small_table, cells_of, source, tmp_path):
    table = small_table(["supcon"])
    cells = cells_of(table)
    costs = estimate_costs(cells, tmp_path, {table.columns[0].data: source})
    assert {cost.basis for cost in costs.values()} == {"stage 1 only, from timing a step"}
    assert all(cost.seconds > 0 for cost in costs.values())
    assert describe_costs(cells, costs, 1).endswith(
        "with 1 job, plus feature extraction and stage 2"
    )


def test_a_finished_table_has_nothing_to_do(cells_of, small_table):
    cells = cells_of(small_table(["supcon"]))
    text = describe_costs(cells, dict.fromkeys((cell.address for cell in cells), None), jobs=1)
    assert text.endswith("2 runs, 0 to do")


def test_the_time_grows_with_the_epochs(small_table, cells_of, source, monkeypatch):
    monkeypatch.setattr(estimate, "_time_step", lambda *_: 0.25)
    (cell, _) = cells_of(small_table(["supcon"]))
    long = cell.recipe.model_copy(
        update={"pretrain": cell.recipe.pretrain.model_copy(update={"epochs": 1000})}
    )
    epochs = cell.recipe.pretrain.epochs
    seconds = stage_1_seconds(cell.recipe, source)
    assert stage_1_seconds(long, source) == pytest.approx(1000 / epochs * seconds)


def test_frozen_encoders_are_timed_with_whole_batches_and_all_folds(
    small_table, cells_of, source, monkeypatch
):
    timed = []

    def record(network, method, batch, size, steps, device):
        timed.append((len(batch.labels), size))
        return StageCost(10.0, 0)

    monkeypatch.setattr(estimate, "estimate_stage_1", record)
    (cell, _) = cells_of(small_table(["supcon"]))
    frozen = cell.recipe.encoder.model_copy(update={"frozen": True})
    recipe = cell.recipe.model_copy(update={"encoder": frozen})
    assert stage_1_seconds(recipe, source) == 10
    assert timed == [(8, 8)]
    fusion = recipe.fusion.model_copy(update={"whitened": True, "folds": 5})
    assert stage_1_seconds(recipe.model_copy(update={"fusion": fusion}), source) == 50
