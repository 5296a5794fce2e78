"""Cells of CSV tables that people open in a spreadsheet."""

import re

# A signed number, such as a class "-1", is no formula.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)")


def text_cell(text: str) -> str:
    """Keep a name from outside from being computed: `=1+1` becomes `'=1+1`.

    For tables that are for people alone: what reads one back would read another name.
    """
    return f"'{text}" if _FORMULA.match(text) else text
