"""Expansion is deterministic, and addresses depend on recipe and data."""

from dataclasses import replace

from scs_supcon.benchmark.expand import expand
from scs_supcon.recipe.resolve import split_dataset


def test_expansion_is_deterministic(small_table, cells_of):
    table = small_table(seeds=2)
    cells = cells_of(table)
    assert cells == cells_of(table)
    assert [(cell.row, cell.key) for cell in cells] == [
        (row, (seed, None)) for seed in range(2) for row in ("scs_supcon", "supcon", "baseline")
    ]
    assert len({cell.address for cell in cells}) == 6
    assert str(cells[0]) == "scs_supcon on shapes, seed 0"


def test_all_methods_get_the_same_data_and_budget(small_table, cells_of):
    first, *others = cells_of(small_table())
    for cell in others:
        assert cell.recipe.data == first.recipe.data
        assert cell.recipe.encoder == first.recipe.encoder
        # The recommended recipe also trains with cross-entropy, on one view of each image.
        own = {"cross_entropy": 0.0, "views": None}
        budgets = [c.recipe.pretrain.model_copy(update=own) for c in (cell, first)]
        assert budgets[0] == budgets[1]
        assert cell.recipe.probe == first.recipe.probe


def test_tables_share_common_runs(small_table, cells_of):
    few = {cell.address for cell in cells_of(small_table(["supcon"]))}
    many = {cell.address for cell in cells_of(small_table(["simclr", "supcon"], seeds=3))}
    assert few < many


def test_folds_test_every_image_once(small_table, cells_of, source):
    cells = [cell for cell in cells_of(small_table(["supcon"], folds=3)) if cell.row == "supcon"]
    assert [cell.key for cell in cells] == [(0, 0), (0, 1), (0, 2)]
    tested = sum(
        (split_dataset(source.images, cell.recipe) == "test").astype(int) for cell in cells
    )
    assert set(tested.tolist()) == {1}
    assert str(cells[1]) == "supcon on shapes, seed 0, fold 1"


def test_the_address_depends_on_recipe_and_content_but_not_on_the_path(small_table, source):
    table = small_table(["supcon"])
    (here, _) = expand(table, {table.columns[0].data: source})
    moved = small_table(["supcon"], columns=[{"data": "elsewhere", "name": "shapes"}])
    (there, _) = expand(moved, {"elsewhere": source})
    assert here.address == there.address
    changed = replace(source, content="0" * 64)
    (other, _) = expand(table, {table.columns[0].data: changed})
    assert other.address != here.address
    longer = small_table(["supcon"], settings=["pretrain.epochs=2"])
    (budget, _) = expand(longer, {table.columns[0].data: source})
    assert budget.address != here.address


def test_settings_of_the_row_override_those_of_column_and_table(small_table, cells_of):
    column = small_table().columns[0].data
    table = small_table(
        ["supcon", {"method": "supcon", "name": "slow", "settings": ["pretrain.lr=0.3"]}],
        columns=[{"data": column, "settings": ["pretrain.lr=0.2"]}],
        settings=["pretrain.lr=0.1", "pretrain.epochs=1"],
    )
    rates = {cell.row: cell.recipe.pretrain.lr for cell in cells_of(table)}
    assert rates == {"supcon": 0.2, "slow": 0.3, "baseline": 0.2}


def test_presets_are_kept(small_table, cells_of):
    cells = cells_of(small_table(["scs_supcon@paper"]))
    assert [cell.method for cell in cells] == ["scs_supcon@paper", "baseline"]


def test_a_column_can_have_few_images_per_class(small_table, cells_of, source):
    data = small_table().columns[0].data
    few = {"data": data, "images_per_class": 3}
    table = small_table(["supcon"], columns=[{"data": data}, few], folds=3)
    all_images, three = (cell.recipe for cell in cells_of(table)[::2][:2])
    assert [column.name for column in table.columns] == ["shapes", "shapes, 3 per class"]
    before, after = (split_dataset(source.images, recipe) for recipe in (all_images, three))
    assert ((before == "test") == (after == "test")).all()
    assert (after != "unused").sum() < (before != "unused").sum()
    assert three.pretrain.batch_size == (after == "train").sum()


def test_a_column_can_have_a_long_tail(small_table, cells_of):
    data = small_table().columns[0].data
    table = small_table(["supcon"], columns=[{"data": data, "imbalance": 4}])
    cells = cells_of(table)
    assert {cell.recipe.data.imbalance for cell in cells} == {4.0}
    assert all("imbalance 4" in cell.column for cell in cells)


def test_a_column_can_have_a_recipe(small_table, cells_of, tmp_path):
    data = small_table().columns[0].data
    table = small_table(["scs_supcon", "supcon"], columns=[{"data": data, "recipe": "paper"}])
    paper, supcon, *_ = cells_of(table)
    assert (paper.recipe.method.preset, paper.recipe.probe.classifier) == ("paper", "single")
    assert (supcon.recipe.method.name, supcon.recipe.pretrain.lr) == ("supcon", 0.5)
    file = tmp_path / "mine.toml"
    file.write_text("[pretrain]\nlr = 0.123\n")
    table = small_table(["supcon"], columns=[{"data": data, "recipe": str(file)}])
    assert cells_of(table)[0].recipe.pretrain.lr == 0.123
