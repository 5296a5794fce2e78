"""What a command leaves out, cannot read, or is not sure of must be said."""

import csv
import io
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from scs_supcon.data.image_io import ImageError, open_image
from scs_supcon.inference.neighbours import VectorIndex
from scs_supcon.inference.quantise import FileMeasurement, Quantisation
from scs_supcon.report import build_report

without_heif = pytest.mark.skipif(
    find_spec("pillow_heif") is not None, reason="pillow-heif is installed"
)
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
RAMP = (np.arange(64 * 64, dtype=np.uint16) % 4096).reshape(64, 64)


def twelve_bit_tiff() -> bytes:
    """Return RAMP as a TIFF file with 12 bits per sample."""
    pairs = RAMP.reshape(-1, 2).astype(int)
    packed = bytes(byte for a, b in pairs for byte in (a >> 4, (a & 15) << 4 | b >> 8, b & 255))
    entries = {256: 64, 257: 64, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 64}
    directory = [struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in entries.items()]
    directory.append(struct.pack("<HHII", 279, 4, 1, len(packed)))
    head = b"II*\0" + struct.pack("<I", 8 + len(packed))
    return b"".join([head, packed, struct.pack("<H", len(directory)), *directory, bytes(4)])


def save_16_bits(path: Path, pixels: np.ndarray, **options) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("kind", ["12 bits per sample", "MaxSampleValue"])
def test_a_tiff_file_that_says_that_it_has_12_bits_is_not_black(tmp_path, kind):
    path = tmp_path / "x.tiff"
    if kind == "MaxSampleValue":
        save_16_bits(path, RAMP, tiffinfo={281: 4095})
    else:
        path.write_bytes(twelve_bit_tiff())
    assert np.array_equal(np.asarray(open_image(path))[..., 0], RAMP >> 4)


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_12_bits_in_16_are_mentioned(scs, finished, tmp_path, monkeypatch, name):
    """They are not scaled without being asked: that depends on the camera, not on the image."""
    folder = tmp_path / "camera"
    folder.mkdir()
    save_16_bits(folder / f"other-{name}", RAMP * 16)
    dark = save_16_bits(folder / name, RAMP)
    command = [sys.executable, "-m", "scs_supcon", "predict", finished, folder, "--format", "jsonl"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert result.returncode == 0, result.stderr
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 2
    assert f"{dark} has 16-bit values below 4096" in result.stderr
    assert "multiply them by 16" in result.stderr
    (tmp_path / "data").mkdir()
    for label in ("a", "b"):
        shutil.copytree(folder, tmp_path / "data" / label)
    monkeypatch.chdir(tmp_path)
    diagnosis = scs("doctor", "data")
    assert "nearly black" in diagnosis.out


@pytest.fixture
def mixed(tmp_path, shapes) -> Path:
    """A folder with an image, five HEIC files, and files that are not images."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(shapes / "bar" / "00.png", folder / "a.png")
    for number in range(5):
        (folder / f"IMG_{number}.HEIC").write_bytes(HEIC)
    for name in ("notes.txt", "b.cr2", "Thumbs.db", "c.xmp"):
        (folder / name).write_text("not an image")
    (folder / ".DS_Store").write_text("hidden")
    return folder


@without_heif
@pytest.mark.parametrize("command", ["predict", "embed"])
def test_files_of_a_folder_that_are_not_read_are_mentioned(scs, finished, mixed, tmp_path, command):
    options = {"predict": ("--format", "jsonl"), "embed": ("-o", tmp_path / "v.parquet")}
    result = scs(command, finished, mixed, *options[command], "--quiet")
    assert result.code == 1, "images were not read"
    lines = result.err.splitlines()
    unread = [line for line in lines if line.startswith("not read: ")]
    assert len(unread) == 4
    assert unread[0] == (
        f"not read: {mixed / 'IMG_0.HEIC'} is a HEIC image: to read it, pip install pillow-heif"
    )
    assert unread[3] == "not read: 2 more HEIC images: pip install pillow-heif"
    (skipped,) = (line for line in lines if line.startswith("skipped"))
    assert "4" in skipped and str(mixed / "Thumbs.db") in skipped and "DS_Store" not in result.err
    if command == "predict":
        (row,) = map(json.loads, result.out.splitlines())
        assert row["image"] == str(mixed / "a.png")


@without_heif
@pytest.mark.parametrize("name", ["photo.jpg", "photo.heic"])
def test_a_heic_image_is_recognised_by_its_content(name):
    with pytest.raises(ImageError, match=f"{name} is a HEIC image: to read it, pip install pillow"):
        open_image(name, content=HEIC)


def test_a_text_file_is_not_called_a_heic_image():
    with pytest.raises(ImageError, match=r"photo\.heic is not a JPEG, PNG,"):
        open_image("photo.heic", content=b"some text")


@pytest.fixture(scope="module")
def retrained(finished, shapes, train_small, tmp_path_factory) -> Path:
    """A run on a table in the folder of another run, with three other labels."""
    folder = tmp_path_factory.mktemp("retrained")
    first = shutil.copytree(finished, folder / "first")
    with (first / "splits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = first / "corrected" / "second.csv"
    table.parent.mkdir()
    others = {row["name"] for row in rows if row["split"] == "train"}
    relabelled = sorted(others)[:3]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["image_path", "label", "split"])
    for row in rows[:-1]:
        label = "cross" if row["name"] in relabelled else row["label"]
        path = os.path.relpath(shapes / row["name"], table.parent)
        writer.writerow([path, label, row["split"]])
    table.write_text(text.getvalue())
    train_small(table, folder / "second")
    return folder


def test_the_paths_of_a_search_are_usable_from_here(scs, retrained, shapes, monkeypatch, tmp_path):
    image = shapes / "bar" / "00.png"
    for place in (tmp_path, shapes.parent):
        monkeypatch.chdir(place)
        for run in ("first", "second"):
            result = scs("search", retrained / run, image, "--quiet")
            paths = [Path(line.split()[-1]) for line in result.out.splitlines()[:-1]]
            assert len(paths) == 10
            assert all(path.is_file() for path in paths), paths
            rows = json.loads(scs("search", retrained / run, image, "--json", "--quiet").out)
            assert [row["image"] for row in rows] == list(map(str, paths))
    assert str(paths[0]).startswith(shapes.name)


def test_diff_says_how_many_labels_and_images_differ(scs, retrained):
    with (retrained / "first" / "splits.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
    trained = sorted(row["name"] for row in rows if row["split"] == "train")[:3]
    changed = sum(row["name"] in trained and row["label"] != "cross" for row in rows)
    assert changed
    result = scs("diff", retrained / "first", retrained / "second")
    assert result.code == 0, result.err
    assert f"{changed} with another label" in result.out
    assert "1 only in the first run" in result.out
    assert "only in the second" not in result.out
    same = scs("diff", retrained / "first", retrained / "first")
    assert "images: all are equal" in same.out
    as_json = json.loads(scs("diff", retrained / "first", retrained / "second", "--json").out)
    assert as_json["data"]["with another label"] == changed


def test_the_report_says_how_many_suspected_labels_it_lists(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    evaluation = json.loads((run / "evaluation.json").read_text())
    scores = pq.read_table(run / "label_scores.parquet").to_pydict()
    names, classes = scores["name"], json.loads((run / "classes.json").read_text())
    evaluation["label_errors"] = [
        {
            "image": name,
            "label": classes[0],
            "suggested": classes[1],
            "label_probability": 0.1,
            "suggested_probability": 0.9,
        }
        for name in names[:2]
    ]
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    scores |= {"suspicion": [0.5] * len(names), "suggested": [0] * len(names)}
    types = pq.read_schema(run / "label_scores.parquet")
    pq.write_table(pa.table(scores, schema=types), run / "label_scores.parquet")
    build_report(run)
    page = " ".join((run / "report.html").read_text().split())
    assert f"These are 2 of {len(names)}." in page
    assert f"scs serve {run}" in page


def measured(images: int, worse: int, better: int) -> Quantisation:
    values = {
        "calibration_images": 128,
        "images": images,
        "split": "validation",
        "float32": FileMeasurement(0.9, 4_000_000, 0.02),
        "int8": FileMeasurement(0.9 - (worse - better) / images, 1_000_000, 0.005),
        "same_label": 1 - (worse + better) / images,
        "same_rejection": 1.0,
        "worse": worse,
        "better": better,
    }
    known = {field.name for field in fields(Quantisation)}
    return Quantisation(**{name: value for name, value in values.items() if name in known})


@pytest.mark.parametrize(("worse", "better"), [(1, 0), (4, 1), (5, 0), (7, 1)])
def test_8_bits_are_not_advised_against_for_what_may_be_chance(worse, better):
    text = str(measured(59, worse, better))
    assert f"8 bits make {worse} of 59 images wrong and {better} right" in text
    assert "caution" not in text


def test_8_bits_are_advised_against_if_they_cost_accuracy():
    text = str(measured(512, 20, 4))
    assert "caution   8 bits cost accuracy: export without --int8" in text
    assert "95% interval 1.2 to 4.2" in text


def test_an_index_is_the_same_every_time(tmp_path):
    pytest.importorskip("usearch")
    vectors = np.random.default_rng(0).standard_normal((8000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number in range(3):
        VectorIndex.build(vectors).save(tmp_path / str(number))
    assert len({(tmp_path / str(number)).read_bytes() for number in range(3)}) == 1
