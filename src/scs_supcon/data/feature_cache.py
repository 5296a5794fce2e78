"""Features of a frozen encoder, computed once for every image and view and cached on disk.

A row of features depends only on the encoder, the view's key and the image's content. The random
numbers of a view are seeded by a hash of the view's key (which includes the view seed and the
number of the view) and the content. Runs with different seeds, methods, splits, file names or
worker counts share rows, and only new images have to be encoded.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from scs_supcon.data.dataloader import explain_killed_workers, start_worker, worker_context
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_table import empty_table
from scs_supcon.data.shards import lock_for_writing, read_shards, write_shard
from scs_supcon.data.transforms import View, eval_view, probe_view, seeded, train_view
from scs_supcon.errors import UserError
from scs_supcon.nn.encode import encode, for_inference, on_cpu
from scs_supcon.nn.fold import fold_norms, has_foldable_norms
from scs_supcon.progress import ProgressCallback
from scs_supcon.recipe import DataRecipe

ViewKind = Literal["eval", "probe", "train"]

SHARD_ROWS = 128  # a killed process loses one shard: seconds of work on a CPU
VIEWS_VERSION = 1  # increased when the same settings produce different views

_VIEW_FUNCTIONS: dict[ViewKind, Callable[[DataRecipe], View]] = {
    "eval": eval_view,
    "probe": probe_view,
    "train": train_view,
}
_FIELDS: dict[ViewKind, tuple[str, ...]] = {
    "eval": ("crop_pct",),
    "probe": ("crop_scale", "flip"),
    "train": ("crop_scale", "flip", "jitter", "grayscale", "rotate"),
}


def keyed_views(
    kind: ViewKind, data: DataRecipe, count: int = 1, seed: int = 0
) -> list[tuple[str, View]]:
    """Return `count` views for `frozen_features`, each with the key of its rows in the cache.

    Args:
        kind: "eval" (not random, so one view is enough), "probe" or "train".
        data: Settings of the view; source and splits are ignored.
        count: Number of views; a larger count starts with the views of a smaller one.
        seed: Seed of the views, which differs from the run's seed so that runs share features.
    """
    view = _VIEW_FUNCTIONS[kind](data)
    fields = ("image_size", "mean", "std", "interpolation", *_FIELDS[kind])
    settings = {field: getattr(data, field) for field in fields}
    if kind == "train":  # keys of earlier versions do not contain these
        settings |= {
            name: getattr(data, name)
            for name in ("augment", "blur", "solarize")
            if getattr(data, name) != DataRecipe.model_fields[name].default
        }
    if kind == "train" and data.transform is not None:
        settings["transform"] = data.transform.rpartition(":")[2], data.transform_code
    common = {"version": VIEWS_VERSION, "kind": kind, "seed": seed, **settings}
    return [
        (json.dumps({**common, "number": number}), view.of_number(number))
        for number in range(count)
    ]


def frozen_features(
    images: ImageDataset,
    indices: Sequence[int] | NDArray[np.int64],
    *,
    encoder: nn.Module,
    encoder_key: str,
    transforms: Sequence[tuple[str, View]],
    cache_dir: str | Path,
    workers: int = 0,
    progress: ProgressCallback | None = None,
) -> NDArray[np.float32]:
    """Return the features of every view of every image, cached if possible.

    Args:
        images: The dataset.
        indices: Indices of the images, in the order of the result; contents may repeat.
        encoder: Returns `num_features` features per image. A copy in eval mode is used. An
            encoder on an accelerator runs in the main process.
        encoder_key: Name and hash of the weights; equal keys mean equal features.
        transforms: (key, view) as returned by `keyed_views`; equal keys mean equal views.
        cache_dir: Folder of the cache, which runs and processes may share.
        workers: Number of processes that decode images, create views and, on a CPU, encode; 0
            uses the main process. Each uses one thread, because the number of threads can change
            the last bits.
        progress: Called with (rows done, rows in total): first with the number of cached rows,
            then after every shard. If it raises an exception, finished shards stay cached.

    Returns:
        Array (images, views, num_features), mapped to a file if it is large; see `empty_table`.

    Raises:
        UserError: An image cannot be opened or has changed, its features are not finite, or the
            cache cannot be written.
    """
    view_digests = [hashlib.sha256(key.encode()).digest() for key, _ in transforms]
    if len(set(view_digests)) < len(view_digests):
        raise ValueError("two views have the same key, so their features would be equal")
    contents = [bytes.fromhex(images.file_hash(int(index))) for index in indices]
    row_of: dict[bytes, int] = {}  # the first image of each content
    first = np.array([row_of.setdefault(content, row) for row, content in enumerate(contents)], int)
    repeated = np.flatnonzero(first != np.arange(len(contents)))

    width = int(encoder.num_features)  # type: ignore[arg-type]  # a number, not a module
    table = empty_table((len(contents), len(transforms), width), Path(cache_dir))
    columns = {digest: column for column, digest in enumerate(view_digests)}
    folder = _folder(cache_dir, encoder_key)
    filled = read_shards(folder, row_of, columns, table)
    filled[repeated] = True
    if has_foldable_norms(encoder) and not filled.all():
        # Earlier versions did not fold them: what they have stored is used if it is complete.
        folder = _folder(cache_dir, f"{encoder_key} | folded")
        filled = read_shards(folder, row_of, columns, table)
        filled[repeated] = True

    report = progress or (lambda done, total: None)
    if filled.all():
        report(filled.size, filled.size)
    else:
        with lock_for_writing(folder):
            filled = read_shards(folder, row_of, columns, table)
            filled[repeated] = True
            report(int(filled.sum()), filled.size)
            rows_to_encode = tuple(zip(contents, map(int, indices), strict=True))
            folded = fold_norms(for_inference(encoder))
            dataset = _ChunkDataset(images, rows_to_encode, tuple(transforms), folded)
            for (rows, views), features in _encode_chunks(dataset, _chunks(filled), workers):
                _check_finite(features, [images.names[rows_to_encode[row][1]] for row in rows])
                digests = [rows_to_encode[row][0] for row in rows]
                write_shard(folder, digests, [view_digests[view] for view in views], features)
                table[np.ix_(rows, views)] = features
                filled[np.ix_(rows, views)] = True
                report(int(filled.sum()), filled.size)
    for row in repeated:  # one by one: the table may be larger than the memory
        table[row] = table[first[row]]
    return table


def _folder(cache_dir: str | Path, encoder_key: str) -> Path:
    return Path(cache_dir) / hashlib.sha256(encoder_key.encode()).hexdigest()


Chunk = tuple[tuple[int, ...], tuple[int, ...]]  # rows and columns of the table


@dataclass(frozen=True, eq=False)
class _ChunkDataset(Dataset[Tensor | UserError]):
    """A dataset whose items are the features of one chunk, or its views for an accelerator.

    Items are tensors, which are passed through shared memory. An array would be passed through a
    pipe, in which a worker whose parent was killed would wait forever. A `UserError` is returned
    as an item, because a loader would wrap it in a traceback if it were raised.
    """

    images: ImageDataset
    rows: tuple[tuple[bytes, int], ...]  # content digest and index of each image
    transforms: tuple[tuple[str, View], ...]
    encoder: nn.Module

    def __getitem__(self, chunk: Chunk) -> Tensor | UserError:
        try:
            views = torch.stack(list(self._views(chunk)))
        except UserError as error:
            return UserError(str(error))  # without the traceback, whose frames keep the loader
        if not on_cpu(self.encoder):
            return views
        with _one_thread():
            return torch.from_numpy(encode(self.encoder, views))

    def _views(self, chunk: Chunk) -> Iterator[Tensor]:
        rows, columns = chunk
        for row in rows:
            content, index = self.rows[row]
            # Views have different minimum sizes; decode the image once per size.
            decoded: dict[int, Any] = {}
            for key, view in (self.transforms[column] for column in columns):
                if view.at_least not in decoded:
                    decoded[view.at_least] = self.images.open(index, view.at_least, content.hex())
                seed = hashlib.sha256(key.encode() + content).digest()
                with seeded(int.from_bytes(seed, "little")):
                    yield view(decoded[view.at_least])


def _encode_chunks(
    dataset: _ChunkDataset, chunks: list[Chunk], workers: int
) -> Iterator[tuple[Chunk, NDArray[np.float32]]]:
    """Yield each chunk with its features (rows, columns, width)."""
    processes = min(workers, len(chunks))
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=chunks,
        num_workers=processes,
        collate_fn=_identity,
        worker_init_fn=start_worker,
        generator=torch.Generator(),  # otherwise the loader would use the run's generator
        multiprocessing_context=worker_context(processes),
    )
    failure = None
    with explain_killed_workers():
        for chunk, item in zip(chunks, loader, strict=True):
            if isinstance(item, UserError):
                failure = item
                break  # ends the workers; the traceback of an error raised here would keep them
            features = item.numpy() if on_cpu(dataset.encoder) else encode(dataset.encoder, item)
            yield chunk, features.reshape(len(chunk[0]), len(chunk[1]), -1)
    if failure:
        raise failure


def _chunks(filled: NDArray[np.bool_]) -> list[Chunk]:
    """Return the missing rows and columns in chunks of one shard each.

    Images that lack the same views share chunks. After a kill, the remaining images are in the same
    chunks as before, and so in the same batches: the result is identical to the last bit.
    """
    chunks: list[Chunk] = []
    patterns, pattern_of = np.unique(~filled, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        columns = tuple(np.flatnonzero(pattern).tolist())
        if columns:
            rows = np.flatnonzero(pattern_of.reshape(-1) == number).tolist()
            step = max(1, SHARD_ROWS // len(columns))
            chunks += [(tuple(rows[i : i + step]), columns) for i in range(0, len(rows), step)]
    return chunks


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_finite(features: NDArray[np.float32], names: list[str]) -> None:
    invalid = np.flatnonzero(~np.isfinite(features).all(axis=(1, 2)))
    if len(invalid):
        raise UserError(
            f"the encoder returns features that are not finite for {names[invalid[0]]}: "
            "check the encoder's weights"
        )


def _identity(item: Any) -> Any:
    return item
