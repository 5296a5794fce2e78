"""Write CSV tables, and escape the cells of those that may be opened in a spreadsheet."""

import csv
import re
from collections.abc import Iterable
from types import SimpleNamespace

from scs_supcon.io.text import printable_name

# A signed number, such as a class "-1", is not a formula.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Return a CSV table whose rows end with "\n" and whose cells are read back as they are.

    Python quotes the characters of its line terminator, so it must contain the "\r" of a cell.
    """
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(f"{line[:-2]}\n" for line in lines)


def text_cell(text: str) -> str:
    """Return a cell that spreadsheets show as text: `=1+1` becomes `'=1+1`.

    Use it for tables that people read: control characters are written as escapes.
    """
    return quoted_cell(printable_name(text))


def quoted_cell(text: str) -> str:
    """Return a cell that spreadsheets show as text, and `unquoted_cell` can read back."""
    return f"'{text}" if _FORMULA.match(text.lstrip("'")) else text


def unquoted_cell(cell: str) -> str:
    """Return the text of a cell that `quoted_cell` wrote."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell.lstrip("'")) else cell
