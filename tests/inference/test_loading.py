"""Tensors from a folder are checked before they are believed; nothing in a folder can run."""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from scs_supcon.errors import UserError
from scs_supcon.inference import fill_from, load
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection

Edit = Callable[[dict[str, torch.Tensor]], Any]


@pytest.fixture
def saved(trained: Callable[..., Any], tmp_path: Path) -> Path:
    trained().model().save(tmp_path / "model")
    return tmp_path / "model"


def forge(folder: Path, content: bytes) -> None:
    (folder / "weights.safetensors").write_bytes(content)
    names = ("weights.safetensors", "model.json")
    sums = (f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    (folder / "SHA256SUMS").write_text("".join(sums))


def refused(folder: Path, **more: str) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, **more)
    return str(caught.value)


class Mischief:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_disguise_is_not_opened(saved: Path, tmp_path: Path) -> None:
    forge(saved, pickle.dumps(Mischief(tmp_path / "harmed")))
    assert "no safetensors file" in refused(saved)
    torch.save(Mischief(tmp_path / "harmed"), saved / "weights.safetensors")
    forge(saved, (saved / "weights.safetensors").read_bytes())
    assert "no safetensors file" in refused(saved)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("classifier/bias"), "classifier/bias in the weights is missing"),
        (lambda t: t.pop("encoder/body.layers.0.0.weight"), "do not fit the encoder"),
        (lambda t: t.pop("head/centre.mean"), "do not fit the head"),
        (lambda t: t.update(other=torch.zeros(1)), "'other', which the model does not need"),
        (lambda t: t.update({"classes/means": torch.zeros(3, 24)}), "classes/means"),
        (lambda t: t["classifier/weight"].fill_(torch.nan), "holds NaN or infinity"),
        (lambda t: t["head/layers.0.weight"].fill_(torch.inf), "holds NaN or infinity"),
        (lambda t: t["gallery/labels"].fill_(10), "does not name classes"),
        (lambda t: t["gallery/labels"].fill_(-1), "does not name classes"),
        (lambda t: t.update({"gallery/labels": torch.zeros(600)}), "does not name classes"),
    ],
)
def test_forged_weights_are_refused(saved: Path, edit: Edit, words: str) -> None:
    tensors = load_file(saved / "weights.safetensors")
    edit(tensors)
    forge(saved, save(tensors))
    assert words in refused(saved)


def test_a_device_that_is_not_there_is_refused(saved: Path) -> None:
    assert "device 'nonsense' cannot be used" in refused(saved, device="nonsense")


@pytest.mark.parametrize("readout", ["common", "features"])
def test_a_network_can_start_from_a_model(
    trained: Callable[..., Any], tmp_path: Path, readout: str
) -> None:
    parts = trained(readout=readout)
    parts.model().save(tmp_path / "model")
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    head = Projection(encoder.num_features, 32, centre=True)
    fresh = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    fill_from(tmp_path / "model", encoder, head)
    expected = parts.network.head.state_dict() if readout == "common" else fresh
    assert _equal(encoder.state_dict(), parts.network.encoder.state_dict())
    assert _equal(head.state_dict(), expected)
    if readout == "common":
        with pytest.raises(UserError, match="do not fit the head"):
            fill_from(tmp_path / "model", encoder, Projection(encoder.num_features, 16))


def _equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in expected.items())
