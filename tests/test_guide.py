"""All commands and snippets of the guide run in the order of the page.

Training uses fewer epochs than in the guide.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "guide").glob("*.md"))
FILE = re.compile(r'```py title="(.*?)"\n(.*?)```', re.DOTALL)
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)

LEAST = ("--set", "probe.epochs=2", "--set", "probe.views=1")
SHORTER = {
    "train": ("--epochs", "2", "--workers", "0", *LEAST),
    "compare": ("--set", "pretrain.epochs=1", *LEAST),
    "tune": ("--epochs", "1", "--workers", "0", *LEAST),
}


@pytest.fixture
def guide_folder(shapes, tmp_path, monkeypatch):
    """A folder with the images that the guide uses."""
    shutil.copytree(shapes, tmp_path / "birds")
    with Image.open(next(shapes.rglob("*.png"))) as image:
        image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(command):
    """Return the arguments after `scs` with fewer epochs, unless a file gives them."""
    program, verb, *rest = shlex.split(command)
    assert program == "scs"
    complete = "--recipe" in rest or "".join(rest[:1]).endswith(".toml")
    more = () if complete else SHORTER.get(verb, ())
    return [verb, *rest, *more]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page, guide_folder, scs):
    names = {}
    for name, content in FILE.findall(page.read_text()):
        Path(name).write_text(content)
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a guide page has commands or snippets"
    for kind, text in blocks:
        if kind == "python":
            exec(text, names)
            continue
        for line in text.strip().splitlines():
            verb, *rest = shortened(line.removeprefix("$ "))
            result = scs(verb, *rest)
            expected = (0, 1) if verb == "doctor" else (0,)  # 1: there are problems
            assert result.code in expected, f"{line}\n{result.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_point_to_existing_files(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
