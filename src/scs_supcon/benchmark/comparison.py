"""From judged images to a table of means and to tests that suit the design.

Over several columns methods are compared by their ranks (Friedman, Nemenyi, Bonferroni–Dunn,
signed ranks). Within a column all pairs are tested (`pairwise`) and corrected by Holm; "level" with
the best are the methods that these tests cannot set apart from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.pairwise import Cells, Finding, PairTests
from scs_supcon.benchmark.statistics import Friedman, Nemenyi


@dataclass(frozen=True)
class Mean:
    """The runs of one row in one column: mean and sample deviation of their accuracies."""

    mean: float
    spread: float | None
    runs: int


@dataclass(frozen=True)
class ColumnResult:
    """One column: means, who is best, who is level with it, the tests, and the part judged on."""

    name: str
    wanted: int
    means: dict[str, Mean]
    best: str | None
    level: frozenset[str]
    findings: tuple[Finding, ...]
    judged_on: str = "test"


@dataclass(frozen=True)
class Comparison:
    """The whole table.

    Attributes:
        names: of all rows, also of those where nothing was run.
        ranks: over the columns, or over the runs of the only one.
        ranks_over: what the ranks are over.
    """

    names: tuple[str, ...]
    columns: tuple[ColumnResult, ...]
    findings: tuple[Finding, ...]
    ranks: Nemenyi | None
    ranks_over: str

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """All rows, the best first: by mean rank, or by mean; incomplete ones last."""
        ranked = self.ranks.ranks if self.ranks and len(self.columns) > 1 else {}
        last = len(self.names) + 1.0

        def place(name: str) -> tuple[float, int, float]:
            held = [column.means[name] for column in self.columns if name in column.means]
            total = sum(mean.mean for mean in held)
            return ranked.get(name, last), -len(held), -total

        return tuple(sorted(self.names, key=place))


def compare_methods(
    judged: Mapping[str, Mapping[str, Cells]],
    *,
    control: str,
    wanted: int,
    data: Mapping[str, str],
) -> Comparison:
    """Put all runs together.

    Args:
        judged: by column, row, and seed with fold.
        control: the row that all others are compared with.
        wanted: runs that a full row of a column has.
        data: what each column was measured on; columns of one set are not independent.
    """
    columns = tuple(_column(name, rows, control, wanted) for name, rows in judged.items())
    names = tuple(dict.fromkeys(row for rows in judged.values() for row in rows))
    if len(columns) > 1:
        findings, ranks = _over_columns(columns, control, [data[c.name] for c in columns])
        return Comparison(names, columns, findings, ranks, "columns")
    (column,) = columns
    rows = _complete(judged[column.name], wanted)
    keys = sorted(next(iter(rows.values()), {}), key=str)
    if len(rows) < 2 or len(keys) < 2:
        return Comparison(names, columns, column.findings, None, "")
    scores = {name: [cells[key].accuracy for key in keys] for name, cells in rows.items()}
    over = "seeds" if keys[0][1] is None else "folds"
    ranks = statistics.nemenyi(scores, groups=[column.name] * len(keys))
    return Comparison(names, columns, column.findings, ranks, over)


def _column(name: str, rows: Mapping[str, Cells], control: str, wanted: int) -> ColumnResult:
    means = {row: _mean(cells) for row, cells in rows.items() if cells}
    full = _complete(rows, wanted)
    best = max(full, key=lambda row: means[row].mean) if full else None
    left_out = tuple(row for row in rows if row not in full)
    findings: list[Finding] = []
    level: frozenset[str] = frozenset()
    if best is not None and len(full) > 1:
        tests = PairTests(full)
        level = frozenset(row for row in tests.level(best) if row != best)
        findings = tests.findings(control if control in full else best, best)
    if left_out:
        text = f"Left out of the tests, for want of runs: {', '.join(left_out)}."
        findings.append(Finding("Incomplete rows", (text,), (), list(left_out)))
    parts = {judged.judged_on for cells in rows.values() for judged in cells.values()}
    judged_on = "val" if "val" in parts else "test"
    return ColumnResult(name, wanted, means, best, level, tuple(findings), judged_on)


def _mean(cells: Cells) -> Mean:
    values = [judged.accuracy for judged in cells.values()]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(float(np.mean(values)), spread, len(values))


def _complete(rows: Mapping[str, Cells], wanted: int) -> dict[str, Cells]:
    return {name: cells for name, cells in rows.items() if len(cells) == wanted}


def _over_columns(
    columns: Sequence[ColumnResult], control: str, groups: Sequence[str]
) -> tuple[tuple[Finding, ...], Nemenyi | None]:
    rows = dict.fromkeys(name for column in columns for name in column.means)
    scores = {
        row: [
            column.means[row].mean
            for column in columns
            if row in column.means and column.means[row].runs == column.wanted
        ]
        for row in rows
    }
    full = {row: values for row, values in scores.items() if len(values) == len(columns)}
    own = tuple(
        Finding(f"{column.name}. {finding.title}", *_parts(finding))
        for column in columns
        for finding in column.findings
    )
    if len(full) < 2:
        return own, None
    friedman = statistics.friedman(full, groups=groups)
    nemenyi = statistics.nemenyi(full, groups=groups)
    findings = [_finding("Friedman over the columns", friedman), _finding("Nemenyi", nemenyi)]
    if control in full:
        dunn = statistics.bonferroni_dunn(full, control=control, groups=groups)
        signed = statistics.wilcoxon_holm(full, control=control, groups=groups)
        findings.append(_finding(f"Bonferroni–Dunn against {control}", dunn))
        findings.append(_finding(f"Wilcoxon against {control}, Holm", signed))
    return (*findings, *own), nemenyi


def _finding(title: str, result: Any) -> Finding:
    extra = _iman_davenport(result) if isinstance(result, Friedman) else ()
    return Finding(title, (result.sentence, *extra), result.warnings, asdict(result))


def _iman_davenport(result: Friedman) -> tuple[str, ...]:
    return (f"Iman and Davenport's less cautious F = {result.f:.2f}, p = {result.p_f:.2g}.",)


def _parts(finding: Finding) -> tuple[tuple[str, ...], tuple[str, ...], Any]:
    return finding.sentences, finding.warnings, finding.numbers
