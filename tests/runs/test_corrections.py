"""Corrected labels: complete after a crash, undone step by step, read from version 0.2."""

import json
from datetime import datetime

import pytest

from scs_supcon.errors import UserError
from scs_supcon.runs.corrections import Corrections

LABELS = {"a.png": "cat", "b.png": "dog", 'odd "name",\nx.png': "cat"}
HEADER = "time,image,old_label,new_label,action\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "corrections.jsonl"


def actions_of(file):
    """Return the records of the journal without its header."""
    return [json.loads(line)["record"] for line in file.read_text().splitlines()[1:]]


def test_corrections_survive_a_restart(file):
    corrections = Corrections(file, LABELS)
    corrections.relabel(LABELS, "dog")
    again = Corrections(file, LABELS)
    assert again.changes() == {"a.png": "dog", 'odd "name",\nx.png': "dog"}
    assert again.rows == corrections.rows
    ((_, action, images),) = actions_of(file)
    assert action == "label"
    assert [old for _, old, _ in images] == ["cat", "cat"]  # b.png was a dog already


def test_nothing_is_written_if_nothing_changes(file):
    assert Corrections(file, LABELS).relabel(["a.png"], "cat") == []
    assert not file.exists()


def test_actions_are_undone_one_by_one_if_the_clock_stands_still(file, monkeypatch):
    class Still(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr("scs_supcon.runs.corrections.datetime", Still)
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
    assert len(actions_of(file)) == 4  # nothing was removed


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_an_action_that_a_crash_cut_off_is_dropped(file, cut):
    corrections = Corrections(file, LABELS)
    corrections.relabel(["a.png"], "dog")
    complete = file.read_bytes()
    corrections.relabel(["b.png", 'odd "name",\nx.png'], "")
    file.write_bytes(file.read_bytes()[:-cut])
    again = Corrections(file, LABELS)
    assert again.changes() == {"a.png": "dog"}
    again.relabel(["b.png"], "cat")
    assert file.read_bytes().startswith(complete)
    assert Corrections(file, LABELS).changes() == {"a.png": "dog", "b.png": "cat"}


def test_records_of_another_shape_are_rejected(file):
    Corrections(file, LABELS).relabel(["a.png"], "dog")
    from scs_supcon.io.journal import Journal

    Journal(file, "corrections").append({"time": 1})
    with pytest.raises(UserError, match=r"corrections\.jsonl is damaged"):
        Corrections(file, LABELS)


# The table of version 0.2.


def convert(file, table):
    old = file.with_name("corrections.csv")
    old.write_bytes(table.encode())
    corrections = Corrections(file, LABELS)
    assert not old.exists()
    assert old.with_name("corrections.csv.converted").read_bytes() == table.encode()
    assert Corrections(file, LABELS).rows == corrections.rows
    return corrections


def test_a_table_of_version_0_2_is_converted(file):
    table = HEADER + "1,a.png,cat,dog,label\n2,b.png,dog,,label\n2,c.png,,cat,label\n"
    corrections = convert(file, table + '3,"odd ""name"",\nx.png",cat,dog,label\n')
    assert corrections.changes() == {
        "a.png": "dog",
        "b.png": "",
        "c.png": "cat",
        'odd "name",\nx.png': "dog",
    }
    corrections.undo()
    assert len(corrections.undo()) == 2  # rows of one time are one action
    assert Corrections(file, LABELS).changes() == {"a.png": "dog"}


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("", {}),
        (HEADER, {}),
        ("1,a.png,cat,dog,label\n", {"a.png": "dog"}),  # no header after a full disk
        (HEADER + "1,a.png,cat,dog,label\n2,b.png,dog,ca", {"a.png": "dog"}),
        (HEADER + "1,a\rb.png,,dog,label\n2,b.png,dog,cat,label\n",
         {"a\rb.png": "dog", "b.png": "cat"}),
        (HEADER.replace("\n", "\r\n") + "1,a.png,cat,dog,label\r\n", {"a.png": "dog"}),
        (HEADER + "1,a.png,cat,dog,label\n2,a.png,dog,cat,undo\n", {}),
    ],
)  # fmt: skip
def test_what_version_0_2_could_leave_behind_is_converted(file, table, changes):
    assert convert(file, table).changes() == changes


@pytest.mark.parametrize("damage", [b"\xff", b'"', b"x,y,z"])
def test_a_damaged_table_is_rejected_and_kept(file, damage):
    rows = "".join(f"{i},a.png,cat,{'dog' if i % 2 else 'cat'},label\n" for i in range(9))
    content = (HEADER + rows).encode()
    middle = content.index(b"4,a.png") + 2
    old = file.with_name("corrections.csv")
    old.write_bytes(content[:middle] + damage + content[middle:])
    with pytest.raises(UserError, match="A copy is kept as"):
        Corrections(file, LABELS)
    assert old.read_bytes().count(b"\n") == 10
    assert old.with_name("corrections.csv.damaged").read_bytes() == old.read_bytes()
    assert not file.exists()


def test_another_table_is_not_touched(file):
    old = file.with_name("corrections.csv")
    old.write_text("image,label\na.png,dog\n")
    with pytest.raises(UserError, match="row 1 is not a correction"):
        Corrections(file, LABELS)
    assert old.read_text() == "image,label\na.png,dog\n"
