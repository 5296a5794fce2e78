"""Cells of CSV tables that people open in a spreadsheet."""

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def text_cell(text: str) -> str:
    """Keep a name from outside from being computed: `=1+1` becomes `'=1+1`.

    For tables that are for people alone: what reads one back would read another name.
    """
    return f"'{text}" if text.startswith(_BEGINS_A_FORMULA) else text
