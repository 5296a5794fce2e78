"""A run of the recommended recipe with a trained encoder can do all that other runs can."""

import csv
import math

import numpy as np
import pytest

from scs_supcon.inference import load
from scs_supcon.inference.onnx import export_onnx


@pytest.fixture(scope="module")
def images(shapes):
    return sorted(shapes.rglob("*.png"))


def test_the_loss_has_pairs_and_cross_entropy_and_a_boundary(finished):
    with (finished / "metrics.csv").open(newline="") as file:
        names = {row["metric"] for row in csv.DictReader(file) if row["stage"] == "pretrain"}
    assert {"contrast", "classify", "t", "b", "boundary", "positive_cosine"} <= names
    assert "style" not in names, "style is fitted after stage 1"


def test_a_loaded_model_compares_images_and_has_both_fields(finished, images):
    model = load(finished)
    assert model.info.recipe.pretrain.cross_entropy > 0
    assert math.isfinite(model.info.pairs.boundary)
    same = model.same(images[0], images[0])
    assert same > model.same(images[0], images[-1]) > 0
    nearest = model.neighbours(images[0], 3)
    assert [image.similarity for image in nearest] == sorted(
        (image.similarity for image in nearest), reverse=True
    )
    embedded = model.embed(images[:4])
    head = model.info.recipe.head
    assert embedded.style.shape == (4, head.style_dim)
    assert np.allclose(np.linalg.norm(embedded.style, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(embedded.common, axis=1), 1, atol=1e-5)


def test_a_class_can_be_added_and_the_model_exported(finished, images, tmp_path):
    model = load(finished)
    assert model.add_class("another", images[:3]) == ()
    assert model.classes[-1] == "another"
    parity = export_onnx(model, tmp_path / "model.onnx", images[:8])
    assert parity.embedding < 1e-4
    assert (tmp_path / "model.onnx").exists()


def test_the_report_shows_both_fields_and_both_losses(finished):
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "Common field" in page
    assert "Style field" in page
    assert "classify" in page, "the curve of the cross-entropy of stage 1"
