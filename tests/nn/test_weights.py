import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import Encoder, build_encoder
from scs_supcon.nn.weights import fetch_weights, load_weights

NAME = "test_resnet"  # timm's own miniature, 96 features


@pytest.fixture(scope="module")
def published() -> torch.nn.Module:
    """A model of timm with a classifier, like published weights."""
    torch.manual_seed(5)
    return timm.create_model(NAME, num_classes=7).eval()


def save(tensors: dict[str, Tensor], path: Path) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def fresh(small_stem: bool = False) -> Encoder:
    torch.manual_seed(6)
    return build_encoder(NAME, small_stem=small_stem, in_size=64).eval()


def test_loaded_weights_give_the_features_of_timm(
    published: torch.nn.Module, tmp_path: Path
) -> None:
    encoder, images = fresh(), torch.rand(3, 3, 64, 64)
    assert load_weights(encoder, save(published.state_dict(), tmp_path / "w.safetensors")) == ()
    with torch.inference_mode():
        theirs = published.forward_head(published.forward_features(images), pre_logits=True)
        assert torch.equal(encoder(images), theirs)


def test_counters_of_batch_normalisation_may_be_absent(
    published: torch.nn.Module, tmp_path: Path
) -> None:
    tensors = {n: t for n, t in published.state_dict().items() if not n.endswith("_tracked")}
    assert len(tensors) < len(published.state_dict())
    load_weights(fresh(), save(tensors, tmp_path / "w.safetensors"))


def test_half_precision_files_load_into_float32(published: torch.nn.Module, tmp_path: Path) -> None:
    encoder = fresh()
    half = {name: tensor.half() for name, tensor in published.state_dict().items()}
    load_weights(encoder, save(half, tmp_path / "w.safetensors"))
    weight = encoder.body.get_parameter("conv1.0.weight")
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight.detach(), half["conv1.0.weight"].float())


@pytest.mark.parametrize(
    ("name", "random_names"),
    [
        ("resnet18", ("conv1.weight",)),
        ("convnext_atto", ("stem.0.weight", "stem.0.bias")),
        ("mobilenetv3_small_050", ()),  # only the stride changed: the weights fit
    ],
)
def test_a_small_stem_keeps_its_random_weights_with_a_warning(
    name: str, random_names: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = timm.create_model(name).state_dict()
    encoder = build_encoder(name, small_stem=True, in_size=32)
    before = {key: encoder.body.get_parameter(key).clone() for key in random_names}
    with caplog.at_level(logging.WARNING):
        assert load_weights(encoder, save(tensors, tmp_path / "w.safetensors")) == random_names
    assert all(key in caplog.text for key in random_names)
    for key, parameter in encoder.body.named_parameters():
        assert torch.equal(parameter, before[key] if key in before else tensors[key]), key


def test_missing_unknown_and_misshapen_tensors_are_listed(
    published: torch.nn.Module, tmp_path: Path
) -> None:
    tensors = dict(published.state_dict())
    del tensors["layer1.0.conv1.weight"]
    tensors["extra.weight"] = torch.zeros(1)
    tensors["layer2.0.conv1.weight"] = torch.zeros(2, 2)
    encoder = fresh()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    with pytest.raises(UserError) as error:
        load_weights(encoder, save(tensors, tmp_path / "w.safetensors"))
    text = str(error.value)
    assert "w.safetensors" in text
    assert "missing: layer1.0.conv1.weight" in text
    assert "unknown: extra.weight" in text
    assert "wrong shape: layer2.0.conv1.weight (2, 2) instead of" in text
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


def test_the_weights_of_another_model_are_rejected_in_one_line(tmp_path: Path) -> None:
    other = save(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"test_resnet.*missing: .* and \d+ more") as error:
        load_weights(fresh(), other)
    assert len(str(error.value)) < 600


class Bomb:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.pkl", "w.safetensors"])
def test_pickles_are_rejected_without_being_opened(name: str, tmp_path: Path) -> None:
    torch.save({"conv1.weight": Bomb(tmp_path / "exploded")}, tmp_path / name)
    with pytest.raises(UserError, match="safetensors"):
        load_weights(fresh(), tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_the_error_names_a_damaged_or_missing_file(
    published: torch.nn.Module, tmp_path: Path
) -> None:
    path = save(published.state_dict(), tmp_path / "w.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cannot read .*w\.safetensors"):
        load_weights(fresh(), path)
    with pytest.raises(UserError, match=r"no weights file .*absent\.safetensors"):
        load_weights(fresh(), tmp_path / "absent.safetensors")


FETCH = """
import sys
from scs_supcon.nn.weights import fetch_weights
from scs_supcon.errors import UserError
try:
    print(fetch_weights(sys.argv[1], offline=sys.argv[2] == "offline"))
except UserError as error:
    print("error:", error)
"""


def fetch(name: str, mode: str, home: Path) -> str:
    """Run in another process: huggingface_hub chooses its cache when it is imported."""
    unreachable = {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*"}
    command = [sys.executable, "-c", FETCH, name, mode]
    result = subprocess.run(
        command,
        env=os.environ | unreachable,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return result.stdout.strip()


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_weights_downloaded_before_need_no_network(
    mode: str, published: torch.nn.Module, tmp_path: Path
) -> None:
    tag = timm.get_pretrained_cfg(NAME).hf_hub_id.replace("/", "--")
    snapshot = tmp_path / "hub" / f"models--{tag}" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    save(published.state_dict(), snapshot / "model.safetensors")
    assert fetch(NAME, mode, tmp_path) == str(snapshot / "model.safetensors")
    load_weights(fresh(), snapshot / "model.safetensors")


def test_offline_without_an_earlier_download_says_what_to_do(tmp_path: Path) -> None:
    output = fetch(NAME, "offline", tmp_path)
    assert output.startswith("error: the pretrained weights of 'test_resnet'")
    assert "/model.safetensors\nand give the file with --weights model.safetensors" in output
    assert "--from-scratch" not in output, "not an equal choice"


def test_without_a_network_one_message_says_what_to_do(tmp_path: Path) -> None:
    output = fetch(NAME, "online", tmp_path)
    assert "could not be downloaded ([Errno 111] Connection refused)" in output  # vocabulary: ok
    assert "http://127.0.0.1:9/timm/test_resnet" in output
    assert output.endswith("/model.safetensors\nand give the file with --weights model.safetensors")


@pytest.mark.parametrize("name", ["tiny", "seresnet200d"])
def test_models_without_published_weights_say_what_to_do(name: str) -> None:
    with pytest.raises(UserError, match=f"no pretrained .* for '{name}': .* --from-scratch"):
        fetch_weights(name, offline=False)
