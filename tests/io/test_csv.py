"""Cells of tables that are opened in spreadsheets."""

import csv
import io

import pytest

from scs_supcon.io.csv import csv_text, quoted_cell, text_cell, unquoted_cell

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


def test_cells_are_read_back_as_they_are():
    rows = [["a\rb", "c\nd", "e\r\nf"], ['"', ",", ""], ["\r", "ü", " x "]]
    assert list(csv.reader(io.StringIO(csv_text(rows), newline=""), strict=True)) == rows


def test_other_cells_are_written_as_by_python():
    rows = [["name", "label"], ["a, b", 'say "x"'], ["", 1.5], [None, "ü"], [""], []]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    assert csv_text(rows) == text.getvalue()
