"""Files with 8-bit integers: smaller, nearly the same results, measured beside floating point."""

import json

import numpy as np
import onnx
import pytest

from scs_supcon.data.builtin import digits
from scs_supcon.errors import UserError
from scs_supcon.inference.onnx import KEY, export_onnx
from scs_supcon.inference.quantise import (
    FileMeasurement,
    LabelledImages,
    Quantisation,
    export_int8,
    images_for_quantisation,
)
from scs_supcon.server.onnx_predictor import load_onnx


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The digits in 8 bits and in floating point, and what was measured."""
    parts = trained()
    model, folder = parts.model(), tmp_path_factory.mktemp("int8")
    labelled = LabelledImages("test", parts.test[40:200], parts.test_labels[40:200].tolist())
    calls = []
    quantisation = export_int8(
        model, folder / "8.onnx", parts.test[:40], labelled, lambda *call: calls.append(call)
    )
    assert calls == [(40, 360), (200, 360), (360, 360)]
    export_onnx(model, folder / "32.onnx", parts.test[:8])
    return folder, quantisation, model, labelled


def test_accuracies_are_those_of_the_files(exported):
    folder, quantisation, _, labelled = exported
    decisions = {}
    for name in ("8", "32"):
        predictor, _ = load_onnx(folder / f"{name}.onnx")
        rows = predictor.decide([predictor.prepare(image) for image in labelled.images])
        decisions[name] = [(int(row.probabilities.argmax()), row.unknown) for row in rows]
    labels = list(labelled.labels)
    for name, file in (("8", quantisation.int8), ("32", quantisation.float32)):
        correct = [label == true for (label, _), true in zip(decisions[name], labels, strict=True)]
        assert file.accuracy == np.mean(correct)
        assert file.seconds > 0
    pairs = list(zip(decisions["8"], decisions["32"], strict=True))
    assert quantisation.same_label == np.mean([a[0] == b[0] for a, b in pairs])
    assert quantisation.same_rejection == np.mean([a[1] == b[1] for a, b in pairs])
    right = [
        [label == true for (label, _), true in zip(decisions[name], labels, strict=True)]
        for name in ("8", "32")
    ]
    changes = [after - before for after, before in zip(*right, strict=True)]
    assert (quantisation.worse, quantisation.better) == (changes.count(-1), changes.count(1))
    assert quantisation.images == 160
    assert quantisation.same_label > 0.95
    assert quantisation.float32.accuracy - quantisation.int8.accuracy < 0.03


def test_the_weights_have_8_bits(exported):
    folder, quantisation, model, _ = exported
    file = onnx.load(folder / "8.onnx")
    kinds = {tensor.data_type for tensor in file.graph.initializer if len(tensor.dims) > 1}
    assert onnx.TensorProto.INT8 in kinds
    stored = sum(
        int(np.prod(tensor.dims))
        for tensor in file.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    )
    encoder = sum(p.numel() for p in model.encoder.parameters() if p.ndim > 1)
    assert stored >= encoder
    assert quantisation.int8.bytes < quantisation.float32.bytes
    metadata = json.loads({prop.key: prop.value for prop in file.metadata_props}[KEY])
    assert metadata["quantisation"]["int8"]["accuracy"] == quantisation.int8.accuracy
    assert metadata["quantisation"]["calibration_images"] == 40
    assert metadata["classes"] == list(model.classes)


def test_no_file_contains_paths_of_this_machine(exported):
    folder = exported[0]
    for name in ("8", "32"):
        assert b"site-packages" not in (folder / f"{name}.onnx").read_bytes()
        assert b"inference/onnx.py" not in (folder / f"{name}.onnx").read_bytes()


def test_the_table_warns_if_accuracy_is_lost():
    float32, worse = FileMeasurement(0.9, 4_000_000, 0.02), FileMeasurement(0.87, 10**6, 0.005)
    text = str(Quantisation(128, 500, "validation", float32, worse, 0.95, 0.99, 20, 5))
    assert text.splitlines()[1].split() == ["float32", "90.0%", "4.0", "MB", "20.0", "ms"]
    assert text.splitlines()[2].split() == ["int8", "87.0%", "1.0", "MB", "5.0", "ms"]
    assert "20 of 500 images wrong and 5 right: 3.0 points of accuracy lost" in text
    assert "8 bits cost accuracy: export without --int8" in text
    for better in (0, 20):  # nothing differs, or as many images are better as worse
        same = Quantisation(128, 500, "test", float32, float32, 1.0, 1.0, better, better)
        assert "cost" not in str(same)


def test_training_images_are_for_the_ranges_and_others_for_the_measurement(trained, tmp_path):
    model, names = trained().model(), digits().names
    with pytest.raises(UserError, match=r"--int8 needs .*splits.csv"):
        images_for_quantisation(tmp_path, model)
    rows = [f"{name},0,{'train' if i < 300 else 'val'}" for i, name in enumerate(names[:330])]
    (tmp_path / "splits.csv").write_text("\n".join(["name,label,split", *rows]))
    calibration, measured = images_for_quantisation(tmp_path, model)
    assert len(calibration) == 128
    assert (measured.split, len(measured.images)) == ("validation", 30)
    assert measured.labels == digits().labels[300:330].tolist()
    (tmp_path / "splits.csv").write_text("name,label,split\n" + rows[0])
    with pytest.raises(UserError, match="no training images, or no others"):
        images_for_quantisation(tmp_path, model)
    gone = model.info.recipe.data.model_copy(update={"source": "gone"})
    recipe = model.info.recipe.model_copy(update={"data": gone})
    model.info = model.info.model_copy(update={"recipe": recipe})
    with pytest.raises(UserError, match=r"--int8 needs the images of the run.*'gone'"):
        images_for_quantisation(tmp_path, model)
