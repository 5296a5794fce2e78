"""Cells of tables that are opened in spreadsheets."""

import pytest

from scs_supcon.io.csv import quoted_cell, text_cell, unquoted_cell

FORMULAS = ("=1+1", "+1+2", "-x", "-1+cmd", "-", "@sum", "'=1", "''=1")
PLAIN = ("a", "", "1=1", "-1", "+2.5", "it's", "'quoted'", "'")


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_quoted_and_read_back(text):
    assert text_cell(text) == quoted_cell(text) == f"'{text}"
    assert unquoted_cell(quoted_cell(text)) == text


@pytest.mark.parametrize("text", ["\t=1", "\r=1"])
def test_a_cell_that_is_read_back_keeps_its_control_characters(text):
    assert unquoted_cell(quoted_cell(text)) == text
    assert quoted_cell(text).startswith("'")
    assert text_cell(text) in (r"\x09=1", r"\x0d=1")


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_is_unchanged(text):
    assert text_cell(text) == quoted_cell(text) == unquoted_cell(text) == text
