"""Small comparisons of the pictures `shapes`, at about a second for a run."""

from pathlib import Path

import pytest

from scs_supcon.data.reading import content_digest, read_usable
from scs_supcon.display import Display
from scs_supcon.place import find_place
from scs_supcon.suite.compare import Suite
from scs_supcon.suite.expand import Source, expand
from scs_supcon.suite.table import Table, make_table

QUICK = (
    *("pretrain.epochs=1", "pretrain.batch_size=8", "probe.epochs=2", "probe.views=1"),
    *("data.test_share=0.34", "data.val_share=0.2"),
)


@pytest.fixture(scope="session")
def small_table(shapes):
    """`small_table(methods=[...], seeds=2)`: a table with `shapes` as its column."""

    def make(methods=("scs_supcon", "supcon"), **more) -> Table:
        usual = {"columns": [{"data": str(shapes)}], "settings": QUICK}
        return make_table({"methods": methods, **usual, **more})

    return make


@pytest.fixture(scope="session")
def source(shapes):
    pictures, _ = read_usable(str(shapes), 1, lambda *_: None)
    return Source(pictures, content_digest(pictures))


@pytest.fixture(scope="session")
def cells_of(source):
    """`cells_of(table)`: its cells."""

    def make(table: Table):
        return expand(table, {column.data: source for column in table.columns})

    return make


@pytest.fixture(scope="session")
def train_cells(train_small, cells_of):
    """`train_cells(table, runs)`: all its cells, in this process."""

    def train(table: Table, runs: Path) -> None:
        from scs_supcon.config import write_toml
        from scs_supcon.training.train import train

        for cell in cells_of(table):
            recipe = runs / "recipes" / f"{cell.address}.toml"
            recipe.parent.mkdir(parents=True, exist_ok=True)
            recipe.write_text(write_toml(cell.recipe))
            where = {"out": runs / cell.address, "recipe": recipe, "method": cell.method}
            train(cell.recipe.data.source, **where, device="cpu", workers=0, quiet=True)

    return train


@pytest.fixture(scope="session")
def two_seeds(small_table, train_cells, tmp_path_factory):
    """A table of two methods, cross-entropy and two seeds, and the folder of its finished runs."""
    table, runs = small_table(seeds=2), tmp_path_factory.mktemp("two_seeds")
    train_cells(table, runs)
    return table, runs


@pytest.fixture
def suite_of(tmp_path):
    """`suite_of(table, runs)`: results in a folder of this test."""

    def make(table: Table, runs: Path | None = None, jobs: int = 1) -> Suite:
        place = find_place("cpu", 0)
        return Suite(table, tmp_path / "out", runs or tmp_path / "runs", place, jobs)

    return make


@pytest.fixture
def silent() -> Display:
    return Display(quiet=True)
