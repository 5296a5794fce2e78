"""ONNX files: contents, agreement with torch, and use without this package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from scs_supcon.data.builtin import shapes
from scs_supcon.data.transforms import eval_view
from scs_supcon.errors import UserError
from scs_supcon.inference import Model, onnx
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.onnx import (
    KEY,
    OUTPUTS,
    TOLERANCE,
    Graph,
    Parity,
    export_onnx,
    images_of_run,
)
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection
from scs_supcon.nn.timm_models import data_config
from scs_supcon.recipe import make_recipe

SCRIPT = Path(__file__).parents[2] / "examples" / "onnx_predict.py"


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> tuple[Model, Path, Parity]:
    """Export eight trained digits and an added one."""
    parts = trained(known=8)
    model = parts.model()
    model.add_class("eight, or nine", parts.unknown[:6])
    file = tmp_path_factory.mktemp("exported") / "digits.onnx"
    calls: list[tuple[int, int]] = []
    images = [*parts.test[:30], *parts.unknown[6:16]]
    parity = export_onnx(model, file, images, lambda done, total: calls.append((done, total)))
    assert calls[-2:] == [(72, 80), (80, 80)]
    return model, file, parity


def session_of(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def test_the_file_agrees_with_the_model(exported) -> None:
    _, _, parity = exported
    assert parity.images == 40
    assert parity.probability < 1e-4
    assert parity.similarity < 1e-5
    assert parity.embedding < 1e-4
    assert parity.same_label == parity.same_rejection == 1
    assert parity.agrees
    assert str(parity).startswith("compared with torch on 40 images: largest difference")


def test_the_metadata_describes_the_file(exported) -> None:
    model, file, parity = exported
    metadata = json.loads(session_of(file).get_modelmeta().custom_metadata_map[KEY])
    assert metadata["classes"] == [*"01234567", "eight, or nine"]
    assert metadata["trained_classes"] == 8
    assert metadata["preprocessing"] == {
        "exif_rotation": True,
        "background": "white",
        "short_side": 8,
        "interpolation": model.info.recipe.data.interpolation,
        "centre_crop": 8,
        "included": {
            "mean": list(model.info.recipe.data.mean),
            "std": list(model.info.recipe.data.std),
        },
    }
    assert metadata["temperature"] == model.info.temperature
    assert metadata["rejection"]["threshold"] == model.info.rejection.threshold
    assert len(metadata["thresholds"]) == 9
    assert metadata["thresholds"] == pytest.approx(model.classifier.rule.thresholds.tolist())
    assert metadata["parity"]["probability"] == parity.probability
    assert list(metadata["outputs"]) == [out.name for out in session_of(file).get_outputs()]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_batch_size_is_dynamic(exported, trained, count) -> None:
    model, file, _ = exported
    images = trained(known=8).unknown[20 : 20 + count]
    crop = eval_view(model.info.recipe.data).crop
    pixels = np.stack([np.asarray(crop(image)) for image in images])
    probabilities, unknown, nearest, similarity, common, style, similarities = session_of(file).run(
        None, {"pixels": pixels}
    )
    records = model.predict(images).records
    assert [model.classes[best] for best in probabilities.argmax(1)] == [r.label for r in records]
    assert probabilities.max(1) == pytest.approx([r.probability for r in records], abs=1e-4)
    assert unknown.tolist() == [record.unknown for record in records]
    assert [model.classes[index] for index in nearest] == [record.nearest for record in records]
    assert similarity == pytest.approx([record.similarity for record in records], abs=1e-5)
    thresholds = model.classifier.rule.thresholds.numpy()
    assert np.array_equal((similarities < thresholds).all(1), unknown)
    embeddings = model.embed(images)
    np.testing.assert_allclose(common, embeddings.common, atol=1e-4)
    np.testing.assert_allclose(style, embeddings.style, atol=1e-4)


def test_the_example_predicts_without_torch(exported, trained, tmp_path) -> None:
    model, file, _ = exported
    paths = []
    for number, digit in enumerate([*trained(known=8).test[:4], *trained(known=8).unknown[30:34]]):
        image = digit.resize((23 + 5 * number, 31))  # to be resized and cropped
        if number % 3 == 1:
            image.putalpha(200)
        exif = Image.Exif()
        if number % 3 == 2:
            exif[0x0112] = 6
        paths.append(tmp_path / f"{number}.png")
        image.save(paths[-1], exif=exif)
    deep = np.asarray(trained(known=8).test[5].convert("L")).astype(np.uint16) * 257
    paths.append(tmp_path / "16 bits.png")
    Image.fromarray(deep).save(paths[-1])
    blocked = "import sys; sys.modules.update(torch=None, sklearn=None, torchvision=None)"
    code = f"{blocked}; import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    process = subprocess.run(
        [sys.executable, "-c", code, str(file), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    rows = [line.split("\t") for line in process.stdout.splitlines()]
    records = model.predict(paths).records
    assert [row[0] for row in rows] == [record.name for record in records]
    for (_, answer, label, probability), record in zip(rows, records, strict=True):
        assert label == record.label
        assert answer == ("unknown" if record.unknown else record.label)
        assert float(probability) == pytest.approx(record.probability, abs=1e-4)


def test_the_threshold_of_a_file_can_be_chosen(exported, trained, tmp_path) -> None:
    model, file, _ = exported
    images = trained(known=8).test[:20]
    stricter = model.with_rejection(false_rejection=0.4)
    export_onnx(stricter, tmp_path / "strict.onnx", images)
    crop = eval_view(model.info.recipe.data).crop
    pixels = np.stack([np.asarray(crop(image)) for image in images])
    (unknown,) = session_of(tmp_path / "strict.onnx").run(["unknown"], {"pixels": pixels})
    expected = [r.unknown for r in model.predict(images, false_rejection=0.4).records]
    assert unknown.tolist() == expected
    # The same from the file with the default threshold: metadata and output `similarities`.
    metadata = json.loads(session_of(file).get_modelmeta().custom_metadata_map[KEY])
    shift = metadata["rejection"]["margins"][40]
    (similarities,) = session_of(file).run(["similarities"], {"pixels": pixels})
    adjusted = (similarities < np.array(metadata["thresholds"]) + shift).all(1)
    assert adjusted.tolist() == expected


def test_the_example_is_short() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line.strip()]
    assert len(lines) <= 26


class WrongGraph(Graph):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.classifier.rule.bias[3] += 2


def test_a_file_that_disagrees_is_not_written(trained, tmp_path, monkeypatch) -> None:
    parts = trained()
    model = parts.model()
    monkeypatch.setattr(onnx, "Graph", WrongGraph)
    file = tmp_path / "model.onnx"
    with pytest.raises(UserError, match=r"does not agree with the model.*nothing was written"):
        export_onnx(model, file, parts.test[:8])
    assert not file.exists()


def test_nan_does_not_agree() -> None:
    assert Parity(1, TOLERANCE, 0.0, 1.0, 1.0, 1.0).agrees
    assert not Parity(1, float("nan"), 0.0, 0.0, 1.0, 1.0).agrees
    assert not Parity(1, 0.0, float("nan"), 0.0, 1.0, 1.0).agrees
    assert not Parity(1, 0.0, 2 * TOLERANCE, 0.0, 1.0, 1.0).agrees


def test_images_are_required(trained, tmp_path) -> None:
    with pytest.raises(UserError, match="at least one image is needed"):
        export_onnx(trained().model(), tmp_path / "model.onnx", [])


def test_test_images_of_the_run_are_preferred(trained, tmp_path, monkeypatch) -> None:
    model = trained().model()
    assert len(images_of_run(tmp_path, model)) == 225  # every eighth of 1,797
    rows = ["name,label,split", *(f"digits/{n:04d},0,test" for n in (3, 9, 12))]
    (tmp_path / "splits.csv").write_text("\n".join(rows))
    assert len(images_of_run(tmp_path, model)) == 3
    (tmp_path / "splits.csv").write_text("\n".join(rows[:2]).replace("test", "val"))
    assert len(images_of_run(tmp_path, model)) == 1
    gone = model.info.recipe.data.model_copy(update={"source": "gone"})
    recipe = model.info.recipe.model_copy(update={"data": gone})
    model.info = model.info.model_copy(update={"recipe": recipe})
    with pytest.raises(UserError, match=r"'gone'.*give other images with --images"):
        images_of_run(tmp_path, model)


def model_with_encoder(name: str) -> Model:
    """Return a model of four classes whose encoder has random weights."""
    torch.manual_seed(0)
    size = 224 if "vit" in name else 64
    data = {**data_config(name), "image_size": size, "source": "shapes"}
    head = {"common_dim": 24, "style_dim": 8}
    recipe = make_recipe(
        {"data": data, "encoder": {"name": name, "weights": "scratch"}, "head": head}
    )
    encoder = build_encoder(name, small_stem=False, in_size=size).eval()
    weight = 10 * torch.randn(4, 24, dtype=torch.float64)
    features = torch.randn(40, encoder.num_features), torch.arange(40) % 4
    return Model.from_training(
        recipe=recipe,
        classes=tuple("abcd"),
        encoder=encoder,
        projection=Projection(encoder.num_features, 32, centre=True).eval(),
        probe_input="common",
        classifier=LinearClassifier(weight, weight[:, 0], 0.7),
        train=features,
        val=features,
        train_names=[str(number) for number in range(40)],
        learned_pairs=(10.0, 3.0),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet18", "resnet50", "convnext_tiny", "tiny_vit_5m_224", "tf_efficientnet_lite0"],
)
def test_the_encoders_of_the_paper_can_be_exported(name, tmp_path) -> None:
    model = model_with_encoder(name)
    images = shapes(per_class=1)
    parity = export_onnx(model, tmp_path / "model.onnx", [images.open(i) for i in range(3)])
    assert parity.probability < 1e-4
    assert parity.same_label == parity.same_rejection == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]  # one file, weights inside


def test_an_encoder_that_cannot_be_exported_is_named(trained, tmp_path, monkeypatch) -> None:
    def fail(*arguments, **options):
        raise torch.onnx.errors.OnnxExporterError("no such operator")

    monkeypatch.setattr(onnx.torch.onnx, "export", fail)
    with pytest.raises(UserError, match="encoder 'tiny' cannot be exported: no such operator"):
        export_onnx(trained().model(), tmp_path / "model.onnx", trained().test[:1])


def graph_outputs(model: Model, images: list) -> dict[str, torch.Tensor]:
    crop = eval_view(model.info.recipe.data).crop
    pixels = torch.from_numpy(np.stack([np.asarray(crop(image)) for image in images]))
    graph = Graph(model)
    return dict(zip(graph.outputs, graph(pixels), strict=True))


def check(model: Model, images: list) -> dict[str, torch.Tensor]:
    out = graph_outputs(model, images)
    features = model.features(images)
    decision, (common, style) = model.decide(features), model.fields(features)
    expected = decision._asdict() | {"common": common}
    if style.shape[1]:
        expected["style"] = style
    expected["similarities"] = common @ model.classifier.rule.means.T
    assert set(out) == set(expected)
    for name, value in expected.items():
        assert out[name].dtype == (value.dtype if value.dtype != torch.double else torch.float)
        np.testing.assert_allclose(out[name].numpy(), value.numpy(), atol=2e-5, err_msg=name)
    return out


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_the_graph_agrees_with_the_model(trained, probe_input) -> None:
    parts = trained(probe_input=probe_input)
    model = parts.model()
    out = check(model, parts.test[:40])
    without_style = tuple(name for name in OUTPUTS if name != "style")
    assert Graph(model).outputs == (tuple(OUTPUTS) if probe_input == "common" else without_style)
    assert out["probabilities"].shape == (40, 10)
    assert float(out["probabilities"].sum(1).sub(1).abs().max()) < 1e-6


def test_the_graph_of_whole_embeddings_has_no_style(trained) -> None:
    parts = trained()
    weight = torch.randn(10, parts.arguments["recipe"].head.dim, dtype=torch.float64)
    classifier = LinearClassifier(weight, weight[:, 0], 0.5)
    model = parts.model(probe_input="embeddings", classifier=classifier)
    assert "style" not in check(model, parts.test[:8])


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_the_graph_includes_added_classes(trained, probe_input) -> None:
    parts = trained(known=8, probe_input=probe_input)
    model = parts.model()
    model.add_class("eight", parts.unknown[:5])
    model.add_class("single", parts.unknown[5:6])
    out = check(model, [*parts.test[:20], *parts.unknown[6:26]])
    assert out["probabilities"].shape == (40, 10)
    assert 8 in out["nearest"].tolist()


def test_the_graph_is_a_copy(trained) -> None:
    model = trained().model()
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    graph = Graph(model)
    with torch.no_grad():
        for value in graph.state_dict().values():
            value.zero_()
    for name, value in model.encoder.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_cached_tensors_of_the_encoder_are_computed_again(trained) -> None:
    class Caching(nn.Module):
        num_features = 3

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.cached: dict[str, torch.Tensor] = {}

        def train(self, mode: bool = True) -> "Caching":
            if mode:
                self.cached = {}
            return super().train(mode)

        def forward(self, views: torch.Tensor) -> torch.Tensor:
            if "scale" not in self.cached:
                self.cached["scale"] = self.scale * 2
            return views.mean((2, 3)) * self.cached["scale"]

    parts = trained()
    train, val = ((f[:, :3], labels) for f, labels in map(parts.arguments.get, ("train", "val")))
    projection = Projection(3, parts.arguments["recipe"].head.dim).eval()
    model = parts.model(encoder=Caching().eval(), projection=projection, train=train, val=val)
    model.features(parts.test[:2])  # caches a tensor of inference mode
    assert not Graph(model).encoder.cached["scale"].is_inference()
