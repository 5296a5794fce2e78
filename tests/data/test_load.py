from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.data.load import content_digest, load_dataset
from scs_supcon.data.shapes import drawn


def test_what_cannot_be_opened_is_left_out_and_copies_are_joined(shapes, tmp_path):
    copy = tmp_path / "shapes"
    for folder in shapes.iterdir():
        (copy / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (copy / folder.name / file.name).write_bytes(file.read_bytes())
    first = next(folder for folder in copy.iterdir())
    (first / "broken.png").write_bytes(b"no image")
    (first / "again.png").write_bytes(next(shapes.glob(f"{first.name}/*.png")).read_bytes())
    told = []
    images, problems = load_dataset(str(copy), 1, lambda *done: told.append(done))
    assert {problem.kind for problem in problems} == {"unreadable", "duplicate"}
    assert len(images) == 25
    assert sorted(np.unique(images.groups, return_counts=True)[1].tolist()) == [2, 23]
    assert told[-1] == (26, 26)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: {"names": ("other", *p.names[1:])},
        lambda p: {"labels": np.roll(p.labels, 1)},
        lambda p: {"file_hash": lambda index: "0" * 64},
        lambda p: {"splits": np.array(["train"] * len(p))},
        lambda p: {"folds": np.arange(len(p)) % 3},
    ],
)
def test_the_digest_knows_names_labels_contents_and_parts(change):
    images = drawn(per_class=3)
    assert content_digest(images) == content_digest(drawn(per_class=3))
    assert content_digest(replace(images, **change(images))) != content_digest(images)
