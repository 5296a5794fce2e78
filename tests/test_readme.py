"""What the README prints runs as it is printed."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

TEXT = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
LOSS, LOOP, FOLDER = BLOCKS


def test_the_loss_in_one_line():
    torch.manual_seed(0)
    given = {"embeddings": torch.randn(12, 256), "labels": torch.arange(12) % 4}
    exec(LOSS, given)
    assert given["loss"].ndim == 0
    assert given["loss"].isfinite()


def test_the_loop_of_ones_own(capsys):
    torch.manual_seed(0)
    done = {}
    exec(LOOP, done)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("'t'", "'b'", "boundary"))
    t, b = done["loss"].scalars()["t"], done["loss"].scalars()["b"]
    assert (t, b) != (10.0, -10.0), "both were learned"


@pytest.mark.slow
def test_from_a_folder_to_a_model(shapes, tmp_path, monkeypatch):
    shutil.copytree(shapes, tmp_path / "birds")
    Image.open(next(shapes.rglob("*.png"))).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    done = {}
    exec(FOLDER, done)
    assert (tmp_path / "runs" / "birds" / "finished.json").exists()
    assert set(done["model"].classes) == {"bar", "circle", "cross", "square"}


def test_the_commands_and_options_exist(scs):
    verbs = set(re.findall(r"\bscs ([a-z]+)", TEXT))
    assert {"train", "predict"} <= verbs
    helps = {verb: scs(verb, "--help") for verb in verbs}
    assert all(said.code == 0 for said in helps.values()), helps
    known = " ".join(said.out for said in helps.values())
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)):
        assert option in known


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(link):
    assert (Path(__file__).parent.parent / link).exists()
