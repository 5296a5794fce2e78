"""The comparison as a table for the terminal, Markdown and LaTeX."""

from collections.abc import Callable, Collection, Mapping, Sequence

from scs_supcon.benchmark.comparison import ColumnResult, Comparison, show_mean
from scs_supcon.data.splits import NO_TEST_SPLIT

NOT_RUN = "–"


def legend(
    comparison: Comparison,
    runs: str,
    adapted: Collection[str] = (),
    best_mark: str = "Bold",
    readouts: Mapping[str, str] | None = None,
) -> str:
    """Return one paragraph that explains the marks of a table.

    Args:
        comparison: the comparison.
        runs: number of runs per method, such as "3 seeds".
        adapted: methods marked as adapted.
        best_mark: how the table marks the best mean.
        readouts: what predicts the class, by method.
    """
    untested = [column.name for column in comparison.columns if column.split == "val"]
    everywhere = len(untested) == len(comparison.columns)
    extreme = "lowest" if comparison.metric.lower_is_better else "highest"
    text = (
        f"{'Validation' if everywhere else 'Test'} {comparison.metric.title}: mean ± standard "
        f"deviation over {runs}. {best_mark}: {extreme} mean of the column. ≈: does not differ "
        f"significantly from the {extreme}."
    )
    if readouts:
        text += f" Readout: {describe_readouts(readouts)}."
    if adapted:
        text += (
            " Adapted: the original method is for other data, or its details could not be checked."
        )
    if untested:
        where = "" if everywhere else f"{', '.join(untested)}: validation accuracy. "
        text += f" {where}{NO_TEST_SPLIT}"
    if any(mean.runs < c.expected_runs for c in comparison.columns for mean in c.means.values()):
        text += " (2 of 3): number of finished runs."
    if any(row not in c.means for c in comparison.columns for row in comparison.rows):
        text += f" {NOT_RUN}: not run."
    return text


def describe_readouts(readouts: Mapping[str, str]) -> str:
    """Return the methods by readout, such as "linear, embeddings (supcon, simclr)"."""
    methods: dict[str, list[str]] = {}
    for method, readout in readouts.items():
        methods.setdefault(readout, []).append(method)
    return "; ".join(f"{readout} ({', '.join(names)})" for readout, names in methods.items())


def text_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """Return a table with aligned columns; a star marks the best method."""
    rows = _grid(comparison, adapted, lambda text: f"{text} *", " ≈", str)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    ruler = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], ruler, *lines[1:]])


def markdown_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """Return a Markdown table."""
    header, *rows = _grid(comparison, adapted, lambda text: f"**{text}**", " ≈", escape_markdown)
    ruler = ["---", *("---:" for _ in header[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ruler, *rows))


def latex_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """Return a tabular environment for booktabs."""
    header, *rows = _grid(
        comparison, adapted, lambda text: rf"\textbf{{{text}}}", r"\,$\approx$", _escape_latex
    )
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * len(header[1:])}}}"]
    lines += [r"\toprule", _latex_row(header), r"\midrule"]
    lines += [_latex_row(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def mean_text(column: ColumnResult, row: str) -> str:
    """Return mean and spread, with the number of runs if some are missing."""
    if row not in column.means:
        return NOT_RUN
    mean = column.means[row]
    spread = "" if mean.spread is None else f" ± {mean.spread:.2f}"
    partial = mean.runs < column.expected_runs
    missing = f" ({mean.runs} of {column.expected_runs})" if partial else ""
    return f"{show_mean(mean.mean)}{spread}{missing}"


def _grid(
    comparison: Comparison,
    adapted: Collection[str],
    mark_best: Callable[[str], str],
    level_mark: str,
    escape: Callable[[str], str],
) -> list[list[str]]:
    header = ["method", *(column.name for column in comparison.columns)]
    rows = [[escape(name) for name in header]]
    for row in comparison.rows:
        cells = [escape(f"{row} (adapted)" if row in adapted else row)]
        for column in comparison.columns:
            text = escape(mean_text(column, row))
            marked = mark_best(text) if row in column.tied else text
            level = row in column.level and row not in column.tied
            cells.append(marked + (level_mark if level else ""))
        rows.append(cells)
    return rows


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape_markdown(text: str) -> str:
    """Return text with the characters escaped that have a meaning in Markdown."""
    for character in "\\|*_`<[":
        text = text.replace(character, f"\\{character}")
    return text


def _escape_latex(text: str) -> str:
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escapes |= {c: f"\\{c}" for c in "&%$#_{}"} | {"±": r"$\pm$", NOT_RUN: "--"}
    return "".join(escapes.get(character, character) for character in text)
