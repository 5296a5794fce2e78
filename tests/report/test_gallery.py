"""Images, neighbours, hard pairs and maps, against plain loops."""

import itertools

import numpy as np
import pytest

from scs_supcon.report import gallery as module
from scs_supcon.report.gallery import (
    ImageGallery,
    build_gallery,
    hardest_pairs,
    map_points,
    nearest,
)
from scs_supcon.report.inputs import read_records


def angles(*degrees):
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def gallery_of(vectors, labels, splits=None):
    count = len(labels)
    return ImageGallery(
        names=[f"{number}.jpg" for number in range(count)],
        splits=splits or ["test"] * count,
        labels=np.array(labels),
        predictions=np.array(labels),
        confidences=np.ones(count, np.float32),
        rejected=[False] * count,
        jpegs=[b""] * count,
        common=vectors,
        style=np.zeros((count, 0), np.float32),
    )


def test_the_gallery_collects_label_embedding_and_prediction_of_each_image(written):
    records = read_records(written())
    gallery = build_gallery(records)
    classes = records.evaluation.classes
    assert gallery.names == records.thumbnails["name"]
    for index, name in enumerate(gallery.names):
        row = records.embeddings["name"].index(name)
        assert classes[gallery.labels[index]] == records.embeddings["label"][row]
        assert gallery.common[index].tolist() == records.embeddings["common"][row].tolist()
        if gallery.splits[index] == "train":
            assert gallery.predictions[index] == -1
        else:
            row = records.predictions["name"].index(name)
            assert classes[gallery.predictions[index]] == records.predictions["prediction"][row]
            assert gallery.confidences[index] == max(records.predictions["probabilities"][row])


def test_thumbnails_stay_within_the_budget(written, monkeypatch):
    records = read_records(written())
    size = len(records.thumbnails["jpeg"][0])
    monkeypatch.setattr(module, "JPEG_BUDGET", 3 * size + size // 2)
    gallery = build_gallery(records)
    assert [bool(jpeg) for jpeg in gallery.jpegs][:5] == [True, True, True, False, False]
    assert len(gallery.names) == len(records.thumbnails["name"])


def test_neighbours_are_the_most_similar_others():
    vectors = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order, similarity = nearest(vectors, 4)
    for at in range(30):
        others = [other for other in range(30) if other != at]
        expected = sorted(others, key=lambda other: -float(vectors[at] @ vectors[other]))[:4]
        assert order[at].tolist() == expected
        assert similarity[at] == pytest.approx(
            [vectors[at] @ vectors[o] for o in expected], abs=1e-6
        )


def test_few_images_have_fewer_neighbours():
    order, similarity = nearest(angles(0, 10, 90), 8)
    assert order.tolist() == [[1, 2], [0, 2], [1, 0]]
    assert similarity.shape == (3, 2)


def test_hard_pairs_are_the_extremes_and_do_not_repeat_an_image():
    degrees = (0, 5, 40, 130, 150, 152)
    labels = [0, 1, 0, 0, 1, 0]
    gallery = gallery_of(angles(*degrees), labels)
    different, same = hardest_pairs(gallery, 2)
    assert [(p.first, p.second) for p in different] == [(4, 5), (0, 1)]
    assert different[0].similarity == pytest.approx(np.cos(np.radians(2)), abs=1e-6)
    assert [(p.first, p.second) for p in same] == [(0, 5), (1, 4)]
    used = list(itertools.chain.from_iterable((p.first, p.second) for p in same))
    assert len(used) == len(set(used))


def test_training_images_are_left_out_of_hard_pairs():
    gallery = gallery_of(angles(0, 1, 50), [0, 1, 1], ["test", "train", "test"])
    different, same = hardest_pairs(gallery)
    assert [(p.first, p.second) for p in different] == [(0, 2)]
    assert same == []


def test_without_images_there_are_no_hard_pairs():
    assert hardest_pairs(gallery_of(np.zeros((0, 2), np.float32), [])) == ([], [])


def clusters(count, dim=8):
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 3
    rows = rng.normal(size=(3, dim))[labels] + 0.1 * rng.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("count", [9, 60])
def test_images_of_a_class_are_close_on_the_map(count):
    vectors, labels = clusters(count)
    points = map_points(vectors)
    assert points.shape == (count, 2)
    assert points.min() >= -1e-6
    assert points.max() <= 1 + 1e-6
    for index in range(count):
        gaps = np.linalg.norm(points - points[index], axis=1)
        gaps[index] = np.inf
        assert labels[gaps.argmin()] == labels[index]


def test_the_same_vectors_give_the_same_map():
    vectors, _ = clusters(40)
    assert np.array_equal(map_points(vectors), map_points(vectors))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_map_of_very_few_images_is_finite(count):
    points = map_points(np.eye(2, dtype=np.float32)[:count])
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()


def test_equal_vectors_are_in_the_middle_of_the_map():
    assert map_points(np.ones((5, 4), np.float32)) == pytest.approx(np.full((5, 2), 0.5))
