"""Records that others made: pipes, devices, links, huge files and wrong types are clear errors.

Every command ends with one line that names the file, without a traceback and without waiting.
"""

import http.client
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_processes import Processes
from scs_supcon.benchmark.results import read_pair_curves
from scs_supcon.data.load import load_images
from scs_supcon.data.packed import pack
from scs_supcon.errors import UserError
from scs_supcon.server.onnx_predictor import load_onnx
from scs_supcon.tuning.study import space_of
from server_processes import free_port

SECONDS = 60  # after which a command that waits for a pipe is killed


@pytest.fixture(scope="module")
def originals(
    finished: Path, shapes: Path, processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a run, its data packed, and an exported model with its gallery."""
    pytest.importorskip("onnxscript", reason="no onnxscript: pip install 'scs-supcon[onnx]'")
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(finished, folder / "run")
    pack(load_images(shapes), folder / "packed")
    shutil.copy(min(shapes.rglob("*.png")), folder / "image.png")
    images = ("--images", min(shapes.rglob("*.png")))
    result = processes.run("export", finished, "-o", folder / "shapes.onnx", *images)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def work(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals, tmp_path / "work"))


# Each record, the command that reads it, and content of a wrong type.
EVALUATE, REPORT, PREDICT = "evaluate run", "report run", "predict run image.png"
RELABEL, DOCTOR, SERVE = "relabel run -o new.csv", "doctor packed --out new.csv", "serve --onnx"
RECORDS: dict[str, tuple[str, str]] = {
    "run/evaluation.json": (EVALUATE, '{"format_version": []}'),
    "run/recipe.toml": (REPORT, "data = 5"),
    "run/metrics.csv": (REPORT, "stage,epoch,step,metric,value\npretrain,one,1,loss,0.5\n"),
    "run/predictions.parquet": (REPORT, "parquet"),
    "run/label_scores.parquet": (RELABEL, "parquet"),
    "run/classes.json": (RELABEL, "[1, 2]"),
    "run/splits.csv": (RELABEL, "name,split\na,train\n"),
    "run/model/model.json": (PREDICT, "{}"),
    "run/model/weights.safetensors": (PREDICT, "{}"),
    "run/model/SHA256SUMS": (PREDICT, "one word"),
    "packed/index.parquet": (DOCTOR, "parquet"),
    "packed/shard-00000.tar": (DOCTOR, "x"),
    "shapes.gallery.safetensors": (SERVE, "{}"),
    "shapes.onnx": (SERVE, "{}"),
}
FAULTS = ("pipe", "device", "link", "large", "type")


def damage(file: Path, fault: str, content: str) -> None:
    """Replace a file by a pipe, a link to a device or to another folder, or other content."""
    outside = Path(tempfile.mkdtemp(dir=file.parents[1])) / file.name
    file.rename(outside)
    if fault == "pipe":
        os.mkfifo(file)
    elif fault == "device":
        file.symlink_to("/dev/zero")
    elif fault == "link":
        file.symlink_to(outside)
    elif fault == "large":
        with file.open("wb") as stream:
            stream.truncate(2**40)  # sparse
    elif content == "parquet":
        pq.write_table(pa.table({"name": [[1]], "suggested": ["x"], "suspicion": ["y"]}), file)
    else:
        file.write_text(content)


CASES = [
    (name, fault)
    for name in RECORDS
    for fault in FAULTS
    # A shard has any size, and the user names the exported model, which may be a link.
    if (name, fault) not in (("packed/shard-00000.tar", "large"), ("shapes.onnx", "link"))
]


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_a_record_must_be_a_file_of_its_folder(processes, work, name, fault):
    command, content = RECORDS[name]
    damage(work / name, fault, content)
    places = ("run", "packed", "new.csv", "image.png")
    arguments = [str(work / part) if part in places else part for part in command.split()]
    if command == SERVE:
        arguments += [str(work / "shapes.onnx"), "--port", str(free_port())]
    result = processes.run(*arguments, kill_after=SECONDS)
    problems = work / "new.csv"
    text = result.err + (problems.read_text() if problems.exists() else "")
    assert result.code in (1, 2), text
    assert "Traceback" not in text
    assert "error: " in text or "unreadable" in text
    assert Path(name).name in text
    if fault == "link":
        assert "is a link that leaves its folder" in text
    if fault == "pipe":
        assert "is not a regular file" in text or "SHA256SUMS, so it is incomplete" in text


def test_a_model_folder_must_stay_in_its_run(processes, work):
    (work / "run" / "model").rename(work / "elsewhere")
    (work / "run" / "model").symlink_to(work / "elsewhere")
    result = processes.run("predict", work / "run", work / "image.png", kill_after=SECONDS)
    assert result.code == 2
    assert "model is a link that leaves its folder" in result.err


def test_a_run_may_be_named_by_a_link(processes, work):
    (work / "latest").symlink_to(work / "run")
    assert processes.run("evaluate", work / "latest", kill_after=SECONDS).code == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_of_a_comparison_must_be_a_file_of_its_folder(work, fault):
    file = work / "run" / "metrics.csv"
    damage(file, fault, "stage,epoch,step,metric,value\npretrain,1,x,step_t,0.5\n")
    with pytest.raises(UserError, match=r"metrics\.csv"):
        read_pair_curves(file)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_of_a_search_must_be_a_file_of_its_folder(work, fault):
    (work / "search").mkdir()
    file = work / "search" / "search.json"
    file.write_text('{"over": ["pretrain.lr"], "objective": "loss"}')
    damage(file, fault, '{"over": 5}')
    with pytest.raises(UserError, match=r"search\.json"):
        space_of(file.parent, "supcon")


# Exported models


def with_metadata(work: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the metadata of the exported model."""
    import onnx

    file = work / "shapes.onnx"
    model = onnx.load(file)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "scs_supcon"]
    metadata = json.loads(entry.value)
    changed = change(metadata)
    entry.value = changed if isinstance(changed, str) else json.dumps(metadata)
    onnx.save(model, file)
    return file


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(metadata: dict[str, Any]) -> None:
        for key in path[:-1]:
            metadata = metadata[key]
        metadata[path[-1]] = value

    return change


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata.pop(key) and None


METADATA: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "no format_version": drop("format_version"),
    "format_version is text": put("format_version", value="x"),
    "no classes": drop("classes"),
    "a list": lambda metadata: "[]",
    "no preprocessing": drop("preprocessing"),
    "pairs is a list": put("pairs", value=[1, 2]),
    "short side 10^9": put("preprocessing", "short_side", value=10**9),
    "short side is text": put("preprocessing", "short_side", value="x"),
    "short side 0": put("preprocessing", "short_side", value=0),
    "another crop": put("preprocessing", "centre_crop", value=8),
    "an unknown interpolation": put("preprocessing", "interpolation", value="odd"),
    "fewer classes": put("classes", value=["a"]),
    "classes are numbers": put("classes", value=[1, 2, 3, 4]),
    "thresholds are NaN": put("thresholds", value=[float("nan")] * 4),
    "thresholds are infinite": lambda m: json.dumps(m | {"thresholds": ["x"] * 4}).replace(
        '"x"', "1e999"
    ),
    "no thresholds": put("thresholds", value=[]),
    "too few thresholds": lambda m: m["thresholds"].pop() and None,
    "depth": lambda metadata: "[" * 100_000,
    "t is text": put("pairs", "t", value="x"),
    "no metrics": drop("metrics"),
}


@pytest.mark.parametrize("kind", METADATA)
def test_damaged_metadata_is_an_error_at_the_start(work, kind):
    file = with_metadata(work, METADATA[kind])
    with pytest.raises(UserError, match=r"shapes\.onnx (is damaged|is not a model of)"):
        load_onnx(file)


def test_serve_reports_damaged_metadata(scs, work):
    file = with_metadata(work, METADATA["no classes"])
    result = scs("serve", "--onnx", file, "--port", free_port())
    assert result.code == 2
    assert result.err == f"error: {file} is damaged: classes should be a list, got null\n"


def test_fewer_classes_with_as_many_thresholds_are_an_error(work):
    def change(metadata: dict[str, Any]) -> None:
        for key in ("classes", "thresholds"):
            metadata[key] = metadata[key][:2]

    with pytest.raises(UserError, match=r"it names 2 classes"):
        load_onnx(with_metadata(work, change))


# Galleries

Tensors = dict[str, np.ndarray]


def with_gallery(work: Path, change: Callable[[Tensors, dict[str, str]], Tensors | None]) -> Path:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    file = work / "shapes.gallery.safetensors"
    with safe_open(file, "np") as content:
        metadata = dict(content.metadata())
        tensors = {name: content.get_tensor(name).copy() for name in content.keys()}  # noqa: SIM118
    tensors |= change(tensors, metadata) or {}
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()}, file, metadata
    )
    return work / "shapes.onnx"


GALLERIES: Mapping[str, Callable[[Tensors, dict[str, str]], Tensors | None]] = {
    "labels out of range": lambda t, m: {"labels": t["labels"] + 10},
    "negative labels": lambda t, m: {"labels": t["labels"] - 10},
    "float labels": lambda t, m: {"labels": t["labels"].astype(np.float32)},
    "vectors 1-d": lambda t, m: {"common": t["common"][:, 0]},
    "narrow vectors": lambda t, m: {"common": t["common"][:, :3]},
    "vectors NaN": lambda t, m: {"common": t["common"] * np.float32("nan")},
    "vectors too long": lambda t, m: {"common": t["common"] * np.float32(1e38)},
    "style rows": lambda t, m: {"style": t["style"][:2]},
    "ends 2-d": lambda t, m: {"ends": t["ends"][:, None]},
    "float ends": lambda t, m: {"ends": t["ends"].astype(np.float64)},
    "ends decrease": lambda t, m: {"ends": t["ends"][::-1]},
    "ends too large": lambda t, m: {"ends": t["ends"] + 10**6},
    "depth": lambda t, m: m.update(names="[" * 100_000),
    "names are numbers": lambda t, m: m.update(names=json.dumps([1] * len(t["labels"]))),
    "names are a table": lambda t, m: m.update(names="{}"),
    "fewer names": lambda t, m: m.update(names='["a"]'),
}


@pytest.mark.parametrize("kind", GALLERIES)
def test_a_damaged_gallery_is_an_error_at_the_start(work, kind):
    file = with_gallery(work, GALLERIES[kind])
    with pytest.raises(UserError, match=r"shapes\.gallery\.safetensors"):
        load_onnx(file)


Get = Callable[[str], tuple[int, bytes]]


@contextmanager
def serving(file: Path) -> Iterator[Get]:
    """A real server of an exported model."""
    uvicorn = pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'scs-supcon[serve]'")
    from scs_supcon.server.onnx_app import create_onnx_app
    from scs_supcon.server.security import AccessRules

    port = free_port()
    app = create_onnx_app(file, AccessRules.for_address("127.0.0.1", port, ""))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)

    def get(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    try:
        yield get
    finally:
        server.should_exit = True
        thread.join()


def test_damaged_thumbnails_are_not_found(work):
    def scramble(tensors: Tensors, metadata: dict[str, str]) -> Tensors:
        return {"jpegs": np.roll(tensors["jpegs"], 5)}

    with serving(with_gallery(work, scramble)) as get:
        assert get("/api/images/0")[0] == 404
        status, content = get("/api/neighbours?id=0")
        assert status == 200
        assert len(json.loads(content)["neighbours"]) > 0


def test_thumbnails_of_an_intact_gallery_are_shown(work):
    with serving(work / "shapes.onnx") as get:
        status, content = get("/api/images/0?side=16")
    assert (status, content[:2]) == (200, b"\xff\xd8")


def test_a_model_without_a_gallery_has_no_neighbours(work):
    (work / "shapes.gallery.safetensors").unlink()
    with serving(work / "shapes.onnx") as get:
        assert get("/api/neighbours")[0] == 404
        assert get("/api/images/0")[0] == 404
        assert get("/api/model")[0] == 200


# Packed datasets


def hashes(table: pa.Table, length: int) -> pa.Array:
    return pa.array([b"x" * length] * len(table), pa.binary(length))


INDICES: Mapping[str, Callable[[pa.Table], Mapping[str, Any]]] = {
    "no sha256": lambda table: {"sha256": None},
    "no short_side": lambda table: {"short_side": None},
    "null sha256": lambda table: {"sha256": pa.nulls(len(table), pa.binary(32))},
    "text in shard": lambda table: {"shard": pa.array(["x"] * len(table))},
    "text in fold": lambda table: {"fold": pa.array(["x"] * len(table))},
    "lists as labels": lambda table: {"label": pa.array([["x"]] * len(table))},
    "short_side NaN": lambda table: {"short_side": pa.array([float("nan")] * len(table))},
    "short_side 0": lambda table: {"short_side": pa.array([0] * len(table))},
    "hashes of 31 bytes": lambda table: {"sha256": hashes(table, 31)},
    "names are null": lambda table: {"name": pa.nulls(len(table), pa.string())},
}


@pytest.mark.parametrize("kind", INDICES)
def test_a_damaged_index_is_an_error(scs, work, kind):
    file = work / "packed" / "index.parquet"
    table = pq.read_table(file)
    metadata = table.schema.metadata
    for name, column in INDICES[kind](table).items():
        if name in table.column_names:
            table = table.drop_columns([name])
        if column is not None:
            table = table.append_column(name, column)
    pq.write_table(table.replace_schema_metadata(metadata), file)
    result = scs("doctor", work / "packed", "--out", work / "problems.csv")
    assert result.code == 2
    assert result.err.startswith(f"error: {file} ")
    assert "write it again with `scs pack`" in result.err
