"""`scs export`: what it prints and writes."""

import json
import shutil
import sys

import pytest


@pytest.mark.slow
def test_export_writes_one_file(runs, scs, shapes):
    spaced = shutil.copytree(runs / "x", runs / "my run")
    said = scs("export", spaced, "--onnx")
    assert said.code == 0, said.err
    assert "compared with torch on" in said.out
    assert (spaced / "model.onnx").exists()
    assert f"onnx_predict.py '{spaced / 'model.onnx'}' image.jpg" in said.out
    asked = ["--images", shapes / "bar", "--images", f"{shapes}/circle/*.png", "--quiet"]
    said = scs("export", runs / "x" / "model", "--onnx", "-o", runs / "y.onnx", "--json", *asked)
    assert said.code == 0, said.err
    assert said.err == ""
    summary = json.loads(said.out)
    assert summary["file"] == str(runs / "y.onnx")
    assert summary["images"] == 12
    assert summary["same_label"] == 1
    assert (runs / "y.onnx").read_bytes()


def test_missing_images_are_reported_before_the_export(runs, scs):
    said = scs("export", runs / "x", "--images", runs / "none")
    assert said.code == 2
    assert "none does not exist" in said.err
    assert not (runs / "x" / "model.onnx").exists()


def test_a_missing_library_is_reported_with_its_pip_command(runs, scs, shapes, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = scs("export", runs / "x", "--images", shapes)
    assert said.code == 2
    assert "this needs onnxruntime: pip install 'scs-supcon[onnx]'" in said.err
