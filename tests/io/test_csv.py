import pytest

from scs_supcon.io.csv import text_cell


@pytest.mark.parametrize("text", ["=1+1", "+1+2", "-x", "-1+cmd", "-", "@sum", "\t=1", "\r=1"])
def test_formulas_are_escaped(text):
    assert text_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "wren", "a=b", "'quoted'", "1-2", "-1", "+2.5"])
def test_other_text_is_unchanged(text):
    assert text_cell(text) == text
