"""The nearest of many vectors: exactly, in blocks, or by an approximate index on disk."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import replacing, write_json
from scs_supcon.io.hashing import file_sha256
from scs_supcon.io.records import RecordError, read_json_object, read_parquet
from scs_supcon.io.typed import validate

Vectors = Tensor | NDArray[np.float32] | NDArray[np.float16]

EXACT_ROWS = 1_000_000  # up to which `scs search` compares with every vector
BLOCK = 16_384  # rows that are converted to float64 at a time
RECALL_AT, RECALL_QUERIES = 10, 100
SEED = 0


class NearestRows(NamedTuple):
    """Rows (queries, k) and their similarities, the most similar first."""

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]


def exact_nearest(vectors: Vectors, queries: Vectors, k: int) -> NearestRows:
    """Return the k vectors with the largest dot product with each query.

    Sums are float64, equal similarities are ordered by the row, and the memory does not grow with
    the number of vectors, which may be a memory-mapped array.

    Args:
        vectors: (n, D), in any precision.
        queries: (q, D).
        k: number of vectors for each query; at most n are returned.
    """
    wanted = _float64(queries)
    similarities = torch.empty(len(wanted), 0, dtype=torch.float64)
    rows = torch.empty(len(wanted), 0, dtype=torch.int64)
    for start in range(0, len(vectors), BLOCK):
        block = _float64(vectors[start : start + BLOCK])
        # Earlier rows come first, so that the stable sort prefers them.
        similarities = torch.cat([similarities, wanted @ block.T], 1)
        numbers = torch.arange(start, start + len(block)).expand(len(wanted), -1)
        rows = torch.cat([rows, numbers], 1)
        similarities, order = similarities.sort(dim=1, descending=True, stable=True)
        similarities = similarities[:, :k].clone()
        rows = rows.gather(1, order[:, :k])
    return NearestRows(rows.numpy(), similarities.numpy())


def _float64(vectors: Vectors) -> Tensor:
    if isinstance(vectors, Tensor):
        return vectors.double()
    return torch.from_numpy(vectors.astype(np.float64))


class VectorIndex:
    """An approximate index of unit vectors (HNSW of usearch, float16).

    Attributes:
        recall: share of the 10 nearest vectors that the index finds, measured on a sample.
    """

    def __init__(self, index: Any, recall: float) -> None:
        self._index = index
        self.recall = recall

    def __len__(self) -> int:
        return len(self._index)

    @classmethod
    def build(cls, vectors: Vectors) -> "VectorIndex":
        """Index vectors (n, D) and measure the recall against the exact search."""
        from usearch.index import Index

        index = Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
        for start in range(0, len(vectors), BLOCK):
            block = np.asarray(vectors[start : start + BLOCK], np.float32)
            # With several threads, the order of insertion and so the index would differ every time.
            index.add(np.arange(start, start + len(block)), block, threads=1)
        built = cls(index, 0.0)
        built.recall = measured_recall(built, vectors)
        return built

    def nearest(self, queries: Vectors, k: int) -> NearestRows:
        """Return about the k nearest vectors of each query."""
        matches = self._index.search(np.asarray(queries, np.float32), min(k, len(self)))
        shape = (len(queries), -1)
        rows = np.asarray(matches.keys).astype(np.int64).reshape(shape)
        return NearestRows(rows, 1 - np.asarray(matches.distances, np.float64).reshape(shape))

    def save(self, file: Path) -> None:
        """Write the index."""
        with replacing(file) as temporary:
            self._index.save(str(temporary))

    @classmethod
    def load(cls, file: Path, recall: float) -> "VectorIndex":
        """Map an index that `save` has written into memory."""
        from usearch.index import Index

        index = Index.restore(str(file), view=True)
        if index is None:
            raise UserError(f"{file} is not an index: delete it")
        return cls(index, recall)


def measured_recall(index: VectorIndex, vectors: Vectors) -> float:
    """Return the share of the 10 exact neighbours that an index finds, for some of the vectors."""
    count = min(RECALL_QUERIES, len(vectors))
    sample = np.sort(np.random.default_rng(SEED).choice(len(vectors), count, replace=False))
    queries = vectors[sample]
    exact = exact_nearest(vectors, queries, RECALL_AT).rows
    approximate = index.nearest(queries, RECALL_AT).rows
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(exact, approximate, strict=True))
    return hits / exact.size


class IndexRecord(BaseModel):
    """What is known about a stored index; `vectors` is size and time of change of their file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    field: str
    vectors: tuple[int, int]
    sha256: str
    recall: float = Field(ge=0, le=1)


def stored_index(file: Path, field: str, vectors: Vectors) -> VectorIndex:
    """Return the index of a file of embeddings, which is built and stored beside it if needed.

    Args:
        file: written by `scs embed`.
        field: "common" or "style".
        vectors: this field of the file.
    """
    state = file.stat()
    path = file.with_name(f"{file.name}.{field}.usearch")
    record = path.with_name(f"{path.name}.json")
    if path.exists() and record.exists():
        try:
            known = validate(IndexRecord, read_json_object(record), record)
        except RecordError:
            known = None
        current = known and known.vectors == (state.st_size, state.st_mtime_ns)
        if known and current and known.sha256 == file_sha256(path):
            return VectorIndex.load(path, known.recall)
    index = VectorIndex.build(vectors)
    index.save(path)
    write_json(
        record,
        IndexRecord(
            field=field,
            vectors=(state.st_size, state.st_mtime_ns),
            sha256=file_sha256(path),
            recall=index.recall,
        ).model_dump(),
    )
    return index


class StoredEmbeddings(NamedTuple):
    """Names of images, and their vectors (n, D) in one field."""

    names: list[str]
    vectors: NDArray[np.float32] | NDArray[np.float16]


def read_embeddings(file: Path, field: str) -> StoredEmbeddings:
    """Return the names and one field of a Parquet file that `scs embed` has written.

    Raises:
        UserError: the file has no such field, or rows of different lengths.
    """
    if file.suffix != ".parquet":
        raise UserError(f"{file}: expected a .parquet file written by scs embed")
    table = read_parquet(file, {"image": str, field: list}, links=True)
    column = table[field].combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    width = len(values) // max(1, len(column))
    if not width:
        raise UserError(f"{file} has no vectors of equal length in its column {field}")
    return StoredEmbeddings(table["image"].to_pylist(), values.reshape(len(column), width))


def describe_index(index: VectorIndex) -> str:
    """Return a sentence on the precision of an index."""
    return (
        f"approximate search in {len(index):,} vectors: it finds {index.recall:.1%} of the "
        f"{RECALL_AT} nearest (measured on {min(RECALL_QUERIES, len(index))} of them); "
        "--exact compares with all"
    )
