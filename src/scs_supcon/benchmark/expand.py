"""Expand a table to the resolved recipe of each of its cells."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from scs_supcon.benchmark.pairwise import RunKey
from scs_supcon.benchmark.table import READOUTS, Column, Row, Table
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.plugins import is_plugin
from scs_supcon.recipe import Recipe, make_recipe, merge
from scs_supcon.recipe.resolve import DatasetFacts, InputFiles, TrainOptions, resolve_recipe
from scs_supcon.runs.address import StoredRun, recipe_key, run_address, stored_runs
from scs_supcon.training.input_files import read_input_files


@dataclass(frozen=True)
class Cell:
    """One run of the table.

    Attributes:
        row: the method's name in the table.
        column: the column's name.
        seed: the seed of the run.
        fold: the fold of the cross-validation, if any.
        recipe: the resolved recipe.
        weights: the file of the encoder's weights; the recipe holds its digest only.
        rate_factor: the recipe's learning rate, divided by the one before tuning.
        tuned: whether the cell is trained with several learning rates; this run has one of them.
        stored: the run directory of older code to use instead of the usual one.
    """

    row: str
    column: str
    seed: int
    fold: int | None
    recipe: Recipe
    weights: str | None
    rate_factor: float = 1.0
    tuned: bool = False
    stored: str | None = None

    @property
    def key(self) -> RunKey:
        """Seed and fold."""
        return self.seed, self.fold

    @property
    def address(self) -> str:
        """The name of the run directory: the hash of the recipe and of the numeric code."""
        return self.stored or run_address(self.recipe)

    @property
    def method(self) -> str:
        """The method with its preset, such as "scs_supcon@paper"."""
        name, preset = self.recipe.method.name, self.recipe.method.preset
        return f"{name}@{preset}" if preset else name

    def __str__(self) -> str:
        fold = "" if self.fold is None else f", fold {self.fold}"
        rate = f", learning rate {self.recipe.pretrain.lr:g}" if self.tuned else ""
        return f"{self.row} on {self.column}, seed {self.seed}{fold}{rate}"


@dataclass(frozen=True)
class Source:
    """The images of a dataset, the digest of their content, and the images left out."""

    images: ImageDataset
    content: str
    left_out: tuple[str, ...] = ()


def expand(
    table: Table, sources: Mapping[str, Source], *, has_gpu: bool = False
) -> tuple[Cell, ...]:
    """Return the cells of the table, ordered by seed, fold, column, method and learning rate.

    Args:
        table: what to compare.
        sources: the images of each `data` of the columns.
        has_gpu: whether there is a GPU, which decides some defaults.
    """
    files = read_table_inputs(table)
    folds = range(table.folds) if table.folds else [None]
    facts = {name: DatasetFacts.of(source.images) for name, source in sources.items()}
    cells = []
    for seed, fold, column, row in product(range(table.seeds), folds, table.columns, table.methods):
        options = _options(table, column, row, (seed, fold), sources[column.data].content)
        inputs = files[row.name, column.name]
        weights, _ = column.weights_and_encoder
        recipe = resolve_recipe(options, facts[column.data], inputs, has_gpu=has_gpu)
        factors = table.rate_factors(recipe, row)
        cells += [
            Cell(
                row.name,
                column.name,
                seed,
                fold,
                _with_rate(recipe, factor),
                None if weights is None else str(weights),
                rate_factor=factor,
                tuned=len(factors) > 1,
            )
            for factor in factors
        ]
    return tuple(cells)


def _with_rate(recipe: Recipe, factor: float) -> Recipe:
    """Return the recipe with another learning rate of stage 1, rounded to three digits."""
    if factor == 1:
        return recipe
    rate = float(f"{recipe.pretrain.lr * factor:.3g}")
    return make_recipe(merge(recipe.model_dump(), {"pretrain": {"lr": rate}}))


def read_table_inputs(table: Table) -> dict[tuple[str, str], InputFiles]:
    """Return the input files of each (row, column), and check all options before data is read."""
    return {
        (row.name, column.name): read_input_files(_options(table, column, row, (0, None)))
        for row, column in product(table.methods, table.columns)
    }


def runs_of_other_code(cells: tuple[Cell, ...], runs: Path) -> dict[str, StoredRun]:
    """Return the stored runs, by recipe key, of cells that the current code has not run."""
    plugins = {name for cell in cells if is_plugin(name := cell.recipe.method.name)}
    keys = {recipe_key(cell.recipe) for cell in cells}
    return {
        key: choices[0]
        for key, choices in stored_runs(runs, plugins).items()
        if key in keys and not choices[0].same_code
    }


def with_stored_runs(cells: tuple[Cell, ...], stored: Mapping[str, StoredRun]) -> tuple[Cell, ...]:
    """Return the cells, each with the run directory that `stored` has for its recipe key."""
    keys = [recipe_key(cell.recipe) for cell in cells]
    return tuple(
        replace(cell, stored=stored[key].name) if key in stored else cell
        for cell, key in zip(cells, keys, strict=True)
    )


def _options(
    table: Table, column: Column, row: Row, key: RunKey, content: str | None = None
) -> TrainOptions:
    seed, fold = key
    folds = [] if fold is None else [f"data.folds={table.folds}", f"data.fold={fold}"]
    digest = [] if content is None else [f"data.content={content}"]
    count = column.images_per_class
    budget = [] if count is None else [f"data.images_per_class={count}"]
    budget += [] if column.imbalance is None else [f"data.imbalance={column.imbalance}"]
    readout = row.readout or table.readout
    budget += READOUTS[readout] if readout else ()
    weights, encoder = column.weights_and_encoder
    return TrainOptions(
        source=column.data,
        method=row.method,
        encoder=encoder,
        transform=column.transform,
        weights=weights,
        from_scratch=column.from_scratch,
        frozen=column.frozen,
        unfreeze=column.unfreeze,
        recipe=Path(column.recipe) if column.recipe else None,
        seed=seed,
        settings=(*table.settings, *budget, *column.settings, *row.settings, *folds, *digest),
    )
