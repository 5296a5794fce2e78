"""Compute a table of means and statistical tests from the predictions of all runs.

Over several columns, methods are compared by their ranks (Friedman, Nemenyi, Bonferroni–Dunn,
signed ranks). Within a column, all pairs are tested (`pairwise`) and corrected by Holm; methods
that do not differ significantly from the best are called level with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.metrics import ACCURACY, Metric
from scs_supcon.benchmark.pairwise import Finding, MethodRuns, PairDifference, PairTests
from scs_supcon.benchmark.statistics import BonferroniDunn, Nemenyi, WilcoxonHolm


@dataclass(frozen=True)
class MeanScore:
    """The runs of one method in one column.

    Attributes:
        mean: mean of the metric: by default the accuracy in per cent.
        spread: sample standard deviation; None for a single run.
        runs: number of finished runs.
    """

    mean: float
    spread: float | None
    runs: int


@dataclass(frozen=True)
class ColumnResult:
    """The results of one column.

    Attributes:
        name: the column's name.
        expected_runs: number of runs of a complete method.
        means: by method; methods without a finished run are missing.
        best: the complete method with the best mean.
        tied: all complete methods whose mean is shown like that of the best, including it.
        level: methods that do not differ significantly from the best.
        findings: the tests.
        split: the split the accuracies were measured on, "test" or "val".
        pairs: the tests of all pairs.
    """

    name: str
    expected_runs: int
    means: dict[str, MeanScore]
    best: str | None
    tied: frozenset[str]
    level: frozenset[str]
    findings: tuple[Finding, ...]
    split: str = "test"
    pairs: tuple[PairDifference, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The whole table.

    Attributes:
        names: all methods, including those without a run.
        columns: the results by column.
        findings: all tests.
        ranks: ranks over the columns, or over the runs of a single column.
        ranks_over: "columns", "seeds" or "folds"; empty without ranks.
        metric: what methods are compared by.
    """

    names: tuple[str, ...]
    columns: tuple[ColumnResult, ...]
    findings: tuple[Finding, ...]
    ranks: Nemenyi | None
    ranks_over: str
    metric: Metric = ACCURACY

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """All methods, the best first: by mean rank or by mean; incomplete ones last."""
        ranks = self.ranks.ranks if self.ranks and len(self.columns) > 1 else {}
        last = len(self.names) + 1.0

        def position(name: str) -> tuple[float, int, float]:
            means = [column.means[name] for column in self.columns if name in column.means]
            total = self.metric.sign * sum(mean.mean for mean in means)
            return ranks.get(name, last), -len(means), -total

        return tuple(sorted(self.names, key=position))


def compare_methods(
    runs: Mapping[str, Mapping[str, MethodRuns]],
    *,
    control: str,
    expected_runs: int,
    data: Mapping[str, str],
    metric: Metric = ACCURACY,
) -> Comparison:
    """Return the means of all methods and the tests between them.

    Args:
        runs: by column, method, and seed with fold.
        control: the method that all others are compared with.
        expected_runs: number of runs of a complete method in one column.
        data: the dataset of each column; columns of one dataset are not independent.
        metric: what methods are compared by.
    """
    columns = tuple(
        _column(name, rows, control, expected_runs, metric) for name, rows in runs.items()
    )
    names = tuple(dict.fromkeys(row for rows in runs.values() for row in rows))
    if len(columns) > 1:
        groups = [data[c.name] for c in columns]
        findings, ranks = _over_columns(columns, control, groups, metric.sign)
        return Comparison(names, columns, findings, ranks, "columns", metric)
    (column,) = columns
    complete = _complete(runs[column.name], expected_runs)
    keys = sorted(next(iter(complete.values()), {}), key=str)
    if len(complete) < 2 or len(keys) < 2:
        return Comparison(names, columns, column.findings, None, "", metric)
    scores = {
        name: [metric.sign * rows[key].score for key in keys] for name, rows in complete.items()
    }
    over = "seeds" if keys[0][1] is None else "folds"
    ranks = statistics.nemenyi(scores, groups=[column.name] * len(keys))
    return Comparison(names, columns, column.findings, ranks, over, metric)


def _column(
    name: str, rows: Mapping[str, MethodRuns], control: str, expected_runs: int, metric: Metric
) -> ColumnResult:
    means = {row: _mean_score(runs) for row, runs in rows.items() if runs}
    complete = _complete(rows, expected_runs)
    best = max(complete, key=lambda row: metric.sign * means[row].mean) if complete else None
    tied = frozenset(
        row
        for row in complete
        if best is not None and show_mean(means[row].mean) == show_mean(means[best].mean)
    )
    incomplete = tuple(row for row in rows if row not in complete)
    findings: list[Finding] = []
    level: frozenset[str] = frozenset()
    pairs: tuple[PairDifference, ...] = ()
    if best is not None and len(complete) > 1:
        tests = PairTests(complete, metric)
        level, pairs = frozenset(tests.level_with(best)), tests.pairs
        findings = tests.findings(control if control in complete else best, best)
    if incomplete:
        text = f"Not tested because runs are missing: {', '.join(incomplete)}."
        findings.append(Finding("Incomplete methods", (text,), (), list(incomplete)))
    splits = {run.split for runs in rows.values() for run in runs.values()}
    split = "val" if "val" in splits else "test"
    return ColumnResult(
        name, expected_runs, means, best, tied, level, tuple(findings), split, pairs
    )


def show_mean(mean: float) -> str:
    """Return a mean as tables show it: two means that look alike are marked alike."""
    return f"{mean:.2f}"


def _mean_score(runs: MethodRuns) -> MeanScore:
    values = [run.score for run in runs.values()]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return MeanScore(float(np.mean(values)), spread, len(values))


def _complete(rows: Mapping[str, MethodRuns], expected_runs: int) -> dict[str, MethodRuns]:
    return {name: runs for name, runs in rows.items() if len(runs) == expected_runs}


def _over_columns(
    columns: Sequence[ColumnResult], control: str, groups: Sequence[str], sign: float
) -> tuple[tuple[Finding, ...], Nemenyi | None]:
    rows = dict.fromkeys(name for column in columns for name in column.means)
    scores = {
        row: [
            sign * column.means[row].mean
            for column in columns
            if row in column.means and column.means[row].runs == column.expected_runs
        ]
        for row in rows
    }
    complete = {row: values for row, values in scores.items() if len(values) == len(columns)}
    within_columns = tuple(
        replace(finding, title=f"{column.name}. {finding.title}")
        for column in columns
        for finding in column.findings
    )
    if len(complete) < 2:
        return within_columns, None
    friedman = statistics.friedman(complete, groups=groups)
    nemenyi = statistics.nemenyi(complete, groups=groups)
    iman_davenport = (
        f"The less conservative test of Iman and Davenport: F = {friedman.f:.2f}, "
        f"p = {friedman.p_f:.2g}."
    )
    findings = [
        Finding(
            "Friedman over the columns",
            (friedman.sentence, iman_davenport),
            friedman.warnings,
            asdict(friedman),
        ),
        _finding("Nemenyi", nemenyi),
    ]
    if control in complete:
        dunn = statistics.bonferroni_dunn(complete, control=control, groups=groups)
        signed = statistics.wilcoxon_holm(complete, control=control, groups=groups)
        findings.append(_finding(f"Bonferroni–Dunn against {control}", dunn))
        findings.append(_finding(f"Wilcoxon against {control}, Holm", signed))
    return (*findings, *within_columns), nemenyi


def _finding(title: str, result: Nemenyi | BonferroniDunn | WilcoxonHolm) -> Finding:
    return Finding(title, (result.sentence,), result.warnings, asdict(result))
