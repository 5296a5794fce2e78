"""`scs export`."""

import json
import shutil
import sys

import pytest


@pytest.mark.slow
def test_export_writes_one_file(runs, scs, shapes):
    run_with_space = shutil.copytree(runs / "x", runs / "my run")
    result = scs("export", run_with_space, "--onnx")
    assert result.code == 0, result.err
    assert "compared with torch on" in result.out
    assert (run_with_space / "model.onnx").exists()
    assert f"onnx_predict.py '{run_with_space / 'model.onnx'}' image.jpg" in result.out
    options = ["--images", shapes / "bar", "--images", f"{shapes}/circle/*.png", "--quiet"]
    result = scs(
        "export", runs / "x" / "model", "--onnx", "-o", runs / "y.onnx", "--json", *options
    )
    assert result.code == 0, result.err
    assert result.err == ""
    summary = json.loads(result.out)
    assert summary["file"] == str(runs / "y.onnx")
    assert summary["images"] == 12
    assert summary["same_label"] == 1
    assert (runs / "y.onnx").read_bytes()


def test_missing_images_are_reported_before_the_export(runs, scs):
    result = scs("export", runs / "x", "--images", runs / "none")
    assert result.code == 2
    assert "none does not exist" in result.err
    assert not (runs / "x" / "model.onnx").exists()


def test_a_missing_library_is_reported_with_its_pip_command(runs, scs, shapes, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = scs("export", runs / "x", "--images", shapes)
    assert result.code == 2
    assert "onnxruntime is not installed: pip install 'scs-supcon[onnx]'" in result.err


@pytest.mark.slow
def test_8_bits_are_measured_beside_floating_point(runs, scs):
    result = scs("export", runs / "x", "--int8")
    assert result.code == 0, result.err
    assert result.out.split()[:3] == ["accuracy", "size", "one"]
    assert "validation images with one thread" in result.out
    assert (runs / "x" / "model.int8.onnx").exists()
    assert (runs / "x" / "model.int8.gallery.safetensors").exists()
    result = scs("export", runs / "x", "--int8", "--images", runs)
    assert result.code == 2
    assert "leave out --images" in result.err
