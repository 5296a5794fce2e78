"""A model's folder: the same bytes for the same model, and damage is told in words."""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scs_supcon.errors import UserError
from scs_supcon.inference import load
from scs_supcon.io import atomic

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def saved(trained: Callable[..., Any], tmp_path: Path) -> Path:
    trained().model().save(tmp_path / "model", counts={"train": 600, "val": 200})
    return tmp_path / "model"


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Put other content in place, with a hash that fits: what a forger would do."""
    (folder / name).write_bytes(content)
    names = ("weights.safetensors", "model.json")
    sums = (f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    (folder / "SHA256SUMS").write_text("".join(sums))


def edit_facts(folder: Path, edit: Edit) -> None:
    facts = json.loads((folder / "model.json").read_text())
    edit(facts)
    rewrite(folder, "model.json", json.dumps(facts).encode())


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder)
    return str(caught.value)


def test_four_files_and_the_same_bytes_every_time(
    trained: Callable[..., Any], saved: Path, tmp_path: Path
) -> None:
    names = {"weights.safetensors", "model.json", "README.md", "SHA256SUMS"}
    assert {file.name for file in saved.iterdir()} == names
    trained().model().save(tmp_path / "again", counts={"train": 600, "val": 200})
    load(saved).save(tmp_path / "copy")
    for name in names:
        content = (saved / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == content
        assert (tmp_path / "copy" / name).read_bytes() == content


def test_a_model_is_replaced_but_nothing_else(saved: Path, tmp_path: Path) -> None:
    load(saved).save(saved)
    assert load(saved).facts.counts == {"train": 600, "val": 200}
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    with pytest.raises(UserError, match="choose another folder"):
        load(saved).save(tmp_path / "project")
    assert (tmp_path / "project" / "README.md").read_text() == "mine"


def test_a_model_outlives_a_save_over_it_that_fails(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    made = load(saved)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(UserError, match="disk is full"):
        made.save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_people_may_write_into_the_card(saved: Path) -> None:
    (saved / "README.md").write_text("Seen by the ornithologist.")
    load(saved)


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json"])
def test_a_flipped_bit_is_noticed(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(bytes(content))
    assert f"{name} is not what was saved" in refused(saved)


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json", "SHA256SUMS"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in refused(saved)


def test_what_is_no_model_is_told_apart(saved: Path, tmp_path: Path) -> None:
    assert "there is no" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refused(tmp_path / "empty")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    assert "is not finished" in refused(tmp_path / "run")
    shutil.copytree(saved, tmp_path / "run" / "model")
    load(tmp_path / "run")


def test_a_newer_format_asks_for_a_newer_version(saved: Path) -> None:
    edit_facts(saved, lambda facts: facts.update(format_version=2))
    assert "pip install --upgrade scs-supcon" in refused(saved)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda f: f.pop("format_version") and f.update(format_version="1"), "format_version"),
        (lambda f: f.update(classes=[]), "classes"),
        (lambda f: f.update(classes=["a"] * 10), "two classes have the same name"),
        (lambda f: f.update(trained=11), "11 trained classes, but 10 names"),
        (lambda f: f.update(temperature=0), "temperature"),
        (lambda f: f.update(temperature=float("nan")), "temperature"),
        (lambda f: f.update(extra="x"), "extra"),
        (lambda f: f.pop("boundary"), "boundary"),
        (lambda f: f["recipe"]["encoder"].update(name="hf-hub:evil/model"), "encoder.name"),
        (lambda f: f["recipe"]["encoder"].update(name="os.system"), "unknown encoder"),
        (lambda f: f["recipe"]["encoder"].update(name="resnet18"), "do not fit the encoder"),
        (lambda f: f["recipe"]["data"].update(image_size=10**9), "image_size"),
        (lambda f: f["recipe"]["head"].update(common_dim=23), "do not fit the head"),
        (lambda f: f["recipe"]["head"].update(common_dim=10**12), "common_dim"),
        (lambda f: f.update(readout="pickle"), "readout"),
        (lambda f: f.update(readout="features"), "classifier/weight"),
        (lambda f: f.update(images=f["images"][:-1]), "gallery/vectors"),
    ],
)
def test_forged_facts_are_refused(saved: Path, edit: Edit, words: str) -> None:
    edit_facts(saved, edit)
    assert words in refused(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_facts_that_are_no_object_are_refused(saved: Path, content: bytes) -> None:
    rewrite(saved, "model.json", content)
    assert "model.json" in refused(saved)


def test_a_forged_list_of_hashes_is_refused(saved: Path) -> None:
    (saved / "SHA256SUMS").write_text("one two three\n")
    assert "cannot be read" in refused(saved)
    (saved / "SHA256SUMS").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused(saved)
