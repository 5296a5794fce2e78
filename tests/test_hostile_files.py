"""Files that attack the reader: giant networks, pipes, devices, odd tables and paths."""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scs_supcon import load
from scs_supcon.data import image_io
from scs_supcon.data.image_io import MAX_PIXELS, open_image
from scs_supcon.errors import UserError
from scs_supcon.runs.checkpoint_io import Checkpoint, read_checkpoint, write_checkpoint

SMALL = ("--epochs", "1", "--workers", "0", "--device", "cpu", "--quiet", "--no-report")


@pytest.fixture
def model(finished, tmp_path) -> Path:
    shutil.copytree(finished / "model", tmp_path / "model")
    return tmp_path / "model"


def seal(model: Path) -> None:
    """Write checksums that fit the files."""
    names = ("weights.safetensors", "model.json")
    sums = (f"{hashlib.sha256((model / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    (model / "SHA256SUMS").write_text("".join(sums))


@pytest.mark.parametrize(
    "recipe",
    [
        {"encoder": {"name": "vit_giant_patch14_224"}},
        {"encoder": {"name": "vit_huge_patch14_224"}, "data": {"image_size": 4096}},
        {"head": {"common_dim": 65536, "hidden": 65536, "style_dim": 0, "overlap": 0}},
        {"head": {"heads": 100, "common_dim": 65536, "style_dim": 65536, "overlap": 0}},
    ],
    ids=["giant", "large images", "wide", "many heads"],
)
def test_a_small_model_cannot_describe_a_large_network(model, recipe):
    info = json.loads((model / "model.json").read_text())
    for section, values in recipe.items():
        info["recipe"][section] |= values
    (model / "model.json").write_text(json.dumps(info))
    seal(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"do not fit the (encoder|head)|does not work with images"):
        load(model)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 300 * 2**10, f"{used / 2**10:.0f} MiB"


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json", "SHA256SUMS"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "loop", "folder"])
def test_only_regular_files_are_read_from_a_model(scs, shapes, model, name, kind):
    file = model / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "loop" else kind)
    signal.alarm(60)  # ends the tests if a pipe is waited for
    result = scs("predict", model, shapes, "--quiet")
    signal.alarm(0)
    assert result.code == 2
    assert result.err.startswith("error: ")


def test_pipes_and_links_in_a_folder_of_images_are_reported(scs, shapes, finished, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(shapes, data)
    label = next(path for path in sorted(data.iterdir()) if path.is_dir())
    os.mkfifo(label / "pipe.png")
    (label / "loop.png").symlink_to(label / "loop.png")
    (label / "again").symlink_to(label)
    (label / "zero.jpg").symlink_to("/dev/zero")
    signal.alarm(120)
    result = scs("doctor", data, "--out", tmp_path / "problems.csv")
    predicted = scs("predict", finished, label / "pipe.png", label / "loop.png", "--quiet")
    signal.alarm(0)
    assert result.code == 1, result.err
    assert "pipe.png is not a regular file" in (tmp_path / "problems.csv").read_text()
    assert predicted.code == 1


def table(folder: Path, image: Path, header: str, *rows: str) -> Path:
    for number in range(4):
        shutil.copy(image, folder / f"{number}.png")
    (folder / "table.csv").write_text("\n".join((header, *rows)) + "\n")
    return folder / "table.csv"


DAMAGED_JSON = {
    "a missing key": "{}",
    "a wrong type": '{"seconds": "soon", "accuracy": {}, "date": 5, "format_version": []}',
    "NaN": '{"accuracy": NaN, "seconds": Infinity, "images": -Infinity}',
    "a number": "5",
    "depth": "[" * 10_000 + "]" * 10_000,
    "digits": '{"images": ' + "9" * 6_000 + "}",
}
DAMAGED_TOML = {
    "a missing key": "",
    "a wrong type": "data = 5\n",
    "NaN": "[pretrain]\nlr = nan\n",
    "depth": "data = " + "[" * 10_000 + "]" * 10_000 + "\n",
    "digits": "seed = " + "9" * 6_000 + "\n",
}
RECORDS = [
    *(("evaluation.json", kind) for kind in DAMAGED_JSON),
    *(("finished.json", kind) for kind in DAMAGED_JSON),
    *(("environment.json", kind) for kind in DAMAGED_JSON),
    *(("recipe.toml", kind) for kind in DAMAGED_TOML),
]


@pytest.mark.parametrize(("name", "kind"), RECORDS)
def test_damaged_records_of_a_run_are_errors(scs, finished, shapes, tmp_path, name, kind):
    run = tmp_path / "runs" / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    (run / name).write_text((DAMAGED_TOML if name.endswith("toml") else DAMAGED_JSON)[kind])
    commands = (
        ("runs", run.parent),
        ("runs", run.parent, "--json"),
        ("evaluate", run),
        ("diff", run, finished),
        ("report", run),
        ("train", shapes, "--out", run, *SMALL),
    )
    results = [scs(*command) for command in commands]
    for result in results:
        assert result.code in (0, 1, 2)
        assert result.code == 0 or "error: " in result.err or name in result.out + result.err
        assert "Traceback" not in result.err
    if kind in ("a number", "depth", "digits"):  # other records may have defaults for the rest
        assert any(name in result.err + result.out for result in results)


@pytest.mark.parametrize("kind", DAMAGED_JSON)
def test_a_damaged_record_of_a_checkpoint_with_right_checksums_is_skipped(tmp_path, kind):
    state = Checkpoint({"a": torch.ones(2)}, {"number": 1})
    for _ in range(2):
        write_checkpoint(tmp_path, "pretrain", state)
    file, weights = (tmp_path / f"pretrain-000002.{end}" for end in ("json", "safetensors"))
    file.write_text(DAMAGED_JSON[kind])
    names = ((hashlib.sha256(f.read_bytes()).hexdigest(), f.name) for f in (weights, file))
    sums = "".join(f"{digest}  {name}\n" for digest, name in names)
    (tmp_path / "pretrain-000002.sha256").write_text(sums)
    with pytest.warns(RuntimeWarning, match="pretrain-000002 .* is damaged"):
        assert read_checkpoint(tmp_path, "pretrain").state == {"number": 1}


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("image_path,label,fold", ("{n}.png,{c},1e30",), "expected a whole number"),
        ("image_path,label,fold", ("{n}.png,{c}," + "9" * 40,), "expected a whole number"),
        ("image_path,label", ("x" * 5000 + "{n},{c}",), "does not exist"),
        ("image_path,label", ("a\0{n},{c}",), "error: "),
        ("image_path,label,split", ("{n}.png,{c},test",), "no training images"),
    ],
    ids=["fold 1e30", "fold of 40 digits", "long path", "null", "all test"],
)
def test_odd_tables_are_errors(scs, shapes, tmp_path, header, cells, message):
    image = next(shapes.rglob("*.png"))
    rows = [cells[0].replace("{n}", str(n)).replace("{c}", "ab"[n % 2]) for n in range(4)]
    file = table(tmp_path, image, header, *rows)
    result = scs("train", file, "--out", tmp_path / "run", *SMALL)
    assert result.code == 2, result.err
    assert message in result.err


def test_column_names_that_are_not_utf8_are_an_error(scs, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"image_path": ["a.png"], "label": ["a"], "oddname": ["x"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"oddname", b"odd\xff\xfe\xfd\xfc"))
    result = scs("doctor", tmp_path / "t.parquet", "--quiet")
    assert result.code == 2
    assert result.err.startswith("error: ")


@pytest.mark.parametrize(
    "setting",
    [
        *("pretrain.epochs=1000000000000", "probe.views=1000000", "data.image_size=4096"),
        *("head.common_dim=65536", "data.crop_pct=1e-9", "head.heads=1000000000"),
        *("pretrain.batch_size=99999999999999999999", "encoder.frozen_views=100000"),
    ],
)
def test_absurd_numbers_are_errors_before_training(scs, shapes, tmp_path, setting, monkeypatch):
    monkeypatch.setattr("scs_supcon.training.estimate.memory_bytes", lambda: 2**29)
    big = ("--set", "head.hidden=65536") if "common_dim" in setting else ()
    large = ("--batch-size", "1000") if "image_size" in setting else ()
    options = ("--set", setting, *big, *large, *SMALL)
    result = scs("train", shapes, "--out", tmp_path / "run", "--encoder", "tiny", *options)
    assert result.code == 2, result.err
    assert setting.partition("=")[0].partition(".")[2] in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["bias=3", "pairs=[1]", "t0='x'", "beta=[1]"])
def test_options_of_a_wrong_type_are_errors(scs, shapes, tmp_path, option):
    (tmp_path / "r.toml").write_text(f"[method]\nname = 'scs_supcon'\noptions = {{ {option} }}\n")
    result = scs("train", shapes, "--recipe", tmp_path / "r.toml", "--print-recipe")
    assert result.code == 2
    assert "Traceback" not in result.err
    assert option.partition("=")[0] in result.err


def test_integers_instead_of_weights_are_an_error(model):
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "weights.safetensors")
    tensors["classifier/bias"] = tensors["classifier/bias"].long()
    save_file(tensors, model / "weights.safetensors")
    seal(model)
    with pytest.raises(UserError, match=r"classifier/bias in the weights has the type torch.int64"):
        load(model)


def test_odd_output_folders_are_errors(scs, shapes, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    paths = (tmp_path / "file", tmp_path / "file" / "x", tmp_path / ("x" * 300))
    for out in paths:
        result = scs("train", shapes, "--out", out, *SMALL)
        assert result.code == 2, (out, result.err)
        assert result.err.startswith("error: ")
    folders = ("--runs", tmp_path / "file", "--out", tmp_path / "compared")
    result = scs("compare", shapes, "--methods", "supcon", *folders, "--device", "cpu")
    assert result.code == 2
    assert "a file exists where a folder is needed" in result.err
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = scs("compare", shapes, "--methods", "supcon", "--out", "here", "--device", "cpu")
    assert result.code == 2
    assert "cannot" in result.err


def test_a_name_that_is_not_utf8_can_be_embedded(scs, shapes, finished, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(next(shapes.rglob("*.png")), os.fsencode(folder) + b"/odd\xff.png")
    result = scs("embed", finished, folder, "-o", tmp_path / "vectors.parquet", "--quiet")
    assert result.code in (0, 2), result.err
    assert "Traceback" not in result.err
    assert result.code == 0 or "odd" in result.err


def test_warnings_are_printed_without_the_line_of_code(processes, shapes, train_small, tmp_path):
    run = tmp_path / "run"
    train_small(shapes, run)
    (run / "finished.json").unlink()
    (run / "metrics.csv").write_text("stage,epoch,name,value\n")
    small = ("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu")
    probe = ("--set", "probe.epochs=2", "--set", "probe.views=1", "--no-report", "--quiet")
    result = processes.run("train", shapes, "--out", run, *small, *probe)
    assert result.code == 0, result.err
    assert re.search(r"^warning: .*metrics\.csv", result.err, re.MULTILINE)
    assert ".py" not in result.err


def test_a_thread_that_cannot_write_prints_one_line(processes, shapes, tmp_path):
    small = ("--encoder", "tiny", "--from-scratch", "--set", "probe.epochs=1")
    full_at = ("tensorboard", 1)  # a thread of TensorBoard creates this file
    result = processes.run(
        "train", shapes, "--out", tmp_path / "run", *SMALL, *small, full_at=full_at
    )
    assert result.code == 2
    assert "No space left on device" in result.err or "disk is full" in result.err
    assert "Traceback" not in result.err


def test_the_current_folder_can_be_the_run(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--set", "probe.epochs=1", "--set", "probe.views=1", "--encoder", "tiny")
    result = scs("train", shapes, "--out", ".", *SMALL, *small, "--from-scratch")
    assert result.code == 0, result.err


def test_a_lock_that_is_not_text_is_reported(tmp_path):
    from scs_supcon.io.lock import InUse, Lock

    with Lock(tmp_path / ".lock"):
        (tmp_path / ".lock").write_bytes(b"\xff\xfe\x1b")
        with pytest.raises(InUse, match=r"in use by process \(unknown\)"):
            Lock(tmp_path / ".lock")


def test_large_images_are_converted_in_strips(monkeypatch, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (70, 50, 4), dtype=np.uint8)
    deep = noise[..., :2].copy().view(np.uint16)[..., 0]
    images = {
        "alpha.png": Image.fromarray(noise),
        "deep.png": Image.fromarray(deep),
        "palette.png": Image.fromarray(noise[..., :3]).convert("P"),
        "float.tif": Image.fromarray(deep.astype(np.float32) - 500),
        "integer.tif": Image.fromarray(deep.astype(np.int32)),
    }
    for name, image in images.items():
        image.save(tmp_path / name)
        whole = np.asarray(open_image(tmp_path / name))
        monkeypatch.setattr(image_io, "STRIP_PIXELS", 333)
        assert np.array_equal(np.asarray(open_image(tmp_path / name)), whole), name
        monkeypatch.undo()


def test_the_limit_of_pixels_is_named(tmp_path):
    side = int(MAX_PIXELS**0.5) + 1
    Image.new("1", (side, side)).save(tmp_path / "large.png")
    with pytest.raises(UserError, match=r"more than 64 million: resize it"):
        open_image(tmp_path / "large.png")
