"""Table 7: Bayesian search for the initial values of t and b, then the full schedule.

The trials have a shortened stage 1 and are compared on validation images. The best values are then
trained with the full schedule and all seeds, beside the paper's default start, and tested once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from scs_supcon.benchmark.compare import ComparisonReport
from scs_supcon.benchmark.table import CROSS_ENTROPY, Row
from scs_supcon.benchmark.tables import NOT_RUN, escape_markdown
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.csv import csv_text
from scs_supcon.reproduce.experiment import published_columns
from scs_supcon.reproduce.markdown import describe_runs, heading, linked_mean, run_table
from scs_supcon.reproduce.plan import Plan, PlannedColumn, table_row
from scs_supcon.reproduce.records import write_run_records
from scs_supcon.reproduce.resources import Resources
from scs_supcon.tuning.study import Search
from scs_supcon.tuning.tune import SearchResult, run_search

SEARCHED = "searched start"
T0, B0 = "method.options.t0", "method.options.b0"


@dataclass(frozen=True)
class SearchedColumn:
    """The search and the final runs of one column."""

    column: PlannedColumn
    search: SearchResult
    report: ComparisonReport


def search_table(plan: Plan, out: Path, resources: Resources) -> tuple[str, Mapping[str, str]]:
    """Search in every column and write the results folder; return a text and the failures."""
    if not resources.train:
        raise UserError(f"{plan.name} searches: it cannot be made without training")
    searched = []
    for number, column in enumerate(plan.columns):
        result = run_search(
            _search(plan, column, resources),
            jobs=resources.jobs,
            retrain=0,
            display=resources.display,
            accept_old=resources.accept_old,
            dask=resources.dask,
        )
        table = plan.table([column], methods=_final_rows(plan, result))
        report = resources.compare(table, out / "comparison" / str(number))
        searched.append(SearchedColumn(column, result, report))
    text = _table(plan, searched)
    runs = [result for item in searched for result in item.report.results]
    write_run_records(out, plan, plan.table(), runs)
    explanation = (
        f"Per column {plan.scale.trials} trials with {plan.scale.search_epochs} epochs, chosen by "
        "the validation images; then the full schedule from the best values and from t0 = 0.1, "
        "b0 = 0: mean ± standard deviation of the test accuracy, then the seeds as links to their "
        "recipes. *Trials, sd*: standard deviation of the validation accuracy over the trials "
        "(trials.csv)."
    )
    parts = [*heading(plan), text, explanation, "## Runs", run_table(runs), describe_runs(runs)]
    write_text(out / "README.md", "\n\n".join(parts) + "\n")
    write_text(out / "trials.csv", _trials_csv(searched))
    failed = {cell: why for item in searched for cell, why in item.report.failed.items()}
    return text, failed


def _search(plan: Plan, column: PlannedColumn, resources: Resources) -> Search:
    (row,) = plan.rows
    planned, compute = column.column, resources.compute
    settings = [*plan.table([column]).settings, *planned.settings]
    if planned.images_per_class:
        settings.append(f"data.images_per_class={planned.images_per_class}")
    settings += [f"pretrain.epochs={plan.scale.search_epochs}", *plan.options.settings]
    name = re.sub(r"[^a-z0-9]+", "-", f"{column.name} {plan.options.scale}".lower())
    return Search(
        source=planned.data,
        out=resources.runs / "searches" / name,
        trials=plan.scale.trials,
        over=plan.experiment.over,
        options={
            "method": row.method,
            "encoder": planned.encoder,
            "weights": planned.weights,
            "from_scratch": planned.from_scratch,
            "frozen": planned.frozen,
            "recipe": planned.recipe,
            **({"unfreeze": True} if planned.unfreeze else {}),  # as in earlier searches
        },
        settings=tuple(settings),
        compute={
            "device": compute.device,
            "workers": 0 if resources.jobs > 1 else compute.workers,
            "cache": compute.cache,
            "offline": compute.offline,
        },
    )


def _final_rows(plan: Plan, result: SearchResult) -> list[Row]:
    (row,) = plan.rows
    default = table_row(plan, row)
    start = tuple(f"{key}={value!r}" for key, value in result.best.params.items())
    searched = Row(method=row.method, name=SEARCHED, settings=(*default.settings, *start))
    baseline = Row(method=CROSS_ENTROPY, name="Baseline", settings=default.settings)
    return [searched, default, baseline]


def _table(plan: Plan, searched: list[SearchedColumn]) -> str:
    published = published_columns(plan.experiment)
    lines = [
        "| column | t0 | b0 | trials, sd | searched start | t0 = 0.1, b0 = 0 "
        "| paper: t0 | b0 | accuracy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for item in searched:
        params = item.search.best.params
        trials = [100 * trial.accuracy for trial in item.search.trials]
        (means,) = (column.means for column in item.report.comparison.columns)
        cells = [f"{float(params[key]):.3f}" for key in (T0, B0)]
        cells.append(f"{stdev(trials):.2f}" if len(trials) > 1 else NOT_RUN)
        for row in (SEARCHED, plan.rows[0].name):
            mean = means.get(row)
            runs = [r for r in item.report.results if r.cell.row == row and r.evaluation]
            cells.append(linked_mean(mean.mean, mean.spread, runs) if mean else NOT_RUN)
        theirs = published.get(item.column.paper.name, {})
        cells += [f"{value:g}" for value in theirs.values()] or [NOT_RUN] * 3
        lines.append(f"| {escape_markdown(item.column.name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _trials_csv(searched: list[SearchedColumn]) -> str:
    rows: list[list[object]] = [["column", "trial", "t0", "b0", "val_accuracy", "val_loss"]]
    for item in searched:
        for trial in item.search.trials:
            start = (trial.params[T0], trial.params[B0])
            scores = (trial.accuracy, trial.loss)
            rows.append([item.column.name, trial.number, *start, *scores])
    return csv_text(rows)
