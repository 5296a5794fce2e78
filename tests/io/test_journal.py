"""Journals: every record that was acknowledged is read back, or the file is rejected."""

import json
import os
import stat
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scs_supcon.errors import UserError
from scs_supcon.io.journal import Journal
from scs_supcon.io.records import RecordError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notes.jsonl"


def filled(file: Path, count: int = 5) -> list[dict[str, int]]:
    journal = Journal(file, "notes")
    records = [{"number": number} for number in range(count)]
    for record in records:
        journal.append(record)
    return records


def test_records_are_read_back(file: Path) -> None:
    assert filled(file) == Journal(file, "notes").records
    Journal(file, "notes").append("more")
    assert Journal(file, "notes").records[-1] == "more"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(st.characters()) | st.integers(-(2**62), 2**62),
        lambda values: st.lists(values) | st.dictionaries(st.text(), values),
        max_leaves=10,
    )
)
def test_any_value_is_read_back_from_one_line(tmp_path_factory, value) -> None:
    file = tmp_path_factory.mktemp("journal") / "notes.jsonl"
    Journal(file, "notes").append(value)
    assert Journal(file, "notes").records == [value]
    assert len(file.read_bytes().splitlines()) == 2


def test_the_file_is_plain_json_lines_with_checksums(file: Path) -> None:
    filled(file, 1)
    header, line = (json.loads(line) for line in file.read_text().splitlines())
    assert header["record"] == {"journal": "notes", "format": 1}
    assert line["record"] == {"number": 0}
    assert int(line["crc32"], 16) == zlib.crc32(b'{"number": 0}')
    assert stat.S_IMODE(file.stat().st_mode) & 0o111 == 0


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\0\0\n"])
def test_what_a_crash_cut_off_is_removed(file: Path, rest: bytes) -> None:
    records = filled(file, 2)
    complete = file.read_bytes()
    Journal(file, "notes").append({"number": 2})
    last = file.read_bytes()[len(complete) :]
    for kept in range(len(last)):
        file.write_bytes(complete + last[:kept] + rest)
        torn = file.read_bytes()
        journal = Journal(file, "notes")
        assert journal.records == records
        assert file.read_bytes() == torn, "another process may be appending: nothing is changed"
        journal.append({"number": 2})
        assert file.read_bytes() == complete + last


def test_a_header_that_a_crash_cut_off_is_written_again(file: Path) -> None:
    filled(file, 1)
    whole = file.read_bytes()
    for kept in range(whole.index(b"\n") + 1):
        file.write_bytes(whole[:kept])
        Journal(file, "notes").append({"number": 0})
        assert file.read_bytes() == whole
        file.unlink()


def test_any_other_damage_is_rejected_and_a_copy_kept(file: Path) -> None:
    filled(file)
    whole = file.read_bytes()
    copy = file.with_name("notes.jsonl.damaged")
    end = whole.rindex(b"\n", 0, -1)  # a broken last line may be one that was cut off
    rejected = 0
    for position in range(0, end, 3):
        damaged = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        file.write_bytes(damaged)
        copy.unlink(missing_ok=True)
        with pytest.raises(RecordError, match="is damaged") as caught:
            Journal(file, "notes")
        assert "delete that line" in str(caught.value)
        assert file.read_bytes() == copy.read_bytes() == damaged
        rejected += 1
    assert rejected > 50


def test_the_advice_of_the_error_keeps_the_other_records(file: Path) -> None:
    records = filled(file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], b"x" + lines[3], *lines[4:]]))
    with pytest.raises(RecordError, match="line 4 of 6"):
        Journal(file, "notes")
    file.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    assert Journal(file, "notes").records == [*records[:2], *records[3:]]


def test_another_kind_or_version_is_rejected(file: Path) -> None:
    filled(file)
    with pytest.raises(RecordError, match="not a journal of corrections"):
        Journal(file, "corrections")


def test_a_full_disk_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(file, "notes")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, content: write(handle, content[:7]))
        with pytest.raises(UserError, match="the disk is full"):
            journal.append({"number": 0})
    assert file.read_bytes() == b""
    journal.append({"number": 1})
    assert Journal(file, "notes").records == [{"number": 1}]


def test_a_file_that_another_program_changed_is_not_appended_to(file: Path) -> None:
    filled(file, 1)
    journal = Journal(file, "notes")
    Journal(file, "notes").append("other")
    with pytest.raises(RecordError, match="changed by another program"):
        journal.append("mine")
    assert Journal(file, "notes").records == [{"number": 0}, "other"]


def test_a_new_journal_is_written_whole(file: Path) -> None:
    journal = Journal.create(file, "notes", ["a", "b"])
    journal.append("c")
    assert Journal(file, "notes").records == ["a", "b", "c"]
    assert not [path for path in file.parent.iterdir() if path != file]
