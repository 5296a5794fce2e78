"""The directory of a model: same bytes for the same model, and damaged files are rejected."""

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from scs_supcon.errors import UserError
from scs_supcon.inference import ModelInfo, ModelMetrics, load
from scs_supcon.inference.package import (
    initialise_from,
    keep_previous,
    model_card,
    restore_previous,
)
from scs_supcon.io import exchange
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection
from scs_supcon.recipe import from_toml

Trained = Callable[..., Any]
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def saved(trained: Trained, tmp_path: Path) -> Path:
    trained().model().save(tmp_path / "model", counts={"train": 600, "val": 200})
    return tmp_path / "model"


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and its checksum."""
    (folder / name).write_bytes(content)
    names = ("weights.safetensors", "model.json")
    sums = (f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    (folder / "SHA256SUMS").write_text("".join(sums))


def edit_info(folder: Path, edit: Edit) -> None:
    info = json.loads((folder / "model.json").read_text())
    edit(info)
    rewrite(folder, "model.json", json.dumps(info).encode())


def error_of(folder: Path, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, **options)
    return str(caught.value)


def test_a_model_is_four_files_with_reproducible_bytes(
    trained: Trained, saved: Path, tmp_path: Path
) -> None:
    names = {"weights.safetensors", "model.json", "README.md", "SHA256SUMS"}
    assert {file.name for file in saved.iterdir()} == names
    trained().model().save(tmp_path / "again", counts={"train": 600, "val": 200})
    load(saved).save(tmp_path / "copy")
    for name in names:
        content = (saved / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == content
        assert (tmp_path / "copy" / name).read_bytes() == content


def test_only_a_model_is_replaced(saved: Path, tmp_path: Path) -> None:
    load(saved).save(saved)
    assert load(saved).info.counts == {"train": 600, "val": 200}
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    with pytest.raises(UserError, match="choose another directory"):
        load(saved).save(tmp_path / "project")
    assert (tmp_path / "project" / "README.md").read_text() == "mine"


def test_a_failed_save_leaves_the_old_model_intact(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    model = load(saved)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(exchange, "sync", full)
    with pytest.raises(UserError, match="disk is full"):
        model.save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_other_files_in_the_directory_stay(saved: Path) -> None:
    (saved / "NOTES.txt").write_text("mine")
    (saved / "photos").mkdir()
    (saved / "photos" / "one.jpg").write_bytes(b"x")
    load(saved).save(saved)
    assert (saved / "NOTES.txt").read_text() == "mine"
    assert (saved / "photos" / "one.jpg").read_bytes() == b"x"
    assert load(saved).classes


def test_the_previous_model_is_restored_and_back(saved: Path) -> None:
    def content() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in saved.iterdir()}

    with pytest.raises(UserError, match="has no previous model"):
        restore_previous(saved)
    old = content()
    keep_previous(saved)
    load(saved).save(saved, counts={"train": 7})
    new = content()
    assert new != old
    restore_previous(saved)
    assert content() == old
    restore_previous(saved)
    assert content() == new


def test_the_model_card_can_be_edited(saved: Path) -> None:
    (saved / "README.md").write_text("Checked by an ornithologist.")
    assert load(saved).classes


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json"])
def test_a_flipped_bit_is_detected(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(bytes(content))
    assert f"{name} is damaged" in error_of(saved)


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json", "SHA256SUMS"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in error_of(saved)


def test_missing_models_are_explained(saved: Path, tmp_path: Path) -> None:
    assert "does not exist" in error_of(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no model" in error_of(tmp_path / "empty")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    assert "is not finished" in error_of(tmp_path / "run")
    shutil.copytree(saved, tmp_path / "run" / "model")
    assert load(tmp_path / "run").classes == load(saved).classes


@pytest.mark.parametrize("version", [3, 5])
def test_another_format_needs_another_version(saved: Path, version: int) -> None:
    edit_info(saved, lambda info: info.update(format_version=version))
    assert f"has format {version}, this version of scs-supcon reads format 4" in error_of(saved)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(format_version="3"), "format_version"),
        (lambda f: f.update(classes=[]), "classes"),
        (lambda f: f.update(classes=["a"] * 10), "two classes have the same name"),
        (lambda f: f.update(trained_classes=11), "11 trained classes, but 10 names"),
        (lambda f: f.update(temperature=0), "temperature"),
        (lambda f: f.update(temperature=float("nan")), "temperature"),
        (lambda f: f.update(extra="x"), "extra"),
        (lambda f: f.pop("rejection"), "rejection"),
        (lambda f: f["recipe"]["encoder"].update(name="hf-hub:evil/model"), "encoder.name"),
        (lambda f: f["recipe"]["encoder"].update(name="os.system"), "unknown encoder"),
        (lambda f: f["recipe"]["encoder"].update(name="resnet18"), "do not fit the encoder"),
        (lambda f: f["recipe"]["data"].update(image_size=10**9), "image_size"),
        (lambda f: f["recipe"]["head"].update(common_dim=23), "do not fit the head"),
        (lambda f: f["recipe"]["head"].update(common_dim=10**12), "common_dim"),
        (lambda f: f.update(probe_input="pickle"), "probe_input"),
        (lambda f: f.update(probe_input="features"), "classifier/weight"),
        (lambda f: f.update(image_names=f["image_names"][:-1]), "gallery/vectors"),
    ],
)
def test_invalid_information_is_rejected(saved: Path, edit: Edit, message: str) -> None:
    edit_info(saved, edit)
    assert message in error_of(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_invalid_json_is_rejected(saved: Path, content: bytes) -> None:
    rewrite(saved, "model.json", content)
    assert "model.json" in error_of(saved)


def test_invalid_checksum_files_are_rejected(saved: Path) -> None:
    (saved / "SHA256SUMS").write_text("one two three\n")
    assert "cannot be read" in error_of(saved)
    (saved / "SHA256SUMS").write_bytes(b"\xff\xfe")
    assert "cannot be read" in error_of(saved)


class RunsCode:
    """Unpickling this creates a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickled_weights_are_not_opened(saved: Path, tmp_path: Path) -> None:
    rewrite(saved, "weights.safetensors", pickle.dumps(RunsCode(tmp_path / "executed")))
    assert "not a safetensors file" in error_of(saved)
    torch.save(RunsCode(tmp_path / "executed"), saved / "weights.safetensors")
    rewrite(saved, "weights.safetensors", (saved / "weights.safetensors").read_bytes())
    assert "not a safetensors file" in error_of(saved)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("classifier/bias"), "classifier/bias in the weights is missing"),
        (lambda t: t.pop("encoder/body.layers.0.0.weight"), "do not fit the encoder"),
        (lambda t: t.pop("head/centre.mean"), "do not fit the head"),
        (lambda t: t.update(other=torch.zeros(1)), "'other', which is not expected"),
        (lambda t: t.update({"classes/means": torch.zeros(3, 24)}), "classes/means"),
        (lambda t: t["classifier/weight"].fill_(torch.nan), "contains NaN or infinity"),
        (lambda t: t["head/layers.0.weight"].fill_(torch.inf), "contains NaN or infinity"),
        (lambda t: t["gallery/labels"].fill_(10), "not class indices"),
        (lambda t: t["gallery/labels"].fill_(-1), "not class indices"),
        (lambda t: t.update({"gallery/labels": torch.zeros(600)}), "not class indices"),
    ],
)
def test_invalid_weights_are_rejected(saved: Path, edit: Edit, message: str) -> None:
    tensors = load_file(saved / "weights.safetensors")
    edit(tensors)
    rewrite(saved, "weights.safetensors", save(tensors))
    assert message in error_of(saved)


def test_a_missing_device_is_rejected(saved: Path) -> None:
    assert "device 'nonsense' cannot be used" in error_of(saved, device="nonsense")


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_a_network_can_be_initialised_from_a_model(
    trained: Trained, tmp_path: Path, probe_input: str
) -> None:
    parts = trained(probe_input=probe_input)
    parts.model().save(tmp_path / "model")
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    head = Projection(encoder.num_features, 32, centre=True)
    initial = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    initialise_from(tmp_path / "model", encoder, head)
    expected = parts.arguments["projection"].state_dict() if probe_input == "common" else initial
    assert _equal(encoder.state_dict(), parts.arguments["encoder"].state_dict())
    assert _equal(head.state_dict(), expected)
    if probe_input == "common":
        with pytest.raises(UserError, match="do not fit the head"):
            initialise_from(tmp_path / "model", encoder, Projection(encoder.num_features, 16))


def _equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_the_model_card_has_what_a_user_needs(trained: Trained, tmp_path: Path) -> None:
    model = trained().model()
    metrics = ModelMetrics(accuracy=0.9712, nll=0.1234)
    model.save(tmp_path, metrics, {"train": 600})
    card = (tmp_path / "README.md").read_text()
    assert card == model_card(model.info)
    for text in (
        "# Classifier of 10 classes",
        "| accuracy | 97.12% |",
        "| negative log-likelihood | 0.1234 |",
        "Images: 600 train.",
        "Classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
        "none, it started from random weights",
        "scs_supcon.load",
        "which 95% of the validation images reach",
        "Two images are more likely of one class than not if their similarity is above",
    ):
        assert text in card
    assert "macro-F1" not in card
    recipe = card.partition("```toml\n")[2].partition("```")[0]
    assert from_toml(recipe) == model.info.recipe


def test_the_model_card_states_the_rate_that_the_user_gave(trained: Trained) -> None:
    model = trained().model()
    assert "of the validation images are rejected." in model_card(model.info)
    fifth = model_card(model.with_rejection(false_rejection=0.2).info)
    assert "which 80% of the validation images reach" in fifth
    assert "are rejected." not in fifth, "not measured with this threshold"
    assert "0.250, chosen by hand" in model_card(model.with_rejection(threshold=0.25).info)


def test_the_model_card_names_quantile_and_added_classes(trained: Trained) -> None:
    parts = trained(known=9, probe_input="features")
    model = parts.model()
    model.add_class("<script>*nine*", parts.unknown[:3])
    card = model_card(model.info)
    assert "95% of the validation images" in card
    assert r"Classes added by their mean: \<script\>\*nine\*." in card
    assert "Not measured." in card


def test_the_model_card_names_the_split(trained: Trained) -> None:
    info = trained().model().info
    metrics = ModelMetrics(accuracy=0.9)
    with_test, without_test = (
        model_card(info.model_copy(update={"metrics": metrics, "counts": {"val": 9, "test": n}}))
        for n in (5, 0)
    )
    assert "| on the test images | |" in with_test
    assert "no test split" not in with_test
    assert "| on the validation images | |" in without_test
    assert "There is no test split" in without_test


def test_model_information_survives_json(trained: Trained) -> None:
    info = trained().model().info
    assert ModelInfo.model_validate_json(info.model_dump_json()) == info
    assert info.format_version == 4
