"""A comparison as a table: for the terminal, Markdown and LaTeX. A dash where nothing was run."""

from collections.abc import Callable, Collection, Sequence

from scs_supcon.benchmark.comparison import ColumnResult, Comparison
from scs_supcon.evaluation.splits import UNTESTED

DASH = "–"
LEGEND = (
    "{part} accuracy in per cent: mean ± standard deviation over {runs}. "
    "Bold: highest mean of the column. ≈: its tests cannot set it apart from the highest. "
    "Adapted: the original method is for other data, or could not be checked."
)


def legend(comparison: Comparison, runs: str) -> str:
    """One line that explains the marks; `runs` says what the spread is over, as "3 seeds"."""
    untested = [column.name for column in comparison.columns if column.judged_on == "val"]
    everywhere = len(untested) == len(comparison.columns)
    text = LEGEND.format(part="Validation" if everywhere else "Test", runs=runs)
    if untested:
        where = "" if everywhere else f"{', '.join(untested)}: validation accuracy. "
        text += f" {where}{UNTESTED}"
    if any(mean.runs < c.wanted for c in comparison.columns for mean in c.means.values()):
        text += " (2 of 3): only so many runs are finished."
    if any(row not in c.means for c in comparison.columns for row in comparison.rows):
        text += f" {DASH}: not run."
    return text


def text_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """Aligned columns; the best is marked by a star."""
    return _aligned(_grid(comparison, adapted, lambda text: f"{text} *", " ≈", str))


def markdown_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """A pipe table."""
    header, *rows = _grid(comparison, adapted, lambda text: f"**{text}**", " ≈", _for_markdown)
    ruler = ["---", *("---:" for _ in header[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ruler, *rows))


def latex_table(comparison: Comparison, adapted: Collection[str]) -> str:
    """A tabular for booktabs."""
    header, *rows = _grid(
        comparison, adapted, lambda text: rf"\textbf{{{text}}}", r"\,$\approx$", _for_latex
    )
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * len(header[1:])}}}"]
    lines += [r"\toprule", _latex_row(header), r"\midrule"]
    lines += [_latex_row(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def number(column: ColumnResult, row: str) -> str:
    """Mean and spread as text, with how many runs there are where some are missing."""
    if row not in column.means:
        return DASH
    found = column.means[row]
    spread = "" if found.spread is None else f" ± {found.spread:.2f}"
    missing = f" ({found.runs} of {column.wanted})" if found.runs < column.wanted else ""
    return f"{found.mean:.2f}{spread}{missing}"


def _grid(
    comparison: Comparison,
    adapted: Collection[str],
    bold: Callable[[str], str],
    level: str,
    escape: Callable[[str], str],
) -> list[list[str]]:
    header = ["method", *(column.name for column in comparison.columns)]
    rows = [[escape(name) for name in header]]
    for row in comparison.rows:
        cells = [escape(f"{row} (adapted)" if row in adapted else row)]
        for column in comparison.columns:
            text = escape(number(column, row))
            marked = bold(text) if row == column.best else text
            cells.append(marked + (level if row in column.level else ""))
        rows.append(cells)
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    ruler = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], ruler, *lines[1:]])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _for_markdown(text: str) -> str:
    for sign in "\\|*_`<[":
        text = text.replace(sign, f"\\{sign}")
    return text


def _for_latex(text: str) -> str:
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    signs |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"±": r"$\pm$", DASH: "--"}
    return "".join(signs.get(sign, sign) for sign in text)
