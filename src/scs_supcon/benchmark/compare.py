"""`scs compare`: all methods under one protocol, with corrected statistics."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scs_supcon.benchmark.comparison import Comparison, compare_methods
from scs_supcon.benchmark.cost import describe_costs, estimate_costs
from scs_supcon.benchmark.expand import (
    Cell,
    Source,
    expand,
    read_table_inputs,
    runs_of_other_code,
    with_stored_runs,
)
from scs_supcon.benchmark.figures import cd_diagram, dot_plot, pair_curves_plot
from scs_supcon.benchmark.metrics import find_metric
from scs_supcon.benchmark.page import PageFigure, comparison_page
from scs_supcon.benchmark.rates import TunedCell, choose_rates, describe_choices, tuning_csv
from scs_supcon.benchmark.results import (
    CellResult,
    MethodTable,
    evaluated_runs,
    knn_name,
    pairs_csv,
    read_results,
    result_row,
    results_csv,
)
from scs_supcon.benchmark.scheduler import train_cells
from scs_supcon.benchmark.table import Table, check_code_digests, write_table_file
from scs_supcon.benchmark.tables import latex_table, legend, markdown_table, text_table
from scs_supcon.data.audit import UNUSABLE
from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.data.splits import SPLIT_TITLES
from scs_supcon.device import Compute, cores, has_gpu
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import make_folder, write_json, write_text
from scs_supcon.io.frames import data_frame
from scs_supcon.io.values import ValueTree
from scs_supcon.methods import method_class, parse
from scs_supcon.progress import Display
from scs_supcon.report.figures import inline_svg, save_figure


@dataclass(frozen=True)
class ComparisonReport:
    """The result of a comparison.

    Attributes:
        comparison: means and tests.
        results: the result of each cell.
        text: table and tests for the terminal.
        failed: cells that failed, and why.
        path: folder of tables, figures and the page.
    """

    comparison: Comparison
    results: Sequence[CellResult]
    text: str
    failed: Mapping[str, str]
    path: Path

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per run, as in results.csv."""
        return data_frame([result_row(result) for result in self.results])


def run_comparison(
    table: Table,
    *,
    out: Path,
    runs: Path,
    compute: Compute,
    jobs: int,
    display: Display,
    train: bool = True,
    accept_old: bool = False,
    dask: str | None = None,
) -> ComparisonReport:
    """Train the missing runs, then write tables, statistics, figures and the page.

    Args:
        table: what to compare.
        out: folder of the results.
        runs: folder of the runs, which several comparisons may share.
        compute: device, data loading and cache.
        jobs: number of runs at a time.
        display: shows progress.
        train: False to use the finished runs only.
        accept_old: use runs that were made by other numeric code.
        dask: address of the scheduler of a Dask cluster that trains the runs.
    """
    for folder in (out, runs) if train else (out,):  # before hours of training
        make_folder(folder)
    cells, sources = plan(table, runs, compute, jobs, display, accept_old=accept_old)
    left_out = [detail for source in sources.values() for detail in source.left_out]
    failures: dict[str, str] = {}
    if train:
        failures = train_cells(cells, runs, out / "recipes", compute, jobs, display, dask)
    return write_results(table, cells, failures, out=out, runs=runs, left_out=left_out)


def dry_run(
    table: Table,
    *,
    runs: Path,
    compute: Compute,
    jobs: int,
    display: Display,
    accept_old: bool = False,
) -> str:
    """Return a text with all runs and their estimated costs; nothing is trained."""
    cells, sources = plan(table, runs, compute, jobs, display, accept_old=accept_old)
    costs = describe_costs(cells, estimate_costs(cells, runs, sources), jobs)
    return f"{costs}{describe_tuning(cells)}"


def plan(
    table: Table, runs: Path, compute: Compute, jobs: int, display: Display, *, accept_old: bool
) -> tuple[tuple[Cell, ...], dict[str, Source]]:
    """Load the data and report unusable images; return the cells of the table and the datasets."""
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {jobs}")
    check_code_digests(table)
    read_table_inputs(table)  # reports invalid options before any image is read
    sources = {}
    for data in dict.fromkeys(column.data for column in table.columns):
        with display.progress(f"checking {data}") as progress:
            images, problems = load_dataset(data, cores(), progress)
        left_out = tuple(problem.detail for problem in problems if problem.kind in UNUSABLE)
        for detail in left_out:
            display.line(f"left out: {detail}")
        for problem in problems:
            if problem.kind == "known_issue":
                display.line(f"known issue of {data}: {problem.detail}")
        sources[data] = Source(images, content_digest(images), left_out)
    cells = expand(table, sources, has_gpu=has_gpu(compute.device))
    stored = runs_of_other_code(cells, runs)
    if stored:
        versions = ", ".join(sorted({run.version for run in stored.values()}))
        verb = "uses" if accept_old else "does not use"
        advice = "" if accept_old else ": add --accept-old to use them"
        display.line(
            f"this comparison {verb} {len(stored)} runs in {runs} that were made by other "
            f"numeric code (scs-supcon {versions}){advice}"
        )
    return with_stored_runs(cells, stored) if accept_old else cells, sources


def write_results(
    table: Table,
    cells: Sequence[Cell],
    failures: Mapping[str, str],
    *,
    out: Path,
    runs: Path,
    left_out: Sequence[str] = (),
) -> ComparisonReport:
    """Read the finished runs, write all results and return them."""
    tuned = choose_rates(read_results(cells, runs, failures))
    results = [cell.result for cell in tuned]
    metric = find_metric(table.metric)
    evaluated = evaluated_runs(results, metric)
    comparison = compare_methods(
        evaluated,
        control=table.control_row,
        expected_runs=table.seeds * (table.folds or 1),
        data={column.name: column.data for column in table.columns},
        metric=metric,
    )
    adapted = {r.name for r in table.methods if method_class(parse(r.method)[0]).adapted}
    repeats = describe_repeats(table)
    readouts = _readouts(results)
    explanation = legend(comparison, repeats, adapted, readouts=readouts)
    failed = {str(r.cell): r.failure for r in results if r.failure and not r.evaluation}
    write_text(out / "comparison.toml", write_table_file(table))
    write_text(out / "results.csv", results_csv(results))
    write_text(out / "tuning.csv", tuning_csv(tuned))
    write_text(out / "pairs.csv", pairs_csv(comparison))
    markdown = markdown_table(comparison, adapted)
    write_text(out / "table.md", f"{markdown}\n{explanation}\n{_left_out_list(left_out)}")
    write_text(out / "table.tex", latex_table(comparison, adapted))
    write_json(out / "statistics.json", _statistics(comparison, table, tuned))
    page = comparison_page(
        table,
        comparison,
        results,
        legend=explanation,
        figures=_draw_figures(comparison, evaluated, results, out / "figures", adapted),
        readouts=readouts,
        adapted=adapted,
        failed=failed,
        left_out=left_out,
        chosen_rates=describe_choices(tuned),
    )
    write_text(out / "comparison.html", page)
    text = _terminal_text(comparison, adapted, legend(comparison, repeats, adapted, "*", readouts))
    return ComparisonReport(comparison, results, text, failed, out)


def describe_repeats(table: Table) -> str:
    """Return the number of runs per method, such as "3 seeds" or "5 folds of 2 seeds"."""
    seeds = f"{table.seeds} seed{'s' * (table.seeds > 1)}"
    if table.folds is None:
        return seeds
    return f"{table.folds} folds" + (f" of {seeds}" if table.seeds > 1 else "")


def describe_tuning(cells: Sequence[Cell]) -> str:
    """Return a line about the learning rates that are tried; empty if there is one per cell."""
    factors = dict.fromkeys(cell.rate_factor for cell in cells if cell.tuned)
    if not factors:
        return ""
    listed = ", ".join(f"{factor:.3g}" for factor in factors)
    return (
        f"\nEvery method is trained with {len(factors)} learning rates (its own times {listed}); "
        "the validation images of each run choose one. --no-tune trains with one rate."
    )


def summary(report: ComparisonReport, out: Path) -> ValueTree:
    """Return the result as plain values for `--json`."""
    columns = report.comparison.columns
    findings = report.comparison.findings
    return {
        report.comparison.metric.name: {
            column.name: {
                row: {"mean": mean.mean, "sd": mean.spread, "runs": mean.runs}
                for row, mean in column.means.items()
            }
            for column in columns
        },
        "metric": report.comparison.metric.name,
        "best": {column.name: column.best for column in columns},
        "tied": {column.name: sorted(column.tied) for column in columns},
        "level": {column.name: sorted(column.level) for column in columns},
        "sentences": [sentence for finding in findings for sentence in finding.sentences],
        "warnings": [warning for finding in findings for warning in finding.warnings],
        "failed": dict(report.failed),
        "page": str(out / "comparison.html"),
    }


def _left_out_list(left_out: Sequence[str]) -> str:
    """Return the images that no method used as a Markdown list."""
    lines = ["", "Images that no method used:", "", *(f"- `{detail}`" for detail in left_out), ""]
    return "\n".join(lines) if left_out else ""


def _terminal_text(comparison: Comparison, adapted: Collection[str], explanation: str) -> str:
    lines = [text_table(comparison, adapted), "", explanation, ""]
    for finding in comparison.findings:
        lines += [finding.title, *(f"  {text}" for text in finding.sentences)]
        lines += [f"  caution: {text}" for text in finding.warnings]
    return "\n".join(lines)


def _statistics(comparison: Comparison, table: Table, tuned: Sequence[TunedCell]) -> Any:
    content = {
        "metric": table.metric,
        "control": table.control_row,
        "chosen_rates": [
            {"method": row, "column": column, "runs_by_rate": choices}
            for row, column, choices in describe_choices(tuned)
        ],
        "findings": [asdict(finding) for finding in comparison.findings],
    }
    # JSON has no infinite numbers, such as the t of equal differences: write them as text.
    return json.loads(json.dumps(content), parse_constant=lambda constant: constant)


def _draw_figures(
    comparison: Comparison,
    runs: MethodTable,
    results: Sequence[CellResult],
    folder: Path,
    adapted: Collection[str],
) -> list[PageFigure]:
    """Save the figures and return them for the page."""
    figures = []
    for number, column in enumerate(comparison.columns):
        scores = {
            row: [run.score for run in runs[column.name][row].values()]
            for row in comparison.rows
            if runs[column.name].get(row)
        }
        if scores:
            name = "accuracy" if len(comparison.columns) == 1 else f"accuracy_{number}"
            figure = dot_plot(
                scores,
                title=column.name,
                split=SPLIT_TITLES[column.split],
                best=column.tied,
                adapted=adapted,
                metric=comparison.metric.title,
            )
            save_figure(figure, folder / name)
            caption = f"All runs: {comparison.metric.title}, {column.name}"
            figures.append(PageFigure(caption, inline_svg(figure, name, caption)))
        curves = [result for result in results if result.cell.column == column.name]
        if any(result.pair_curves for result in curves):
            name = (
                "pair_parameters" if len(comparison.columns) == 1 else f"pair_parameters_{number}"
            )
            figure = pair_curves_plot(curves, title=column.name)
            save_figure(figure, folder / name)
            caption = f"t, b and the boundary b/t after each step of stage 1: {column.name}"
            figures.append(PageFigure(caption, inline_svg(figure, name, caption)))
    if comparison.ranks is not None:
        name = "critical_difference"
        title = f"Mean ranks over {comparison.ranks_over}; 1 is best"
        figure = cd_diagram(comparison.ranks, title=title, adapted=adapted)
        save_figure(figure, folder / name)
        figures.append(PageFigure(_cd_caption(comparison), inline_svg(figure, name, title)))
    return figures


def _readouts(results: Sequence[CellResult]) -> dict[str, str]:
    """Return what predicts the class, by method; several readouts are joined."""
    by_row: dict[str, dict[str, None]] = {}
    for result in results:
        if result.summary is not None and result.summary.readout is not None:
            by_row.setdefault(result.cell.row, {})[result.summary.readout] = None
    readouts = {row: " or ".join(names) for row, names in by_row.items()}
    knn = knn_name([result.cell for result in results])
    return readouts | ({knn: "vote of the 10 nearest training images"} if readouts else {})


def _cd_caption(comparison: Comparison) -> str:
    text = (
        "Critical-difference diagram: the mean ranks of methods under one bar do not differ "
        "significantly."
    )
    if comparison.ranks_over != "columns":
        text += (
            f" The ranks are over {comparison.ranks_over} of one dataset, which are not "
            "independent: an illustration, not a test."
        )
    return text
