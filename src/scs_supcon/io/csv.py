"""Escape the cells of CSV tables that may be opened in a spreadsheet."""

import re

# A signed number, such as a class "-1", is not a formula.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)")


def text_cell(text: str) -> str:
    """Return a cell that spreadsheets show as text: `=1+1` becomes `'=1+1`.

    Use it only for tables that are not read back, because it changes the text.
    """
    return f"'{text}" if _FORMULA.match(text) else text
