"""`scs compare`: one protocol, equal budget, corrected statistics, a folder of results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scs_supcon.benchmark import cost
from scs_supcon.benchmark.cd_diagram import draw_cd_diagram
from scs_supcon.benchmark.comparison import Comparison, compare_methods
from scs_supcon.benchmark.dot_plot import draw_dot_plot
from scs_supcon.benchmark.expand import (
    Cell,
    Source,
    expand,
    read_table_inputs,
    runs_of_other_code,
    with_stored_runs,
)
from scs_supcon.benchmark.page import Content, make_page
from scs_supcon.benchmark.results import Outcome, judged_cells, read_outcomes, results_csv
from scs_supcon.benchmark.scheduler import train_cells
from scs_supcon.benchmark.table import Table, write_table_file
from scs_supcon.benchmark.tables import latex_table, legend, markdown_table, text_table
from scs_supcon.data.audit import UNUSABLE
from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.device import Compute, cores, has_gpu
from scs_supcon.errors import UserError
from scs_supcon.evaluation.splits import PARTS
from scs_supcon.io.atomic import write_json, write_text
from scs_supcon.methods import method_class, parse
from scs_supcon.progress import Display


@dataclass(frozen=True)
class Suite:
    """A table and where its parts lie.

    Attributes:
        out: folder of the results.
        runs: folder of the runs, which other tables may share.
        accept_old: use runs that were made by other numeric code.
    """

    table: Table
    out: Path
    runs: Path
    place: Compute
    jobs: int
    accept_old: bool = False


@dataclass(frozen=True)
class Report:
    """What a comparison came to.

    Attributes:
        failed: cells that could not be trained, and why.
    """

    comparison: Comparison
    outcomes: Sequence[Outcome]
    text: str
    failed: Mapping[str, str]


def plan(suite: Suite, display: Display) -> tuple[tuple[Cell, ...], dict[str, Source]]:
    """Read the data, say which images cannot be used, and expand the table."""
    if suite.jobs < 1:
        raise UserError(f"--jobs is {suite.jobs}: give 1 or more")
    read_table_inputs(suite.table)  # reports mistakes before any image is read
    sources = {}
    for source in dict.fromkeys(column.data for column in suite.table.columns):
        with display.progress(f"checking {source}") as tell:
            images, problems = load_dataset(source, cores(), tell)
        left_out = tuple(p.detail for p in problems if p.kind in UNUSABLE)
        for detail in left_out:
            display.line(f"left out: {detail}")
        sources[source] = Source(images, content_digest(images), left_out)
    cells = expand(suite.table, sources, accelerator=has_gpu(suite.place.device))
    stored = runs_of_other_code(cells, suite.runs)
    if stored:
        versions = ", ".join(sorted({run.version for run in stored.values()}))
        verb = "uses" if suite.accept_old else "does not use"
        advice = "" if suite.accept_old else ": add --accept-old to use them"
        display.line(
            f"this comparison {verb} {len(stored)} runs in {suite.runs} that were made by other "
            f"numeric code (scs-supcon {versions}){advice}"
        )
    return with_stored_runs(cells, stored) if suite.accept_old else cells, sources


def forecast(suite: Suite, display: Display) -> str:
    """All cells with what they will cost; trains nothing."""
    cells, sources = plan(suite, display)
    return cost.describe(cells, cost.costs(cells, suite.runs, sources), suite.jobs)


def compare(suite: Suite, display: Display, *, train: bool = True) -> Report:
    """Train what is missing, and write tables, statistics, figures and the page.

    Args:
        suite: what and where.
        display: shows how far it is.
        train: False makes the tables of what is there.
    """
    cells, sources = plan(suite, display)
    left_out = [detail for source in sources.values() for detail in source.left_out]
    failures: dict[str, str] = {}
    if train:
        recipes = suite.out / "recipes"
        failures = train_cells(cells, suite.runs, recipes, suite.place, suite.jobs, display)
    return report(suite, cells, failures, left_out)


def report(
    suite: Suite, cells: Sequence[Cell], failures: Mapping[str, str], left_out: Sequence[str] = ()
) -> Report:
    """Read the runs and write the results; trains nothing."""
    table, out = suite.table, suite.out
    outcomes = read_outcomes(cells, suite.runs, failures)
    judged = judged_cells(outcomes)
    data = {column.name: column.data for column in table.columns}
    wanted = table.seeds * (table.folds or 1)
    comparison = compare_methods(judged, control=table.against, wanted=wanted, data=data)
    adapted = {r.name for r in table.methods if method_class(parse(r.method)[0]).adapted}
    explained = legend(comparison, spread_over(table))
    write_text(out / "comparison.toml", write_table_file(table))
    write_text(out / "results.csv", results_csv(outcomes))
    markdown = f"{markdown_table(comparison, adapted)}\n{explained}\n{_missing(left_out)}"
    write_text(out / "table.md", markdown)
    write_text(out / "table.tex", latex_table(comparison, adapted))
    write_json(out / "statistics.json", _statistics(comparison, table))
    figures = _draw(comparison, judged, out / "figures", adapted)
    failed = {str(o.cell): o.failure for o in outcomes if o.failure and not o.summary}
    content = Content(table, comparison, outcomes, explained, figures, adapted, failed, left_out)
    write_text(out / "comparison.html", make_page(content))
    return Report(comparison, outcomes, _text(comparison, adapted, explained), failed)


def spread_over(table: Table) -> str:
    """Such as "3 seeds × 5 folds"."""
    seeds = f"{table.seeds} seed{'s' * (table.seeds > 1)}"
    if table.folds is None:
        return seeds
    return f"{table.folds} folds" + (f" of {seeds}" if table.seeds > 1 else "")


def summary(found: Report, out: Path) -> dict[str, Any]:
    """The result for programs."""
    columns = {
        column.name: {
            row: {"mean": mean.mean, "sd": mean.spread, "runs": mean.runs}
            for row, mean in column.means.items()
        }
        for column in found.comparison.columns
    }
    return {
        "accuracy": columns,
        "best": {column.name: column.best for column in found.comparison.columns},
        "level": {column.name: sorted(column.level) for column in found.comparison.columns},
        "sentences": [s for f in found.comparison.findings for s in f.sentences],
        "warnings": [w for f in found.comparison.findings for w in f.warnings],
        "failed": dict(found.failed),
        "page": str(out / "comparison.html"),
    }


def _missing(left_out: Sequence[str]) -> str:
    """Images that no method saw, as a list in Markdown."""
    lines = ["", "Left out by all methods:", "", *(f"- `{detail}`" for detail in left_out), ""]
    return "\n".join(lines) if left_out else ""


def _text(comparison: Comparison, adapted: set[str], explained: str) -> str:
    lines = [text_table(comparison, adapted), "", explained.replace("Bold", "*"), ""]
    for finding in comparison.findings:
        lines += [finding.title, *(f"  {text}" for text in finding.sentences)]
        lines += [f"  caution: {text}" for text in finding.warnings]
    return "\n".join(lines)


def _statistics(comparison: Comparison, table: Table) -> Any:
    found = [
        {
            "title": finding.title,
            "sentences": finding.sentences,
            "warnings": finding.warnings,
            "numbers": finding.numbers,
        }
        for finding in comparison.findings
    ]
    # Infinite values, as of a t without spread, have no place in JSON.
    text = json.dumps({"control": table.against, "findings": found})
    return json.loads(text, parse_constant=lambda word: word)


def _draw(
    comparison: Comparison,
    judged: Mapping[str, Mapping[str, Any]],
    folder: Path,
    adapted: set[str],
) -> list[tuple[str, Path]]:
    """Draw what there is; returns captions and SVG files."""
    figures = []
    for number, column in enumerate(comparison.columns):
        rows = judged[column.name]
        scores = {
            row: [run.accuracy for run in rows.get(row, {}).values()]
            for row in comparison.rows
            if rows.get(row)
        }
        if scores:
            stem = folder / ("accuracy" if len(comparison.columns) == 1 else f"accuracy_{number}")
            draw_dot_plot(
                scores,
                stem,
                title=column.name,
                part=PARTS[column.judged_on],
                best=column.best,
                adapted=adapted,
            )
            figures.append((f"Every run: {column.name}", stem.with_suffix(".svg")))
    if comparison.ranks is not None:
        stem = folder / "critical_difference"
        title = f"Mean ranks over {comparison.ranks_over}; 1 is best"
        draw_cd_diagram(comparison.ranks, stem, title=title, adapted=adapted)
        figures.append((_cd_caption(comparison), stem.with_suffix(".svg")))
    return figures


def _cd_caption(comparison: Comparison) -> str:
    text = "Critical difference: methods under one bar cannot be told apart by their ranks."
    if comparison.ranks_over != "columns":
        text += (
            f" These are ranks over {comparison.ranks_over} of one data set, which are not "
            "independent: an image to look at, not a test."
        )
    return text
