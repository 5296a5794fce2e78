"""Model folders of timm and Hugging Face, written and read without a network."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.model_folder import read_model_folder, weights_and_encoder, write_model_folder
from scs_supcon.nn.weights import load_weights
from scs_supcon.recipe import make_recipe

NAME = "test_resnet"  # timm's smallest convolutional network
DATA = make_recipe({"data": {"source": "x", "image_size": 64, "mean": [0.1, 0.2, 0.3]}}).data


@pytest.fixture
def encoder():
    return build_encoder(NAME, small_stem=False, in_size=64).eval()


@pytest.fixture
def folder(encoder, tmp_path):
    write_model_folder(encoder, DATA, tmp_path / "encoder")
    return tmp_path / "encoder"


def test_timm_reads_what_is_written(encoder, folder):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(images), encoder(images))
    assert tuple(model.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)
    assert tuple(timm.data.resolve_model_data_config(model)["input_size"]) == (3, 64, 64)


def test_transformers_reads_what_is_written_and_the_other_way_round(encoder, folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        pooled = model(images, output_hidden_states=False).pooler_output
        assert torch.equal(pooled.flatten(1), encoder(images))
    model.save_pretrained(tmp_path / "saved")
    weights, name = weights_and_encoder(tmp_path / "saved", None)
    assert name == NAME
    other = build_encoder(name, small_stem=False, in_size=64).eval()
    load_weights(other, weights)
    with torch.no_grad():
        assert torch.equal(other(images), encoder(images))


def test_a_folder_of_timm_gives_encoder_and_weights(encoder, tmp_path):
    classifier = timm.create_model(NAME, num_classes=7)
    timm.models.save_for_hf(classifier, tmp_path, safe_serialization="both")
    weights, name = weights_and_encoder(tmp_path, None)
    assert name == NAME
    load_weights(encoder, weights)
    expected = classifier.state_dict()
    loaded = encoder.body.state_dict()
    assert loaded.keys() < expected.keys(), "without the classifier"
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())
    assert weights_and_encoder(tmp_path, "resnet18")[1] == "resnet18"
    assert weights_and_encoder(None, "resnet18") == (None, "resnet18")


def test_what_timm_cannot_build_is_an_error(tmp_path):
    for name, small in (("tiny", False), ("test_resnet", True)):
        other = build_encoder(name, small_stem=small, in_size=32)
        with pytest.raises(UserError, match="timm cannot build"):
            write_model_folder(other, DATA, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "vit"}, r"model type 'vit'.*own"),
        ({"architecture": "https://x/y"}, "no timm architecture"),
        ({"architecture": NAME}, "has no model.safetensors"),
    ],
)
def test_other_folders_are_explained(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        read_model_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="is not a model folder"):
        read_model_folder(tmp_path)


@pytest.mark.slow
def test_a_run_starts_from_a_folder_and_its_encoder_is_exported(
    folder, shapes, train_small, tmp_path, scs
):
    result = train_small(
        shapes, tmp_path / "run", weights=folder, frozen=True, settings=["data.image_size=32"]
    )
    assert result.recipe.encoder.name == NAME
    exported = scs("export", tmp_path / "run", "--timm", "-o", tmp_path / "out")
    assert exported.code == 0, exported.err
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before), "it was frozen"
    save_file(before, folder / "model.safetensors")  # the same tensors
    assert (
        scs("train", shapes, "--out", tmp_path / "x", "--weights", folder, "--print-recipe").code
        == 0
    )
