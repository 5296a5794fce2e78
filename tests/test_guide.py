"""Every command and every snippet of the guide runs, in the order in which it is read.

Commands run as printed, but for training: that gets fewer epochs here.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "guide").glob("*.md"))
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)

LEAST = ("--set", "probe.epochs=2", "--set", "probe.views=1")
SHORTER = {
    "train": ("--epochs", "2", "--workers", "0", *LEAST),
    "compare": ("--set", "pretrain.epochs=1", *LEAST),
    "tune": ("--epochs", "1", "--workers", "0", *LEAST),
}


@pytest.fixture
def place(shapes, tmp_path, monkeypatch):
    """A folder with the images that the guide uses."""
    shutil.copytree(shapes, tmp_path / "birds")
    with Image.open(next(shapes.rglob("*.png"))) as image:
        image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(command):
    """The arguments after `scs`; a recipe of its own decides the epochs itself."""
    program, verb, *rest = shlex.split(command)
    assert program == "scs"
    more = () if "--recipe" in rest else SHORTER.get(verb, ())
    return [verb, *rest, *more]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page, place, scs):
    names = {}
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a guide page has something to run"
    for kind, text in blocks:
        if kind == "python":
            exec(text, names)
            continue
        for line in text.strip().splitlines():
            verb, *rest = shortened(line.removeprefix("$ "))
            said = scs(verb, *rest)
            fine = (0, 1) if verb == "doctor" else (0,)  # 1: something was found
            assert said.code in fine, f"{line}\n{said.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
