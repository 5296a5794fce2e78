"""The table of corrections: append-only, complete after a crash, undone step by step."""

import csv
from datetime import datetime

import pytest

from scs_supcon.errors import UserError
from scs_supcon.server.corrections import Corrections

LABELS = {"a.png": "cat", "b.png": "dog", 'odd "name",\nx.png': "cat"}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "corrections.csv"


def rows_of(file):
    with file.open(newline="") as rows:
        return list(csv.DictReader(rows))


def test_corrections_survive_a_restart(file):
    corrections = Corrections(file, LABELS)
    corrections.relabel(LABELS, "dog")
    assert not Corrections(file, LABELS).changes().keys() - {"a.png", 'odd "name",\nx.png'}
    again = Corrections(file, LABELS)
    assert again.label("a.png") == again.label('odd "name",\nx.png') == "dog"
    assert again.rows == corrections.rows
    assert [row["old_label"] for row in rows_of(file)] == ["cat", "cat"]  # b.png was a dog already


def test_nothing_is_written_if_nothing_changes(file):
    assert Corrections(file, LABELS).relabel(["a.png"], "cat") == []
    assert not file.exists()


def test_actions_are_undone_one_by_one_if_the_clock_stands_still(file, monkeypatch):
    class Still(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr("scs_supcon.server.corrections.datetime", Still)
    corrections = Corrections(file, LABELS)
    corrections.relabel(["a.png"], "dog")
    corrections.relabel(["b.png"], "cat")
    assert [row.image for row in Corrections(file, LABELS).undo()] == ["b.png"]


def test_undo_reverses_whole_actions_in_turn(file):
    corrections = Corrections(file, LABELS)
    corrections.relabel(["a.png", 'odd "name",\nx.png'], "dog")
    corrections.relabel(["a.png"], "")
    corrections = Corrections(file, LABELS)  # after a restart
    assert [row.image for row in corrections.undo()] == ["a.png"]
    assert corrections.label("a.png") == "dog"
    corrections = Corrections(file, LABELS)
    assert len(corrections.undo()) == 2
    assert corrections.changes() == {}
    assert not corrections.can_undo
    assert corrections.undo() == []
    assert len(rows_of(file)) == 6  # nothing was removed


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_row_that_a_crash_cut_off_is_dropped(file, cut):
    corrections = Corrections(file, LABELS)
    corrections.relabel(["a.png"], "dog")
    complete = file.read_bytes()
    corrections.relabel(['odd "name",\nx.png'], "dog")
    whole = file.read_bytes()
    file.write_bytes(whole[: max(len(complete), len(whole) - cut)])
    again = Corrections(file, LABELS)
    assert again.changes() == {"a.png": "dog"}
    assert file.read_bytes() == complete
    again.relabel(["b.png"], "cat")
    assert Corrections(file, LABELS).changes() == {"a.png": "dog", "b.png": "cat"}


def test_another_table_is_not_touched(file):
    file.write_text("image,label\na.png,dog\n")
    with pytest.raises(UserError, match="not a table of corrections"):
        Corrections(file, LABELS)
    assert file.read_text() == "image,label\na.png,dog\n"
