import pytest

from scs_supcon.io.csv import text_cell


@pytest.mark.parametrize("text", ["=1+1", "+1+2", "-x", "-1+cmd", "-", "@sum", "\t=1", "\r=1"])
def test_what_a_spreadsheet_would_compute_stays_text(text):
    assert text_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "wren", "a=b", "'quoted'", "1-2", "-1", "+2.5"])
def test_all_else_stays_as_it_is(text):
    assert text_cell(text) == text
