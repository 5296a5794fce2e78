"""ONNX files: what they say, that they agree with torch, and that they work without us."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from scs_supcon.data.builtin import shapes
from scs_supcon.data.transforms import eval_view
from scs_supcon.errors import UserError
from scs_supcon.inference import Evidence, Model, Network, build_model, onnx
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.onnx import KEY, TOLERANCE, Parity, export_onnx, own_images
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection
from scs_supcon.nn.timm_models import data_config
from scs_supcon.recipe import make_recipe

SCRIPT = Path(__file__).parents[2] / "examples" / "onnx_predict.py"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> tuple[Model, Path, Parity]:
    """Eight trained digits and one that was added, as a file."""
    got = trained(known=8)
    model = got.model()
    model.add_class("eight, or nine", got.left_out[:6])
    file = tmp_path_factory.mktemp("exported") / "digits.onnx"
    told: list[tuple[int, int]] = []
    images = [*got.test[:30], *got.left_out[6:16]]
    parity = export_onnx(model, file, images, lambda done, total: told.append((done, total)))
    assert told[-2:] == [(72, 80), (80, 80)]
    return model, file, parity


def session_of(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def test_it_agrees_and_says_so(exported) -> None:
    _, _, parity = exported
    assert parity.images == 40
    assert parity.probability < 1e-4
    assert parity.similarity < 1e-5
    assert parity.embedding < 1e-4
    assert parity.same_label == parity.same_refusal == 1
    assert parity.agrees
    assert str(parity).startswith("ONNX agrees with torch on 40 images: largest difference")


def test_the_file_says_all_that_is_needed(exported) -> None:
    model, file, parity = exported
    facts = json.loads(session_of(file).get_modelmeta().custom_metadata_map[KEY])
    assert facts["classes"] == [*"01234567", "eight, or nine"]
    assert facts["trained"] == 8
    assert facts["prepare"] == {
        "upright": True,
        "background": "white",
        "short_side": 8,
        "interpolation": model.facts.recipe.data.interpolation,
        "centre_crop": 8,
        "inside": {
            "mean": list(model.facts.recipe.data.mean),
            "std": list(model.facts.recipe.data.std),
        },
    }
    assert facts["temperature"] == model.facts.temperature
    assert facts["boundary"]["threshold"] == model.facts.boundary.threshold
    assert len(facts["needed"]) == 9
    assert facts["needed"][0] == pytest.approx(facts["boundary"]["threshold"])
    assert facts["parity"]["probability"] == parity.probability
    assert list(facts["outputs"]) == [out.name for out in session_of(file).get_outputs()]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_number_of_images_may_come(exported, trained, count) -> None:
    model, file, _ = exported
    images = trained(known=8).left_out[20 : 20 + count]
    place = eval_view(model.facts.recipe.data).place
    pixels = np.stack([np.asarray(place(image)) for image in images])
    probabilities, refused, nearest, similarity, common, style = session_of(file).run(
        None, {"pixels": pixels}
    )
    records = model.predict(images).records
    assert [model.classes[best] for best in probabilities.argmax(1)] == [r.label for r in records]
    assert probabilities.max(1) == pytest.approx([r.probability for r in records], abs=1e-4)
    assert refused.tolist() == [record.none_of_these for record in records]
    assert [model.classes[index] for index in nearest] == [record.nearest for record in records]
    assert similarity == pytest.approx([record.similarity for record in records], abs=1e-5)
    embeddings = model.embed(images)
    np.testing.assert_allclose(common, embeddings.common, atol=1e-4)
    np.testing.assert_allclose(style, embeddings.style, atol=1e-4)


def test_the_script_predicts_without_us(exported, trained, tmp_path) -> None:
    model, file, _ = exported
    paths = []
    for at, image in enumerate([*trained(known=8).test[:4], *trained(known=8).left_out[30:34]]):
        odd = image.resize((23 + 5 * at, 31))  # to be resized and cropped
        if at % 3 == 1:
            odd.putalpha(200)
        exif = Image.Exif()
        if at % 3 == 2:
            exif[0x0112] = 6
        paths.append(tmp_path / f"{at}.png")
        odd.save(paths[-1], exif=exif)
    blocked = "import sys; sys.modules.update(torch=None, scs_supcon=None, torchvision=None)"
    code = f"{blocked}; import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    records = model.predict(paths).records
    assert [row[0] for row in rows] == [record.name for record in records]
    for (_, answer, label, probability), record in zip(rows, records, strict=True):
        assert label == record.label
        assert answer == ("none of these" if record.none_of_these else record.label)
        assert float(probability) == pytest.approx(record.probability, abs=1e-4)


def test_the_script_is_short() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line.strip()]
    assert len(lines) <= 26


def test_a_file_that_disagrees_is_not_written(trained, tmp_path, monkeypatch) -> None:
    got = trained()
    model = got.model()
    whole = model.graph

    def broken():
        graph = whole()
        graph.bias[3] += 2
        return graph

    monkeypatch.setattr(model, "graph", broken)
    file = tmp_path / "model.onnx"
    with pytest.raises(UserError, match=r"does not answer as the model does.*nothing was written"):
        export_onnx(model, file, got.test[:8])
    assert not file.exists()


def test_a_difference_that_is_no_number_does_not_agree() -> None:
    assert Parity(1, TOLERANCE, 0.0, 1.0, 1.0, 1.0).agrees
    assert not Parity(1, float("nan"), 0.0, 0.0, 1.0, 1.0).agrees
    assert not Parity(1, 0.0, float("nan"), 0.0, 1.0, 1.0).agrees
    assert not Parity(1, 0.0, 2 * TOLERANCE, 0.0, 1.0, 1.0).agrees


def test_no_images_are_refused(trained, tmp_path) -> None:
    with pytest.raises(UserError, match="give some images"):
        export_onnx(trained().model(), tmp_path / "model.onnx", [])


def test_the_runs_own_images(trained, tmp_path, monkeypatch) -> None:
    model = trained().model()
    assert len(own_images(tmp_path, model)) == 225  # every eighth of 1,797
    rows = ["name,label,split", *(f"digits/{n:04d},0,test" for n in (3, 9, 12))]
    (tmp_path / "splits.csv").write_text("\n".join(rows))
    assert len(own_images(tmp_path, model)) == 3
    (tmp_path / "splits.csv").write_text("\n".join(rows[:2]).replace("test", "val"))
    assert len(own_images(tmp_path, model)) == 1
    gone = model.facts.recipe.data.model_copy(update={"source": "gone"})
    recipe = model.facts.recipe.model_copy(update={"data": gone})
    model.facts = model.facts.model_copy(update={"recipe": recipe})
    with pytest.raises(UserError, match=r"'gone'.*give others with --images"):
        own_images(tmp_path, model)


def of_encoder(name: str) -> Model:
    """A model of four classes over an encoder with random weights."""
    torch.manual_seed(0)
    size = 224 if "vit" in name else 64
    how = {**data_config(name), "image_size": size, "source": "drawn"}
    head = {"common_dim": 24, "style_dim": 8}
    recipe = make_recipe(
        {"data": how, "encoder": {"name": name, "weights": "scratch"}, "head": head}
    )
    encoder = build_encoder(name, small_stem=False, in_size=size).eval()
    network = Network(encoder, Projection(encoder.num_features, 32, centre=True).eval(), "common")
    weight = 10 * torch.randn(4, 24, dtype=torch.float64)
    classifier = LinearClassifier(weight, weight[:, 0], 0.7)
    seen = torch.randn(40, encoder.num_features), torch.arange(40) % 4
    evidence = Evidence([str(number) for number in range(40)], seen, seen)
    return build_model(recipe, tuple("abcd"), network, classifier, evidence, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet18", "resnet50", "convnext_tiny", "tiny_vit_5m_224", "tf_efficientnet_lite0"],
)
def test_encoders_of_the_paper(name, tmp_path) -> None:
    model = of_encoder(name)
    images = shapes(per_class=1)
    parity = export_onnx(model, tmp_path / "model.onnx", [images.open(at) for at in range(3)])
    assert parity.probability < 1e-4
    assert parity.same_label == parity.same_refusal == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]  # one file, weights inside


def test_an_encoder_that_cannot_be_exported_is_named(trained, tmp_path, monkeypatch) -> None:
    def refuse(*arguments, **options):
        raise torch.onnx.errors.OnnxExporterError("no such operator")

    monkeypatch.setattr(onnx.torch.onnx, "export", refuse)
    with pytest.raises(UserError, match="encoder 'tiny' cannot be exported: no such operator"):
        export_onnx(trained().model(), tmp_path / "model.onnx", trained().test[:1])
