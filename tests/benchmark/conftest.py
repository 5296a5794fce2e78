"""Small comparisons on `shapes`; a run takes about a second."""

from pathlib import Path

import numpy as np
import pytest

from scs_supcon.benchmark.expand import Source, expand
from scs_supcon.benchmark.pairwise import EvaluatedRun
from scs_supcon.benchmark.table import Table, make_table
from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.device import find_compute
from scs_supcon.progress import Display

QUICK = (
    *("pretrain.epochs=1", "pretrain.batch_size=8", "probe.epochs=2", "probe.views=1"),
    *("data.test_share=0.34", "data.val_share=0.2"),
)


@pytest.fixture(scope="session")
def small_table(shapes):
    """`small_table(methods=[...], seeds=2)` returns a table with one column, `shapes`."""

    def make(methods=("scs_supcon", "supcon"), **values) -> Table:
        defaults = {"columns": [{"data": str(shapes)}], "settings": QUICK}
        return make_table(methods=methods, **(defaults | values))

    return make


@pytest.fixture(scope="session")
def source(shapes):
    images, _ = load_dataset(str(shapes), 1, lambda *_: None)
    return Source(images, content_digest(images))


@pytest.fixture(scope="session")
def cells_of(source):
    """`cells_of(table)` returns its cells."""

    def make(table: Table):
        return expand(table, {column.data: source for column in table.columns})

    return make


@pytest.fixture(scope="session")
def train_cells(train_small, cells_of):
    """`train_cells(table, runs)` trains all cells in this process."""

    def train(table: Table, runs: Path) -> None:
        from scs_supcon.recipe import write_toml
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
    """A table of two methods, cross-entropy and two seeds, and the folder of its runs."""
    table, runs = small_table(seeds=2), tmp_path_factory.mktemp("two_seeds")
    train_cells(table, runs)
    return table, runs


@pytest.fixture
def compute():
    return find_compute("cpu", 0)


@pytest.fixture
def run_compare(tmp_path, compute, silent):
    """`run_compare(table, runs)` compares finished runs and writes to `tmp_path / "out"`."""
    from scs_supcon.benchmark.compare import run_comparison

    def run(table: Table, runs: Path, **options):
        values = {"compute": compute, "jobs": 1, "display": silent, "train": False} | options
        return run_comparison(table, out=tmp_path / "out", runs=runs, **values)

    return run


@pytest.fixture
def silent() -> Display:
    return Display(quiet=True)


@pytest.fixture
def evaluated():
    """`evaluated(accuracy, seed)` returns a run on 200 images, which differ between folds."""

    def make(accuracy: float, seed: int, fold: int | None = None) -> EvaluatedRun:
        rng = np.random.default_rng([seed, fold or 0])
        names = tuple(f"{fold}/{number:03d}" for number in range(200))
        return EvaluatedRun(names, rng.random(200) < accuracy, 800)

    return make


@pytest.fixture
def rows(evaluated):
    """`rows(keys, good=0.9, bad=0.5)` returns runs by method, with common random numbers."""

    def make(keys, **accuracies):
        return {
            name: {key: evaluated(accuracy, *key) for key in keys}
            for name, accuracy in accuracies.items()
        }

    return make
