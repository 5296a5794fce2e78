"""The page of a comparison: one self-contained file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from markupsafe import Markup

from scs_supcon.benchmark.comparison import Comparison
from scs_supcon.benchmark.results import CellResult
from scs_supcon.benchmark.table import KNN, Table, write_table_file
from scs_supcon.benchmark.tables import mean_text
from scs_supcon.evaluation.format import BASELINE_TITLES
from scs_supcon.recipe import Recipe
from scs_supcon.recipe.toml import flat_keys
from scs_supcon.report.render import render_page

EXTRA_BASELINES = ("knn_on_probe_input", "nearest_class_mean", "linear_probe_of_encoder")


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page."""

    caption: str
    svg: Markup


@dataclass(frozen=True)
class NumberCell:
    """A number of the sortable table."""

    text: str
    value: float
    best: bool = False


@dataclass(frozen=True)
class MethodRow:
    """A method in the table of results."""

    name: str
    adapted: bool
    control: bool
    readout: str
    cells: tuple[NumberCell, ...]


def comparison_page(
    table: Table,
    comparison: Comparison,
    results: Sequence[CellResult],
    *,
    legend: str,
    figures: Sequence[PageFigure],
    adapted: Collection[str],
    failed: Mapping[str, str],
    left_out: Sequence[str] = (),
    chosen_rates: Sequence[tuple[str, str, str]] = (),
    readouts: Mapping[str, str] | None = None,
) -> str:
    """Return the page as HTML.

    Args:
        table: the table.
        comparison: means and tests.
        results: the result of each cell.
        legend: explains the marks of the table.
        figures: captions and drawings.
        adapted: methods to mark as adapted.
        failed: cells that failed, and why.
        left_out: images that cannot be used, and why.
        chosen_rates: (method, column, how often each learning rate was chosen).
        readouts: what predicts the class, by method.
    """
    recipes = {
        result.cell.row: result.cell.recipe
        for result in results
        if result.cell.column == table.columns[0].name
    }
    single = len(comparison.columns) == 1
    titles = ["macro-F1", "MAP@R", *(BASELINE_TITLES[name] for name in EXTRA_BASELINES)]
    titles += ["seconds per run, features cached", "seconds of extraction"]
    return render_page(
        "comparison.html.j2",
        scripts=("tables.js",),
        version=version("scs-supcon"),
        columns=[column.name for column in comparison.columns],
        rows=_rows(table, comparison, results, adapted, readouts or {}),
        pairs=[(column.name, pair) for column in comparison.columns for pair in column.pairs],
        extra_titles=titles if single else [],
        findings=comparison.findings,
        runs=results,
        finished=sum(result.evaluation is not None for result in results),
        legend=legend,
        figures=figures,
        failed=failed,
        left_out=left_out,
        protocol=_protocol(next(iter(recipes.values())), tuned=bool(chosen_rates)),
        differences=differences(recipes, tuned=bool(chosen_rates)),
        chosen_rates=chosen_rates,
        table_file=write_table_file(table),
        control=table.control_row,
    )


def differences(
    recipes: Mapping[str, Recipe], *, tuned: bool = False
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings that differ between methods: key, then methods by value.

    Args:
        recipes: one recipe of each method.
        tuned: leave out the learning rate, which was chosen in every run.
    """
    flat = {row: flat_keys(recipe.model_dump()) for row, recipe in recipes.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    if tuned:
        del keys["pretrain.lr"]
    different = []
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for row, values in flat.items():
            by_value.setdefault(str(values.get(key, "not set")), []).append(row)
        if len(by_value) > 1 and not key.startswith(("method.", "seed", "data.fold")):
            different.append((key, [(value, ", ".join(rows)) for value, rows in by_value.items()]))
    return different


def _rows(
    table: Table,
    comparison: Comparison,
    results: Sequence[CellResult],
    adapted: Collection[str],
    readouts: Mapping[str, str],
) -> list[MethodRow]:
    rows = []
    for name in comparison.rows:
        cells = []
        for column in comparison.columns:
            value = column.means[name].mean if name in column.means else -1.0
            tied = name in column.tied
            level = " ≈" if name in column.level and not tied else ""
            cells.append(NumberCell(mean_text(column, name) + level, value, best=tied))
        if len(comparison.columns) == 1:
            cells += _extra_cells([r for r in results if r.cell.row == name])
        rows.append(
            MethodRow(
                name,
                name in adapted,
                name == table.control_row,
                readouts.get(name, "–"),
                tuple(cells),
            )
        )
    return rows


def _extra_cells(results: Sequence[CellResult]) -> list[NumberCell]:
    """Return the means of further numbers over a method's runs, for a table of one column."""
    evaluations = [result.evaluation for result in results if result.evaluation]
    measured = [evaluation.baselines.measured() for evaluation in evaluations]
    columns = [[100 * evaluation.scores.macro_f1.value for evaluation in evaluations]]
    retrieved = [evaluation.retrieval.map_at_r for evaluation in evaluations]
    columns.append([100 * value for value in retrieved if value is not None])
    columns += [[100 * m[name] for m in measured if name in m] for name in EXTRA_BASELINES]
    seconds = [r.training_seconds for r in results if r.training_seconds is not None]
    extraction = [r.extraction_seconds for r in results if r.extraction_seconds is not None]
    return [
        *(_mean_cell(values, 2) for values in columns),
        _mean_cell(seconds, 1),
        _mean_cell(extraction, 1),
    ]


def _mean_cell(values: Sequence[float], decimals: int) -> NumberCell:
    if not values:
        return NumberCell("–", -1.0)
    mean = sum(values) / len(values)
    return NumberCell(f"{mean:.{decimals}f}", mean)


def _protocol(recipe: Recipe, *, tuned: bool) -> list[tuple[str, str]]:
    pretrain, encoder = recipe.pretrain, recipe.encoder
    weights = encoder.weights if len(encoder.weights) < 20 else f"{encoder.weights[:19]}…"
    frozen = f"frozen, {encoder.frozen_views} cached views" if encoder.frozen else "trained"
    rate = "tuned learning rate" if tuned else f"learning rate {pretrain.lr:g}"
    return [
        ("encoder", f"{encoder.name}, {weights}, {frozen}"),
        (
            "stage 1",
            f"{pretrain.epochs} epochs, batch size {pretrain.batch_size}, {pretrain.optimizer}, "
            f"{rate}, weight decay {pretrain.weight_decay:g}",
        ),
        (
            "stage 2",
            f"{recipe.probe.epochs} epochs; the learning rate is chosen on the validation split",
        ),
        (KNN, "vote of the 10 nearest training images by encoder features"),
    ]
