"""Exact search in blocks, and the approximate index."""

import numpy as np
import pytest

from scs_supcon.errors import UserError
from scs_supcon.inference import neighbours
from scs_supcon.inference.neighbours import (
    VectorIndex,
    exact_nearest,
    read_embeddings,
    stored_index,
)
from scs_supcon.inference.types import Embeddings
from scs_supcon.inference.writing import write_embeddings


def unit_vectors(n, d=16, seed=0, kind=np.float32):
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(kind)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("n", "k"), [(1, 3), (7, 7), (8, 3), (50, 10), (64, 1)])
def test_blocks_give_the_result_of_a_plain_sort(monkeypatch, n, k, kind):
    monkeypatch.setattr(neighbours, "BLOCK", 8)
    vectors, queries = unit_vectors(n, kind=kind), unit_vectors(3, seed=1)
    rows, similarities = exact_nearest(vectors, queries, k)
    for query, found, values in zip(queries, rows, similarities, strict=True):
        scores = [float(np.dot(row.astype(float), query.astype(float))) for row in vectors]
        expected = sorted(range(n), key=lambda row: (-scores[row], row))[:k]
        assert found.tolist() == expected
        np.testing.assert_allclose(values, [scores[row] for row in expected], rtol=1e-12)


def test_equal_vectors_are_ordered_by_their_row(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 4)
    vectors = np.repeat(unit_vectors(1), 11, axis=0)
    assert exact_nearest(vectors, vectors[:1], 6).rows.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_memory_mapped_array_is_searched(tmp_path):
    vectors = unit_vectors(100, kind=np.float16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    expected = exact_nearest(vectors, vectors[:2], 5)
    np.testing.assert_array_equal(exact_nearest(mapped, vectors[:2], 5).rows, expected.rows)


def test_the_recall_of_an_index_is_that_of_a_plain_count():
    pytest.importorskip("usearch")
    vectors = unit_vectors(2000, 8)
    index = VectorIndex.build(vectors)
    sample = np.sort(np.random.default_rng(0).choice(2000, 100, replace=False))
    exact = exact_nearest(vectors, vectors[sample], 10).rows.tolist()
    approximate = index.nearest(vectors[sample], 10).rows.tolist()
    hits = [len(set(a) & set(b)) / 10 for a, b in zip(exact, approximate, strict=True)]
    assert index.recall == pytest.approx(sum(hits) / 100)
    assert index.recall > 0.9
    similarities = index.nearest(vectors[:1], 1).similarities
    assert similarities[0, 0] == pytest.approx(1, abs=0.01)


def test_an_index_is_built_once_and_again_after_a_change(tmp_path, monkeypatch):
    pytest.importorskip("usearch")
    file, vectors = tmp_path / "v.parquet", unit_vectors(300)
    names = tuple(f"{k}.png" for k in range(300))
    write_embeddings(Embeddings(names, vectors, vectors[:, :0], ()), file)
    built = []
    build = VectorIndex.build
    monkeypatch.setattr(VectorIndex, "build", lambda v: built.append(len(v)) or build(v))
    first = stored_index(file, "common", vectors)
    again = stored_index(file, "common", vectors)
    assert (built, again.recall) == ([300], first.recall)
    rows = [index.nearest(vectors[:5], 3).rows for index in (first, again)]
    np.testing.assert_array_equal(*rows)
    damaged = tmp_path / "v.parquet.common.usearch"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    stored_index(file, "common", vectors)
    write_embeddings(Embeddings(names[:200], vectors[:200], vectors[:200, :0], ()), file)
    stored_index(file, "common", vectors[:200])
    assert built == [300, 300, 200]


@pytest.mark.parametrize("half", [False, True])
def test_embeddings_are_read_as_they_were_written(tmp_path, half):
    vectors = Embeddings(("a", "b"), unit_vectors(2), unit_vectors(2, 4), ())
    written = vectors.half() if half else vectors
    write_embeddings(written, tmp_path / "v.parquet")
    for field in ("common", "style"):
        stored = read_embeddings(tmp_path / "v.parquet", field)
        assert stored.names == ["a", "b"]
        assert stored.vectors.dtype == (np.float16 if half else np.float32)
        np.testing.assert_array_equal(stored.vectors, getattr(written, field))


def test_a_file_without_vectors_is_an_error(tmp_path):
    write_embeddings(
        Embeddings(("a",), unit_vectors(1), unit_vectors(1, 0 + 1)[:, :0], ()),
        tmp_path / "v.parquet",
    )
    with pytest.raises(UserError, match="no vectors of equal length in its column style"):
        read_embeddings(tmp_path / "v.parquet", "style")
