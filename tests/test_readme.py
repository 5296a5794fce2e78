"""The code, the commands and the links of the README work."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from scs_supcon.methods import available

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
TRAINS = re.compile(r"\btrain\(")


def run(block, **names):
    torch.manual_seed(0)
    exec(block, names)
    return names


@pytest.mark.parametrize("block", [block for block in BLOCKS if not TRAINS.search(block)])
def test_code_with_the_loss_runs(block, capsys):
    labels = torch.arange(12) % 4
    names = run(block, embeddings=torch.randn(12, 256), labels=labels)
    value = names.get("value", names["loss"])  # the last value of a loop, or the only one
    assert value.ndim == 0
    assert value.isfinite()
    if "optimizer" in names:
        before = type(names["loss"])(common_dim=192, preset="learned").scalars()
        learned = names["loss"].scalars()
        assert learned["t"] != before["t"]
        assert learned["b"] != before["b"]
        assert "boundary" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if TRAINS.search(block)])
def test_code_with_training_runs(block, shapes, tmp_path, monkeypatch):
    shutil.copytree(shapes, tmp_path / "birds")
    with Image.open(next(shapes.rglob("*.png"))) as image:
        image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names = run(block)
    assert (tmp_path / "runs" / "birds" / "finished.json").exists()
    assert set(names["model"].classes) == {"bar", "circle", "cross", "square"}


def test_the_readme_shows_the_loss_and_training():
    assert {bool(TRAINS.search(block)) for block in BLOCKS} == {True, False}


def test_the_commands_and_options_exist(scs):
    verbs = set(re.findall(r"\bscs ([a-z]+(?:-[a-z]+)*)", TEXT))
    assert {"train", "predict"} <= verbs
    helps = {verb: scs(verb, "--help") for verb in verbs}
    assert all(result.code == 0 for result in helps.values()), helps
    help_text = " ".join(result.out for result in helps.values())
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)):
        assert option in help_text


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", TEXT))))
def test_links_point_to_existing_files(link):
    assert (ROOT / link).exists()


def test_the_number_of_methods_is_true():
    text = f"{len(available())} methods"
    for page in ("README.md", "docs/index.md"):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page
