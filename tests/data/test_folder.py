from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scs_supcon.data.audit import check_images
from scs_supcon.data.image_io import HAS_HEIF, ImageError, open_image
from scs_supcon.data.load import load_images
from scs_supcon.errors import UserError

ClassFolders = Callable[[dict[str, int]], Path]


def test_a_folder_of_class_folders_is_read(class_folders: ClassFolders) -> None:
    root = class_folders({"wren": 2, "finch": 3})
    images = load_images(root)
    assert images.classes == ("finch", "wren")
    assert images.names == tuple(sorted(images.names))
    assert images.names[0] == "finch/000.png"
    np.testing.assert_array_equal(images.labels, [0, 0, 0, 1, 1])
    assert images.labels.dtype == np.int64
    assert images.splits is images.groups is images.folds is None
    assert images.native_size == 16
    assert images.open(0).size == (24, 16)
    assert images.view_defaults == {}
    assert load_images(str(root)).names == images.names


def test_split_folders_may_have_their_usual_names(class_folders: ClassFolders) -> None:
    root = class_folders(
        {"Train/a": 2, "Train/b": 2, "validation/a": 1, "test/a": 1, "test/b": 1, "notes": 0}
    )
    images = load_images(root)
    assert images.classes == ("a", "b")
    assert dict(zip(images.names, images.splits.tolist(), strict=True)) == {
        "Train/a/000.png": "train",
        "Train/a/001.png": "train",
        "Train/b/000.png": "train",
        "Train/b/001.png": "train",
        "validation/a/000.png": "val",
        "test/a/000.png": "test",
        "test/b/000.png": "test",
    }


def test_a_class_may_be_called_train(class_folders: ClassFolders) -> None:
    images = load_images(class_folders({"bus": 1, "test": 1, "train": 1}))
    assert images.classes == ("bus", "test", "train")
    assert images.splits is None


def test_hidden_files_are_skipped_and_other_files_are_reported(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1, ".cache": 3, "b/deeper": 1, "b/.thumbs": 2})
    (root / ".DS_Store").touch()
    (root / "a" / "._000.png").touch()
    (root / "a" / "notes.txt").touch()
    (root / "readme.md").touch()
    images = load_images(root)
    assert images.names == ("a/000.png", "b/000.png", "b/deeper/000.png")
    skipped = [problem.name for problem in images.notes if problem.kind == "skipped_file"]
    assert skipped == ["a/notes.txt", "readme.md"]
    assert set(check_images(images, workers=1)) >= set(images.notes)


def test_a_circular_link_is_followed_once(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1, "elsewhere/c": 2})
    (root / "a" / "up").symlink_to(root / "a")
    (root / "c").symlink_to(root / "elsewhere" / "c")
    images = load_images(root)
    assert [name for name in images.names if name.startswith("a")] == ["a/000.png"]
    assert [name for name in images.names if name.startswith("c")] == ["c/000.png", "c/001.png"]


def test_the_error_for_a_missing_folder_suggests_a_name(class_folders: ClassFolders) -> None:
    root = class_folders({"birds/a": 1})
    with pytest.raises(UserError, match=r"brids' does not exist.*did you mean 'birds'"):
        load_images(root / "brids")
    with pytest.raises(UserError, match="did you mean 'digits'"):
        load_images("digit")
    with pytest.raises(UserError, match="'no/such/place' does not exist"):
        load_images("no/such/place")


def test_a_file_of_another_type_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "birds.doc").touch()
    with pytest.raises(UserError, match=r"birds\.doc is not an image dataset"):
        load_images(tmp_path / "birds.doc")


def test_heic_files_say_which_package_reads_them(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1})
    (root / "a" / "photo.heic").write_bytes(b"....ftypheic")
    if not HAS_HEIF:
        (note,) = load_images(root).notes
        assert note.detail.endswith("pip install pillow-heif")
    with pytest.raises(ImageError, match=r"photo\.heic (is a HEIC image|cannot be read|is not)"):
        open_image(root / "a" / "photo.heic")


def test_empty_class_folders_are_left_out_and_noted(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 2, "b": 0, "c": 0, "d": 1})
    (root / "c" / "notes.txt").touch()
    images = load_images(root)
    assert images.classes == ("a", "d")
    notes = {note.name: note.detail for note in images.notes if note.kind == "empty_folder"}
    assert set(notes) == {"b", "c"}
    assert notes["c"].endswith("c has no images (files with other extensions: 1)")
    with pytest.raises(UserError, match="no image in any of its class folders"):
        load_images(class_folders({"x/a": 0, "x/b": 0}) / "x")


def test_names_that_differ_by_unicode_normalisation_are_one_class(
    class_folders: ClassFolders, tmp_path: Path
) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    root = class_folders({composed: 2, decomposed: 3, "tea": 1})
    images = load_images(root)
    assert images.classes == (composed, "tea")
    assert images.labels.tolist().count(0) == 5
    table = root / "t.csv"
    rows = [f"tea/000.png,{name}" for name in (composed,)] + [f"{composed}/000.png,{decomposed}"]
    table.write_text("\n".join(["image_path,label", *rows]))
    assert load_images(table).classes == (composed,)


def test_macos_metadata_folders_are_hidden(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1, "__MACOSX/a": 2, ".git": 1})
    assert load_images(root).classes == ("a", "b")
    notes = load_images(root, forgiving=True).notes
    assert [(note.kind, note.name) for note in notes] == [
        ("hidden", ".git"),
        ("hidden", "__MACOSX"),
    ]
    assert notes[1].detail == "__MACOSX is not read (images inside: 2)"


def test_a_class_may_have_no_test_images(class_folders: ClassFolders) -> None:
    images = load_images(class_folders({"train/a": 1, "train/b": 1, "test/a": 1, "test/b": 0}))
    assert len(images) == 3


def test_a_folder_without_class_folders_is_an_error(
    class_folders: ClassFolders, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="contains no class folders"):
        load_images(tmp_path)
    with pytest.raises(UserError, match="contains 2 images but no class folders"):
        load_images(class_folders({".": 2}))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"val/a": 1, "test/a": 1}, "has test, val but no train folder"),
        ({"train/a": 1, "val/a": 1, "valid/a": 1}, "are both val folders"),
        ({"train/a": 1, "extra/a": 1}, "also images in 'extra'"),
    ],
)
def test_ambiguous_split_folders_are_an_error(
    class_folders: ClassFolders, counts: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_images(class_folders(counts))


def test_a_dataset_of_unreadable_images_is_an_error(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1})
    for path in root.rglob("*.png"):
        path.write_text("not an image")
    with pytest.raises(UserError, match="none of the sampled images can be read"):
        load_images(root)


def test_a_file_name_that_is_not_utf_8_is_an_error(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 1, "b": 1})
    try:
        (root / "a" / "000.png").rename(root / "a" / "caf\udce9.png")
    except OSError:
        pytest.skip("this file system does not allow such names")
    with pytest.raises(UserError, match="not valid UTF-8"):
        load_images(root)


def test_a_built_in_name_that_is_also_a_path_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, class_folders: ClassFolders
) -> None:
    assert len(load_images("shapes")) == 240
    root = class_folders({"shapes/a": 1, "shapes/b": 1})
    monkeypatch.chdir(root)
    with pytest.raises(UserError, match=r"write \./shapes"):
        load_images("shapes")
    assert len(load_images("./shapes")) == 2
    assert len(load_images(Path("shapes"))) == 2


def test_a_table_of_images_is_read(class_folders: ClassFolders) -> None:
    root = class_folders({"images": 3})
    (root / "birds.csv").write_text(
        "image_path,label,split,group,fold,camera\n"
        "images/002.png,wren,test,nest 1,1,A\n"
        "images/000.png,wren,train,nest 1,0,B\n"
        "images/001.png,finch,train,,0,B\n"
    )
    images = load_images(root / "birds.csv")
    assert images.names == ("images/000.png", "images/001.png", "images/002.png")
    assert images.classes == ("finch", "wren")
    np.testing.assert_array_equal(images.labels, [1, 0, 1])
    np.testing.assert_array_equal(images.splits, ["train", "train", "test"])
    np.testing.assert_array_equal(images.groups, ["nest 1", "", "nest 1"])
    np.testing.assert_array_equal(images.folds, [0, 0, 1])
    assert [(note.kind, note.name) for note in images.notes] == [("unread_column", "camera")]
    assert images.open(0).tobytes() == load_images(root / "birds.csv").open(0).tobytes()


def test_a_table_that_lists_missing_files_is_an_error(class_folders: ClassFolders) -> None:
    root = class_folders({"images": 1})
    (root / "birds.csv").write_text("image_path,label\nimages/000.png,a\nnone.png,b\nno.png,b\n")
    with pytest.raises(UserError, match=r"no\.png \(and 1 more\), which does not exist"):
        load_images(root / "birds.csv")


def test_forgiving_loading_reports_empty_folders(class_folders: ClassFolders) -> None:
    root = class_folders({"a": 2, "b": 2, "c": 0})
    images = load_images(root, forgiving=True)
    assert [(note.kind, note.name) for note in images.notes] == [("empty_folder", "c")]
    assert images.classes == ("a", "b")
    assert images.paths is not None
    assert [path.relative_to(root).as_posix() for path in images.paths] == list(images.names)


def test_forgiving_loading_accepts_missing_files_until_they_are_opened(
    class_folders: ClassFolders,
) -> None:
    root = class_folders({"a": 2})
    table = root / "t.csv"
    table.write_text("image_path,label\na/000.png,a\na/gone.png,b\n")
    with pytest.raises(UserError, match="does not exist"):
        load_images(table)
    images = load_images(table, forgiving=True)
    with pytest.raises(UserError, match=r"gone\.png does not exist"):
        images.open(1)
