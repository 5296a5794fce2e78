"""Records are read with limits, and every failure names the file."""

import ast
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from scs_supcon.errors import UserError
from scs_supcon.io import records
from scs_supcon.io.records import MissingRecord, RecordError
from scs_supcon.io.typed import validate


class Point(BaseModel):
    x: int
    y: float = 0.0


def read_a_column(path: Path) -> Any:
    return records.read_parquet(path, {"a": int})


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
    for read in (records.read_bytes, records.read_json, records.read_toml, read_a_column):
        with pytest.raises(MissingRecord, match="none does not exist"):
            read(tmp_path / "none")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    messages = []

    def read_all() -> None:
        for name in ("pipe", "device", "loop", "."):
            for read in (records.read_bytes, read_a_column):
                with pytest.raises(RecordError) as caught:
                    read(tmp_path / name)
                messages.append(str(caught.value))

    thread = threading.Thread(target=read_all, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "reading a pipe waited for a writer"
    assert len(messages) == 8
    assert all("is not a regular file" in message for message in messages[:2])
    assert all("is a link that leaves its folder" in message for message in messages[2:4])
    with pytest.raises(RecordError, match="device is not a regular file"):
        records.open_record(tmp_path / "device", links=True)


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
    assert read_a_column(tmp_path / "a.parquet").to_pydict() == {"a": [1]}
    both = {"a": int, "b": str}
    assert records.read_parquet(tmp_path / "a.parquet", both, optional=["b"]).num_columns == 1
    with pytest.raises(RecordError, match="no column 'b'"):
        records.read_parquet(tmp_path / "a.parquet", both)
    write(tmp_path / "a.parquet", "PAR1 nothing PAR1")
    with pytest.raises(RecordError, match=r"a\.parquet is damaged"):
        read_a_column(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("cells", "kind", "reason"),
    [
        (["one"], int, "'a' has another type"),
        ([[1.0], [2.0]], str, "'a' has another type"),
        ([float("nan")], int, "'a' has another type"),
        ([1, None], int, "empty cells"),
        ([[1.0], [1.0, 2.0]], list, "vectors of different lengths"),
        ([[1.0, None]], list, "empty cells"),
        ([[1.0, float("inf")]], list, "with NaN"),
    ],
)
def test_columns_of_parquet_have_the_expected_type(tmp_path, cells, kind, reason):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": cells}), tmp_path / "a.parquet")
    with pytest.raises(RecordError, match=rf"a\.parquet is damaged: .*{reason}"):
        records.read_parquet(tmp_path / "a.parquet", {"a": kind})


def test_a_link_must_stay_in_its_folder_unless_the_user_named_it(tmp_path):
    (tmp_path / "run").mkdir()
    outside = write(tmp_path / "outside.json", "[1]")
    inside = write(tmp_path / "run" / "inside.json", "[2]")
    for target in (inside, "inside.json", "../run/inside.json"):
        link = tmp_path / "run" / "link.json"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert records.read_json(link) == [2]
    for target in (outside, "../outside.json"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(RecordError, match=r"link\.json is a link that leaves its folder"):
            records.read_json(link)
        assert records.read_text(link, links=True) == "[1]"
    (tmp_path / "latest").symlink_to(tmp_path / "run")  # the user named the folder
    assert records.read_json(tmp_path / "latest" / "inside.json") == [2]
    (tmp_path / "run" / "model").symlink_to(tmp_path)
    with pytest.raises(RecordError, match="model is a link that leaves its folder"):
        records.inside(tmp_path / "run", "model")


def test_cells_of_a_csv_file_have_the_expected_types(tmp_path):
    file = write(tmp_path / "a.csv", "epoch,value,note\n1,0.5,x\n")
    types = {"epoch": int, "value": float}
    assert list(records.csv_rows(file, types)) == [{"epoch": "1", "value": "0.5", "note": "x"}]
    with pytest.raises(RecordError, match=r"a\.csv is damaged: .*'one'"):
        list(records.csv_rows(write(file, "epoch,value\none,0.5\n"), types))


# Modules that read files of the package, the system or the user's own code, or write and check
# files of their own; all others open files by `open_record`.
OPEN_FILES = {
    *("plugins.py", "io/records.py", "io/atomic.py", "io/exchange.py", "io/file_systems.py"),
    *("io/hashing.py", "io/journal.py"),
    *("report/render.py", "reproduce/experiment.py", "runs/environment.py", "server/pages.py"),
    *("data/named/download.py", "data/named/extract.py", "data/packed.py", "data/splits.py"),
    *("data/table.py", "inference/sorting.py", "inference/writing.py", "runs/metrics_log.py"),
    *("server/retrain.py", "tuning/journal.py", "training/workers.py"),
}


def test_records_are_opened_in_one_place():
    source = Path(records.__file__).parents[1]
    opening = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            opens = name in ("open", "os.open", "tarfile.open", "np.load", "np.fromfile")
            method = isinstance(node.func, ast.Attribute) and node.func.attr
            value = ast.unparse(node.func.value) if method else ""
            reads = method in ("read_text", "read_bytes") and value not in ("records", "atomic")
            mode = method == "open" and bool(node.args) and isinstance(node.args[0], ast.Constant)
            if opens or reads or (mode and isinstance(node.args[0].value, str)):
                opening.add(file.relative_to(source).as_posix())
    assert opening - OPEN_FILES == set(), "use io.records.open_record or read_bytes"
