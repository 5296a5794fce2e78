"""Cells of CSV tables that are opened in a spreadsheet."""

import re

# A signed number, such as a class "-1", is not a formula.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)")


def text_cell(text: str) -> str:
    """Return a cell that spreadsheets show as text: `=1+1` becomes `'=1+1`.

    Use it only for tables that are not read back: the name in the cell differs from the original.
    """
    return f"'{text}" if _FORMULA.match(text) else text
