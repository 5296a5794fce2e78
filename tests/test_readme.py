"""What the README prints runs as it is printed."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
TRAINS = re.compile(r"\btrain\(")


def run(block, **given):
    torch.manual_seed(0)
    exec(block, given)
    return given


@pytest.mark.parametrize("block", [block for block in BLOCKS if not TRAINS.search(block)])
def test_the_loss_runs_as_printed(block, capsys):
    labels = torch.arange(12) % 4
    done = run(block, embeddings=torch.randn(12, 256), labels=labels)
    value = done.get("value", done["loss"])  # a loop's last one, or the only one
    assert value.ndim == 0
    assert value.isfinite()
    if "optimizer" in done:
        before = type(done["loss"])(common_dim=192, preset="siglip").scalars()
        learned = done["loss"].scalars()
        assert learned["t"] != before["t"]
        assert learned["b"] != before["b"]
        assert "boundary" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if TRAINS.search(block)])
def test_training_runs_as_printed(block, shapes, tmp_path, monkeypatch):
    shutil.copytree(shapes, tmp_path / "birds")
    with Image.open(next(shapes.rglob("*.png"))) as image:
        image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    done = run(block)
    assert (tmp_path / "runs" / "birds" / "finished.json").exists()
    assert set(done["model"].classes) == {"bar", "circle", "cross", "square"}


def test_both_kinds_are_there():
    assert {bool(TRAINS.search(block)) for block in BLOCKS} == {True, False}


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
    assert (ROOT / link).exists()
