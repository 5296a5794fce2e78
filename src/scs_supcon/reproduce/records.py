"""The results folder of an experiment: what is needed to check every number, and nothing else.

    README.md      the table with the published numbers beside ours; each number links to its recipe
    table.toml     the comparison; rows.csv: one row per run; summary.csv: one row per number
    recipes/       the recipe of every run, with the command that runs it
    predictions/   the predicted class of every test image of every run
    figures/

Folders of the machine are not recorded: data is named as in the paper, weights by their file name.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.benchmark.compare import ComparisonReport
from scs_supcon.benchmark.results import CellResult, results_csv, shows_encoder
from scs_supcon.benchmark.table import Table, make_table, write_table_file
from scs_supcon.data.builtin import BUILT_IN
from scs_supcon.io.atomic import replacing, write_text
from scs_supcon.io.csv import csv_text, text_cell
from scs_supcon.io.records import read_parquet
from scs_supcon.recipe import Recipe, Values, make_recipe, merge, write_toml
from scs_supcon.reproduce.experiment import published_numbers
from scs_supcon.reproduce.plan import Plan, PlannedColumn

PREDICTION_COLUMNS = ("name", "label", "prediction")


@dataclass(frozen=True)
class Number:
    """A number of the table with the published one beside it.

    Attributes:
        row: the method.
        column: the planned column.
        mean: our mean accuracy in per cent; None without a finished run.
        spread: standard deviation over the runs; None for a single run.
        published: the paper's accuracy; None if it has none.
        results: the finished runs of the method.
        sources: the finished runs that contain the number: `results`, or for kNN those whose
            features it uses.
    """

    row: str
    column: PlannedColumn
    mean: float | None
    spread: float | None
    published: float | None
    results: tuple[CellResult, ...]
    sources: tuple[CellResult, ...]

    @property
    def features(self) -> float | None:
        """Mean accuracy in per cent of a linear classifier on the features of the encoder."""
        values = [
            r.evaluation.baselines.linear_probe_of_encoder for r in self.results if r.evaluation
        ]
        known = [value for value in values if value is not None]
        return 100 * sum(known) / len(known) if known else None


def numbers(plan: Plan, report: ComparisonReport) -> list[Number]:
    """Return the numbers of the table by row, then column."""
    published = published_numbers(plan.experiment)
    means = {column.name: column.means for column in report.comparison.columns}
    columns = {column.name: column for column in plan.columns if column.name in means}
    rows = dict.fromkeys([row.name for row in plan.rows])
    rows |= dict.fromkeys(report.comparison.names)
    table = []
    for row in rows:
        for name, column in columns.items():
            mean = means[name].get(row)
            results = tuple(
                result
                for result in report.results
                if (result.cell.row, result.cell.column) == (row, name) and result.evaluation
            )
            table.append(
                Number(
                    row,
                    column,
                    mean.mean if mean else None,
                    mean.spread if mean else None,
                    published.get((row, column.paper.name)),
                    results,
                    results or (_neighbour_runs(report.results, name) if mean else ()),
                )
            )
    return table


def _neighbour_runs(results: Sequence[CellResult], column: str) -> tuple[CellResult, ...]:
    """Return the runs whose features kNN uses: for each seed and fold, as in the comparison."""
    runs: dict[tuple[int, int | None], CellResult] = {}
    for result in results:
        if result.cell.column == column and result.evaluation and shows_encoder(result.cell):
            runs.setdefault(result.cell.key, result)
    return tuple(runs.values())


def write_run_records(out: Path, plan: Plan, table: Table, results: Sequence[CellResult]) -> None:
    """Write table.toml, rows.csv, recipes/ and predictions/."""
    datasets = {column.name: column for column in plan.columns}
    write_text(out / "table.toml", write_table_file(_portable(table, datasets)))
    write_text(out / "rows.csv", results_csv(results))
    for result in results:
        if result.evaluation:
            dataset = datasets[result.cell.column].dataset
            write_text(out / recipe_file(result), _recipe_text(result, dataset))
            _copy_predictions(result, out / predictions_file(result))


def write_summary(path: Path, table: Iterable[Number]) -> None:
    """Write summary.csv: every number of the table with the published one."""
    names = ("method", "column", "runs", "mean", "sd", "linear_probe_of_encoder")
    rows: list[tuple[object, ...]] = [(*names, "paper_column", "published")]
    for number in table:
        values = (number.mean, number.spread, number.features)
        rows.append(
            (
                text_cell(number.row),
                text_cell(number.column.name),
                len(number.results),
                *("" if value is None else f"{value:.4f}" for value in values),
                text_cell(number.column.paper.name),
                "" if number.published is None else number.published,
            )
        )
    write_text(path, csv_text(rows))


def copy_figures(source: Path, target: Path) -> list[str]:
    """Copy figures and return the names of the PNG files."""
    files = sorted(source.glob("*.*")) if source.is_dir() else []
    for file in files:
        with replacing(target / file.name) as temporary:
            shutil.copyfile(file, temporary)
    return [file.name for file in files if file.suffix == ".png"]


def recipe_file(result: CellResult) -> str:
    """Return the path of a run's recipe in the results folder."""
    return f"recipes/{result.cell.address}.toml"


def predictions_file(result: CellResult) -> str:
    """Return the path of a run's predictions in the results folder."""
    return f"predictions/{result.cell.address}.parquet"


def portable_source(source: str, dataset: str) -> str:
    """Return the name of the data in a results folder: a built-in dataset, or the paper's name."""
    return source if source in BUILT_IN else dataset


def portable_recipe(recipe: Recipe, dataset: str) -> Recipe:
    """Return the recipe with the name of the data instead of its folder."""
    source: Values = {"data": {"source": portable_source(recipe.data.source, dataset)}}
    return make_recipe(merge(recipe.model_dump(exclude_none=True), source))


def _portable(table: Table, columns: Mapping[str, PlannedColumn]) -> Table:
    """Return the table with the paper's names of the data and without folders of weights."""
    values = table.model_dump(mode="json", exclude_none=True)
    for column in values["columns"]:
        column["data"] = portable_source(column["data"], columns[column["name"]].dataset)
        if "weights" in column:
            column["weights"] = Path(column["weights"]).name
    return make_table(**values)


def _recipe_text(result: CellResult, dataset: str) -> str:
    """Return the recipe with its command and its result as comments."""
    cell = result.cell
    recipe = portable_recipe(cell.recipe, dataset)
    weights = f" --weights {Path(cell.weights).name}" if cell.weights else ""
    assert result.evaluation is not None
    return (
        f"# {cell}: {100 * result.evaluation.accuracy:.2f}% of {result.evaluation.images} "
        f"{result.evaluation.split} images\n"
        f"# scs train DATA --recipe {cell.address}.toml{weights} --out runs/again\n"
        f"# DATA: {recipe.data.source}, or the folder of the images\n{write_toml(recipe)}"
    )


def _copy_predictions(result: CellResult, path: Path) -> None:
    """Write the predictions on the evaluated images."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    assert result.evaluation is not None
    types = dict.fromkeys((*PREDICTION_COLUMNS, "split"), str)
    source = read_parquet(result.run / "predictions.parquet", types)
    rows = source.filter(pc.equal(source["split"], result.evaluation.split))
    with replacing(path) as temporary:
        pq.write_table(rows.select(list(PREDICTION_COLUMNS)), temporary, compression="zstd")
