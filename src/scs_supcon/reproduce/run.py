"""Run an experiment: train what is missing, then write its results folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.compare import ComparisonReport
from scs_supcon.benchmark.figures import cd_diagram
from scs_supcon.benchmark.results import CellResult
from scs_supcon.benchmark.statistics import Nemenyi
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.records import read_parquet
from scs_supcon.progress import Display
from scs_supcon.report.figures import save_figure
from scs_supcon.reproduce import figures
from scs_supcon.reproduce.efficiency import measure_table
from scs_supcon.reproduce.experiment import published_columns
from scs_supcon.reproduce.markdown import comparison_page, describe_runs, heading
from scs_supcon.reproduce.plan import Plan, ReproduceOptions, make_plan, ranked_plan
from scs_supcon.reproduce.records import copy_figures, numbers, write_run_records, write_summary
from scs_supcon.reproduce.resources import Outcome, Resources
from scs_supcon.reproduce.search import search_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Values of t and b that the figure of the mapping shows.
SIGMOID = {
    "t = 0.1, b = 0 (start of Eq. 4)": (0.1, 0.0),
    "t = 0.1, b = 4.6 (100 classes, early)": (0.1, 4.6),
    "t = 10, b = 6 (learned)": (10.0, 6.0),
}


def reproduce(name: str, options: ReproduceOptions, resources: Resources) -> Outcome:
    """Run an experiment, given by its full name, and write its results folder."""
    plan = make_plan(name, options)
    display = resources.display
    display.line(f"{name}: {plan.experiment.title}, scale {options.scale}")
    for column in plan.columns:
        display.line(f"  {column.paper.name} is run as {column.name}")
    for note in plan.notes:
        display.line(f"  {note}")
    out = resources.out / options.scale / name
    return RUNNERS[plan.experiment.kind](plan, out, resources)


def reproduce_all(
    names: Sequence[str], options: ReproduceOptions, resources: Resources
) -> list[Outcome]:
    """Run experiments in order; at the end of `all`, those without data are named, not run."""
    outcomes = []
    for name in names:
        try:
            outcomes.append(reproduce(name, options, resources))
        except UserError as error:
            if len(names) == 1:
                raise
            outcomes.append(Outcome(name, resources.out, "", {name: str(error)}))
    return outcomes


def _compared(plan: Plan, out: Path, resources: Resources) -> Outcome:
    """Run a table, and draw the figure of the experiment from its runs."""
    table = plan.table()
    report = resources.compare(table, out / "comparison")
    results = numbers(plan, report)
    names = copy_figures(out / "comparison" / "figures", out / "figures")
    draw = FIGURES.get(plan.experiment.kind)
    if draw is not None:
        names = draw(plan, report.results, out / "figures")
    write_run_records(out, plan, table, report.results)
    write_summary(out / "summary.csv", results)
    environment = describe_runs(report.results)
    page = comparison_page(plan, table, report, results, names, environment)
    write_text(out / "README.md", page)
    return Outcome(plan.name, out, report.text, report.failed)


def _boundary(plan: Plan, results: Sequence[CellResult], folder: Path) -> list[str]:
    names = []
    for number, column in enumerate(plan.columns):
        runs = _finished(plan, results, column.name)
        if any(runs.values()):
            figure = figures.boundary_figure(runs, column.name)
            names.append(_save(figure, folder, "boundary", number, len(plan.columns)))
    return names


def _beta(plan: Plan, results: Sequence[CellResult], folder: Path) -> list[str]:
    names = []
    for number, column in enumerate(plan.columns):
        series: dict[str, dict[float, list[float]]] = {}
        for row, runs in _finished(plan, results, column.name).items():
            for run in runs:
                beta = float(str(run.cell.recipe.method.options["beta"]))
                points = series.setdefault(row.partition(", β")[0], {})
                assert run.evaluation is not None
                points.setdefault(beta, []).append(100 * run.evaluation.accuracy)
        if series:
            figure = figures.beta_figure(series, column.name)
            names.append(_save(figure, folder, "beta", number, len(plan.columns)))
    return names


def _tsne(plan: Plan, results: Sequence[CellResult], folder: Path) -> list[str]:
    names = []
    for number, column in enumerate(plan.columns):
        fields = {}
        for row, runs in _finished(plan, results, column.name).items():
            if runs:
                fields[row] = _common_field(runs[0])
        if fields:
            figure = figures.tsne_figure(fields, column.name)
            names.append(_save(figure, folder, "tsne", number, len(plan.columns)))
    return names


def _common_field(result: CellResult) -> tuple[NDArray[np.float32], list[str]]:
    """Return the common field of the test images of ten random classes, and their labels."""
    assert result.evaluation is not None
    types = {"split": str, "label": str, "common": list}
    table = read_parquet(result.run / "embeddings.parquet", types)
    rows = [row for row in table.to_pylist() if row["split"] == result.evaluation.split]
    chosen = figures.random_classes([row["label"] for row in rows])
    rows = [row for row in rows if row["label"] in chosen]
    vectors = np.array([row["common"] for row in rows], np.float32)
    return vectors, [row["label"] for row in rows]


def _sigmoid(plan: Plan, out: Path, resources: Resources) -> Outcome:
    save_figure(figures.sigmoid_figure(SIGMOID), out / "figures" / "sigmoid")
    text = (
        "A pair has the logit a = t·r − b, where r is the similarity of the common fields. A "
        "positive pair costs softplus(−a), a negative pair softplus(a); both lines cross at "
        "r = b/t. At the paper's start (t = 0.1, b = 0) every loss lies between 0.644 and 0.744 "
        "and the gradient of the hardest negative is 1.105 times that of the easiest. Once b has "
        "reached the log-odds of a positive pair, every pair is predicted negative until t has "
        "grown."
    )
    page = "\n\n".join([*heading(plan), "![mapping](figures/sigmoid.png)", text]) + "\n"
    write_text(out / "README.md", page)
    return Outcome(plan.name, out, text, {})


def _ranks(plan: Plan, out: Path, resources: Resources) -> Outcome:
    """Draw the diagram of the published table, and of our runs of that table."""
    assert plan.experiment.table is not None
    table = published_columns(plan.experiment)
    complete = max(len(values) for values in table.values())
    scores = {row: list(v.values()) for row, v in table.items() if len(v) == complete}
    datasets = [name.partition(",")[0] for name in next(iter(table.values()))]
    lines = heading(plan)
    published = statistics.nemenyi(scores, groups=datasets)
    lines += _rank_part(
        "The published table",
        statistics.friedman(scores, groups=datasets).sentence,
        published,
        out / "figures" / "published",
    )
    table_name = plan.experiment.table
    report = _finished_table(plan, out, resources)
    if report is None or report.comparison.ranks is None:
        lines.append(f"No diagram of our runs: run `scs reproduce {table_name}` first.")
    else:
        over = report.comparison.ranks_over
        sentence = f"Mean ranks over the {over} of {table_name}, scale {plan.options.scale}."
        lines += _rank_part("Our runs", sentence, report.comparison.ranks, out / "figures" / "ours")
    write_text(out / "README.md", "\n\n".join(lines) + "\n")
    return Outcome(plan.name, out, published.sentence, {})


def _finished_table(plan: Plan, out: Path, resources: Resources) -> ComparisonReport | None:
    """Return the comparison of the finished runs of the ranked table; None without its data."""
    quiet = replace(resources, display=Display(quiet=True), train=False)
    try:
        return quiet.compare(ranked_plan(plan).table(), out / "comparison")
    except UserError:
        return None


def _rank_part(title: str, sentence: str, result: Nemenyi, stem: Path) -> list[str]:
    save_figure(cd_diagram(result, title=title), stem)
    ranks = ", ".join(f"{name} {rank:.3f}" for name, rank in result.ranks.items())
    warnings = " ".join(f"*{text}*" for text in result.warnings)
    return [
        f"## {title}",
        f"![critical differences](figures/{stem.name}.png)",
        f"{sentence} {result.sentence} q = {result.q:.4f}, CD = {result.cd:.4f}. {warnings}",
        f"Mean ranks: {ranks}.",
    ]


def _efficiency(plan: Plan, out: Path, resources: Resources) -> Outcome:
    text = measure_table(plan, out, resources.runs, resources.compute, resources.display)
    return Outcome(plan.name, out, text, {})


def _search(plan: Plan, out: Path, resources: Resources) -> Outcome:
    text, failed = search_table(plan, out, resources)
    return Outcome(plan.name, out, text, failed)


def _finished(
    plan: Plan, results: Sequence[CellResult], column: str
) -> dict[str, list[CellResult]]:
    """Return the finished runs of each row of the experiment in a column."""
    return {
        row.name: [
            r for r in results if (r.cell.row, r.cell.column) == (row.name, column) and r.evaluation
        ]
        for row in plan.experiment.rows
    }


def _save(figure: "Figure", folder: Path, name: str, number: int, count: int) -> str:
    stem = name if count == 1 else f"{name}_{number}"
    save_figure(figure, folder / stem)
    return f"{stem}.png"


FIGURES: dict[str, Callable[[Plan, Sequence[CellResult], Path], list[str]]] = {
    "boundary": _boundary,
    "beta": _beta,
    "tsne": _tsne,
}
RUNNERS: dict[str, Callable[[Plan, Path, Resources], Outcome]] = {
    **dict.fromkeys(("comparison", "boundary", "beta", "tsne"), _compared),
    "efficiency": _efficiency,
    "search": _search,
    "sigmoid": _sigmoid,
    "ranks": _ranks,
}
