"""Images as people name them, in real folders."""

from pathlib import Path

import pytest

from scs_supcon.data.find_images import find_images
from scs_supcon.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "a.png",
        "b.JPG",
        "notes.txt",
        "deep/c.webp",
        "deep/er/f.txt",
        ".hidden/d.png",
        ".e.png",
    ):
        path = tmp_path / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*given):
    return [str(path) for path in find_images(given)]


def test_a_folder_gives_its_images_and_those_below_it(folder):
    assert names("x") == ["x/a.png", "x/b.JPG", "x/deep/c.webp"]


def test_files_come_in_the_order_given_whatever_their_ending(folder):
    assert names("x/notes.txt", "x/a.png") == ["x/notes.txt", "x/a.png"]


def test_a_pattern_gives_what_the_shell_would(folder):
    assert names("x/*.png") == ["x/a.png"]
    assert names("x/[ab].*") == ["x/a.png", "x/b.JPG"]
    assert names("x/**/*.webp") == ["x/deep/c.webp"]
    assert names("x/**/*.txt") == ["x/deep/er/f.txt", "x/notes.txt"]
    assert names("x/d*") == ["x/deep/c.webp"], "a folder that matches stands for its images"
    assert names(str(folder / "x" / "*.png")) == [str(folder / "x" / "a.png")]


def test_each_image_once_however_often_it_is_named(folder):
    assert names("x/b.JPG", "x", "x/*.png", "x") == ["x/b.JPG", "x/a.png", "x/deep/c.webp"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder):
    Path("x/[1].png").touch()
    assert names("x/[1].png") == ["x/[1].png"]


def test_a_hidden_folder_is_read_when_it_is_asked_for(folder):
    assert names("x/.hidden") == ["x/.hidden/d.png"]


def test_a_file_that_is_not_there_is_left_for_its_reader_to_name(folder):
    assert names("x/a.png", "gone.png") == ["x/a.png", "gone.png"]


@pytest.mark.parametrize("nothing", ["x/*.gif", "empty", "x/a.png/*"])
def test_naming_nothing_is_an_error(folder, nothing):
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"no images at .*files, folders or patterns"):
        find_images(["x/a.png", nothing])
