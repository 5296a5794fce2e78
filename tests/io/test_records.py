"""Records are read with limits, and every failure names the file."""

import json
import os
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from scs_supcon.errors import UserError
from scs_supcon.io import records
from scs_supcon.io.records import MissingRecord, RecordError
from scs_supcon.io.typed import validate


class Point(BaseModel):
    x: int
    y: float = 0.0


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_json_and_toml_are_read(tmp_path):
    document = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
    assert records.read_json(write(tmp_path / "a.json", json.dumps(document))) == document
    assert records.read_toml(write(tmp_path / "a.toml", "x = [1, 2]\n[t]\ny = 0.5")) == {
        "x": [1, 2],
        "t": {"y": 0.5},
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested more than 50 deep"),
        ("9" * 6000, "not valid JSON"),
        ('{"a": {"b": [0, 9223372036854775808]}}', r"a\.b\.1 does not fit into 64 bits"),
    ],
)
def test_damaged_json_is_an_error_that_names_the_file(tmp_path, text, reason):
    with pytest.raises(RecordError, match=rf"odd\.json is damaged: .*{reason}"):
        records.read_json(write(tmp_path / "odd.json", text))


@pytest.mark.parametrize(
    "text", ["x", "x = 1\nx = 2", "x = " + "[" * 5000, "x = " + "9" * 6000, "x = 1e", "\x00"]
)
def test_damaged_toml_is_an_error_that_names_the_file(tmp_path, text):
    with pytest.raises(RecordError, match=r"odd\.toml is damaged: not valid TOML"):
        records.read_toml(write(tmp_path / "odd.toml", text))


def test_toml_has_the_limits_of_json(tmp_path):
    deep = ".".join("a" for _ in range(60)) + " = 1"
    for text, reason in (
        (deep, "50 deep"),
        ("[a]\nb = 99999999999999999999", r"a\.b does not fit"),
    ):
        with pytest.raises(RecordError, match=reason):
            records.read_toml(write(tmp_path / "odd.toml", text))


def test_nan_is_rejected_on_request():
    assert records.parse_json("[NaN]", "x")[0] != records.parse_json("[NaN]", "x")[0]
    with pytest.raises(RecordError, match=r"x is damaged: .*it contains NaN"):
        records.parse_json("[NaN]", "x", finite=True)


def test_a_record_must_be_an_object(tmp_path):
    for text, kind in (("[]", "a list"), ("3", "a number"), ("null", "null"), ('"a"', "text")):
        with pytest.raises(RecordError, match=f"expected a JSON object, got {kind}"):
            records.read_json_object(write(tmp_path / "a.json", text))


def test_bytes_that_are_not_utf8_are_an_error(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(RecordError, match="it is not UTF-8"):
        records.read_toml(tmp_path / "a.toml")


def test_a_missing_file_has_an_error_of_its_own(tmp_path):
    for read in (records.read_bytes, records.read_json, records.read_toml, records.read_parquet):
        with pytest.raises(MissingRecord, match="none does not exist"):
            read(tmp_path / "none")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    messages = []

    def read_all() -> None:
        for name in ("pipe", "device", "loop", "."):
            for read in (records.read_bytes, records.read_parquet):
                with pytest.raises(RecordError) as caught:
                    read(tmp_path / name)
                messages.append(str(caught.value))

    thread = threading.Thread(target=read_all, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "reading a pipe waited for a writer"
    assert len(messages) == 8
    assert sum("is not a regular file" in message for message in messages) >= 5


def test_odd_paths_are_errors(tmp_path):
    for path in (tmp_path / ("x" * 5000), Path("a\0b")):
        with pytest.raises(RecordError, match="cannot be read"):
            records.read_bytes(path)


def test_a_large_file_is_not_read(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(10 * 2**40)  # sparse
    with pytest.raises(RecordError, match=r"large\.json has 10,995,116,277,760 bytes, more than"):
        records.read_json(tmp_path / "large.json")


def test_a_large_limit_takes_no_memory(tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    assert records.read_bytes(tmp_path / "small", limit=2**60) == b"x"


def test_validation_names_file_and_key():
    assert validate(Point, {"x": 1}, "a.json") == Point(x=1)
    assert validate(list[str], ["a"], "a.json") == ["a"]
    with pytest.raises(RecordError, match=r"a\.json is damaged: x: Input should be"):
        validate(Point, {"x": "much"}, "a.json")
    with pytest.raises(UserError, match=r"a\.json is damaged: x: Field required"):
        validate(Point, {}, "a.json")


def test_csv_rows_have_the_expected_columns(tmp_path):
    file = write(tmp_path / "a.csv", "name,split\nx,train\n")
    assert list(records.csv_rows(file, ("name",))) == [{"name": "x", "split": "train"}]
    for text, reason in (
        ("", "no column 'name'"),
        ("name,split\nx\n", "line 2 has 1 cells, expected 2"),
        ('name,split\n"x', "not a CSV file"),
        ("name\n" + "x" * 200_000, "not a CSV file"),
    ):
        with pytest.raises(RecordError, match=rf"a\.csv is damaged: .*{reason}"):
            list(records.csv_rows(write(file, text), ("name",)))


def test_parquet_without_the_columns_is_damaged(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    assert records.read_parquet(tmp_path / "a.parquet", ["a"]).to_pydict() == {"a": [1]}
    with pytest.raises(RecordError, match="no column 'b'"):
        records.read_parquet(tmp_path / "a.parquet", ["a", "b"])
    write(tmp_path / "a.parquet", "PAR1 nothing PAR1")
    with pytest.raises(RecordError, match=r"a\.parquet is damaged"):
        records.read_parquet(tmp_path / "a.parquet")
