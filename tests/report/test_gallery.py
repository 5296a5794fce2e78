"""Images, neighbours and hard pairs, against plain loops."""

import itertools

import numpy as np
import pytest

from scs_supcon.report import gallery as galleries
from scs_supcon.report.gallery import Gallery, hang, hardest_pairs, nearest
from scs_supcon.report.inputs import read_inputs


def angles(*degrees):
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def hung(vectors, labels, splits=None):
    count = len(labels)
    return Gallery(
        [f"{at}.jpg" for at in range(count)],
        splits or ["test"] * count,
        np.array(labels),
        np.array(labels),
        np.ones(count, np.float32),
        [False] * count,
        [b""] * count,
        vectors,
        np.zeros((count, 0), np.float32),
    )


def test_what_is_known_of_a_image_comes_together(written):
    inputs = read_inputs(written())
    gallery = hang(inputs)
    classes = inputs.evaluation["classes"]
    assert gallery.names == inputs.thumbnails["name"]
    for at, name in enumerate(gallery.names):
        row = inputs.embeddings["name"].index(name)
        assert classes[gallery.labels[at]] == inputs.embeddings["label"][row]
        assert gallery.common[at].tolist() == inputs.embeddings["common"][row].tolist()
        if gallery.splits[at] == "train":
            assert gallery.predictions[at] == -1
        else:
            row = inputs.predictions["name"].index(name)
            assert classes[gallery.predictions[at]] == inputs.predictions["prediction"][row]
            assert gallery.chances[at] == max(inputs.predictions["probabilities"][row])


def test_thumbnails_stay_within_the_budget(written, monkeypatch):
    inputs = read_inputs(written())
    size = len(inputs.thumbnails["jpeg"][0])
    monkeypatch.setattr(galleries, "BUDGET", 3 * size + size // 2)
    gallery = hang(inputs)
    assert [bool(jpeg) for jpeg in gallery.jpegs][:5] == [True, True, True, False, False]
    assert len(gallery.names) == len(inputs.thumbnails["name"])


def test_neighbours_are_the_most_similar_others():
    vectors = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order, likeness = nearest(vectors, 4)
    for at in range(30):
        others = [other for other in range(30) if other != at]
        wanted = sorted(others, key=lambda other: -float(vectors[at] @ vectors[other]))[:4]
        assert order[at].tolist() == wanted
        assert likeness[at] == pytest.approx([vectors[at] @ vectors[o] for o in wanted], abs=1e-6)


def test_few_images_have_fewer_neighbours():
    order, likeness = nearest(angles(0, 10, 90), 8)
    assert order.tolist() == [[1, 2], [0, 2], [1, 0]]
    assert likeness.shape == (3, 2)


def test_hard_pairs_are_the_extremes_and_each_image_comes_once():
    degrees = (0, 5, 40, 130, 150, 152)
    labels = [0, 1, 0, 0, 1, 0]
    gallery = hung(angles(*degrees), labels)
    alike, apart = hardest_pairs(gallery, 2)
    assert [(p.first, p.second) for p in alike] == [(4, 5), (0, 1)]
    assert alike[0].similarity == pytest.approx(np.cos(np.radians(2)), abs=1e-6)
    assert [(p.first, p.second) for p in apart] == [(0, 5), (1, 4)]
    used = list(itertools.chain.from_iterable((p.first, p.second) for p in apart))
    assert len(used) == len(set(used))


def test_training_images_take_no_part_in_hard_pairs():
    gallery = hung(angles(0, 1, 50), [0, 1, 1], ["test", "train", "test"])
    alike, apart = hardest_pairs(gallery)
    assert [(p.first, p.second) for p in alike] == [(0, 2)]
    assert apart == []


def test_no_images_no_pairs():
    assert hardest_pairs(hung(np.zeros((0, 2), np.float32), [])) == ([], [])
