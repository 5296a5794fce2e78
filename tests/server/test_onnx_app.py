"""An exported model is served with the same numbers, by a process that cannot import torch."""

import json
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

import scs_supcon
from scs_supcon.errors import UserError
from scs_supcon.inference.gallery import replacing_gallery
from scs_supcon.inference.gallery_file import GalleryFile, read_gallery, write_gallery
from scs_supcon.server.onnx_predictor import load_onnx

pytest.importorskip("onnxruntime", reason="no onnxruntime: pip install 'scs-supcon[onnx]'")

WITHOUT_TORCH = """
import sys
for name in ("torch", "torchvision", "timm", "sklearn", "scipy", "pyarrow"):
    sys.modules[name] = None  # importing it fails
from scs_supcon.__main__ import main
main()
"""


@pytest.mark.slow
def test_an_exported_model_is_served_without_torch(finished, image_files, tmp_path, unused_port):
    from scs_supcon.inference.onnx import export_onnx

    model, file = scs_supcon.load(finished), tmp_path / "shapes.onnx"
    with replacing_gallery(model, file):
        export_onnx(model, file, image_files[:4])
    arguments = ["serve", "--onnx", str(file), "--port", str(unused_port)]
    server = subprocess.Popen([sys.executable, "-c", WITHOUT_TORCH, *arguments])
    address = f"http://127.0.0.1:{unused_port}/api/"
    content = image_files[5].read_bytes()
    try:
        prediction = send(server, address + "predict", content)["predictions"][0]
        near = send(server, address + "neighbours?k=4", content)["images"][0]["neighbours"]
        explained = send(server, address + "explain?k=2", content)
        heat = send(server, address + "heat_map", content)
        with urllib.request.urlopen(f"{address}images/{near[0]['id']}") as answer:
            assert answer.headers["content-type"] == "image/jpeg"
    finally:
        server.terminate()
        server.wait()
    expected = model.predict([image_files[5]]).records[0]
    assert prediction["label"] == expected.label
    assert prediction["unknown"] == expected.unknown
    assert prediction["top"] == pytest.approx(dict(expected.top), abs=1e-3)
    assert prediction["similarity"] == pytest.approx(expected.similarity, abs=1e-3)
    similar = [neighbour.similarity for neighbour in model.neighbours(image_files[5], k=4)]
    assert [row["similarity"] for row in near] == pytest.approx(similar, abs=1e-3)
    assert heat == {"label": expected.label, "heat_map": None}
    assert explained["boundary"] == pytest.approx(model.info.pairs.boundary)


def send(server, address, content):
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, content)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_gallery_is_read_as_it_was_written(tmp_path):
    rng = np.random.default_rng(0)
    common = rng.normal(size=(3, 5)).astype(np.float32)
    common /= np.linalg.norm(common, axis=1, keepdims=True)
    gallery = GalleryFile(
        ("a", 'b "ü"', "c\n"), np.array([0, 1, 1]), common, common[:, :0], [b"one", b"", b"three"]
    )
    write_gallery(tmp_path / "x.gallery.safetensors", gallery)
    again = read_gallery(tmp_path / "x.gallery.safetensors")
    assert (again.names, list(again.jpegs)) == (gallery.names, list(gallery.jpegs))
    np.testing.assert_array_equal(again.common, common)
    np.testing.assert_array_equal(again.labels, gallery.labels)
    assert again.style.shape == (3, 0)


@pytest.mark.slow
def test_a_model_and_its_gallery_change_in_one_step(finished, image_files, tmp_path):
    pytest.importorskip("onnxscript", reason="no onnxscript: pip install 'scs-supcon[onnx]'")
    from scs_supcon.inference.onnx import export_onnx

    model, file = scs_supcon.load(finished), tmp_path / "shapes.onnx"
    with replacing_gallery(model, file):
        export_onnx(model, file, image_files[:2])
    old = len(model.info.image_names)
    model.add_class("dot", image_files[:3])
    with replacing_gallery(model, file):
        assert len(load_onnx(file)[0].gallery.names) == old
        export_onnx(model, file, image_files[:2])
        assert len(load_onnx(file)[0].gallery.names) == old + 3
    assert len(load_onnx(file)[0].gallery.names) == old + 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("shapes.gallery.safetensors", "shapes.onnx"),
    ]
    with pytest.raises(ZeroDivisionError), replacing_gallery(model, file):
        _ = 1 / 0
    assert len(load_onnx(file)[0].gallery.names) == old + 3
    file.with_name("other.gallery.safetensors").write_bytes(
        file.with_name("shapes.gallery.safetensors").read_bytes()
    )
    export_onnx(scs_supcon.load(finished), file.with_name("other.onnx"), image_files[:2])
    with pytest.raises(UserError, match="does not belong to"):
        load_onnx(file.with_name("other.onnx"))


def test_other_files_are_rejected(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_onnx(tmp_path / "missing.onnx")
    (tmp_path / "x.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match="not a model of `scs export`"):
        load_onnx(tmp_path / "x.onnx")
    with pytest.raises(UserError, match="not a gallery"):
        read_gallery(tmp_path / "x.onnx")
