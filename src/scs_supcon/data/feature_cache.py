"""Features of a frozen encoder: computed once for every image and view, then kept on disk.

A row of features depends on the encoder, on the view's key and on the image's content, and on
nothing else: what is random in a view is drawn from a hash of the view's key (which holds the view
seed and the number of the view) and the content. Runs with other seeds, methods, splits, names or
worker counts therefore share their rows, and images added later cost only themselves.
"""

import copy
import hashlib
import json
import sys
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

from scs_supcon.data.dataloader import explain_killed_workers
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.shards import alone, read_shards, write_shard
from scs_supcon.data.transforms import View, eval_view, probe_view, seeded, train_view
from scs_supcon.errors import UserError
from scs_supcon.recipe import DataRecipe

Progress = Callable[[int, int], None]
ViewKind = Literal["eval", "probe", "train"]

SHARD_ROWS = 128  # seconds of work on a CPU: what a kill can cost
# A CPU encodes few images at a time: large maps go back to the system after every layer, and
# fetching them anew costs a third of the time.
CPU_IMAGES, CPU_PIXELS = 32, 4 * 224 * 224
VIEWS_VERSION = 1  # goes up when the same numbers give other views

_MAKERS: dict[ViewKind, Callable[[DataRecipe], View]] = {
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
    """Return `count` views for `frozen_features`, each with the key that all its rows go by.

    Args:
        kind: "eval" (nothing random, so one is enough), "probe" or "train".
        data: Numbers of the view; those of the source and its splits do not count.
        count: How many; a larger count begins with the views of a smaller one.
        seed: Of the views. It is not the run's seed, so that runs can share features.
    """
    view = _MAKERS[kind](data)
    fields = ("image_size", "mean", "std", "interpolation", *_FIELDS[kind])
    numbers = {field: getattr(data, field) for field in fields}
    common = {"version": VIEWS_VERSION, "kind": kind, "seed": seed, **numbers}
    return [(json.dumps({**common, "number": number}), view) for number in range(count)]


def frozen_features(
    images: ImageDataset,
    indices: Sequence[int] | NDArray[np.int64],
    *,
    encoder: nn.Module,
    encoder_key: str,
    transforms: Sequence[tuple[str, View]],
    cache_dir: str | Path,
    workers: int = 0,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Features of every view of every image, from the cache where they are known.

    Args:
        images: The whole set.
        indices: Images wanted, in the order of the result; contents may repeat.
        encoder: Gives `num_features` numbers for each image; it is used in eval mode and left
            as it is. On an accelerator it computes there, in this process.
        encoder_key: Equal keys promise equal features: name and hash of the weights.
        transforms: (key, view) as `keyed_views` gives them; equal keys promise equal views.
        cache_dir: Shared by any number of runs and processes.
        workers: Processes that decode, make views and, on a CPU, encode; 0 means this process.
            Each keeps to one thread, whose count would otherwise show in the last bits.
        progress: Called with (rows done, rows in all): once at the start with what was found, then
            after every shard. An exception from it ends the work; finished shards stay.

    Returns:
        Array (images, views, num_features).

    Raises:
        UserError: An image cannot be opened, its features are not finite, or the cache cannot be
            written.
    """
    view_digests = [hashlib.sha256(key.encode()).digest() for key, _ in transforms]
    if len(set(view_digests)) < len(view_digests):
        raise ValueError("two views have the same key: their features would be the same")
    contents = [bytes.fromhex(images.file_hash(int(index))) for index in indices]
    index_of = {content: int(index) for content, index in zip(contents, indices, strict=True)}
    row_of = {content: row for row, content in enumerate(index_of)}

    folder = Path(cache_dir) / hashlib.sha256(encoder_key.encode()).hexdigest()
    width = int(encoder.num_features)  # type: ignore[arg-type]  # a number, not a module
    table = np.empty((len(row_of), len(transforms), width), dtype=np.float32)
    columns = {digest: column for column, digest in enumerate(view_digests)}
    found = read_shards(folder, row_of, columns, table)

    tell = progress or (lambda done, total: None)
    if found.all():
        tell(found.size, found.size)
    else:
        with alone(folder):
            found = read_shards(folder, row_of, columns, table)
            tell(int(found.sum()), found.size)
            todo = _Todo(images, tuple(index_of.items()), tuple(transforms), for_inference(encoder))
            for (rows, views), features in _computed(todo, _chunks(found), workers):
                _must_be_finite(features, [images.names[todo.wanted[row][1]] for row in rows])
                digests = [todo.wanted[row][0] for row in rows]
                write_shard(folder, digests, [view_digests[view] for view in views], features)
                table[np.ix_(rows, views)] = features
                found[np.ix_(rows, views)] = True
                tell(int(found.sum()), found.size)
    return table if len(row_of) == len(contents) else table[[row_of[one] for one in contents]]


Chunk = tuple[tuple[int, ...], tuple[int, ...]]  # rows and columns of the table


@dataclass(frozen=True, eq=False)
class _Todo(Dataset[Tensor | UserError]):
    """What computing needs; an item is the features of one chunk, for an accelerator its views.

    Items are tensors, which travel through shared memory: an array would go through a pipe, and a
    worker whose reader was killed would wait there for ever. Errors for people come back as
    values: a loader would bury them in a traceback.
    """

    images: ImageDataset
    wanted: tuple[tuple[bytes, int], ...]
    transforms: tuple[tuple[str, View], ...]
    encoder: nn.Module

    def __getitem__(self, chunk: Chunk) -> Tensor | UserError:
        try:
            views = torch.stack(list(self._views(chunk)))
        except UserError as error:
            return error
        if not _on_cpu(self.encoder):
            return views
        with _one_thread():
            return torch.from_numpy(encode(self.encoder, views))

    def _views(self, chunk: Chunk) -> Iterator[Tensor]:
        rows, columns = chunk
        for row in rows:
            content, index = self.wanted[row]
            # How far a JPEG may be shrunk while decoding is the view's affair, not its company's.
            opened: dict[int, Any] = {}
            for key, view in (self.transforms[column] for column in columns):
                if view.at_least not in opened:
                    opened[view.at_least] = self.images.open(index, view.at_least)
                drawn_from = hashlib.sha256(key.encode() + content).digest()
                with seeded(int.from_bytes(drawn_from, "little")):
                    yield view(opened[view.at_least])


def encode(encoder: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """Features of images, in passes of one size: others could mean other last bits."""
    size = SHARD_ROWS
    if _on_cpu(encoder):
        size = min(CPU_IMAGES, max(1, CPU_PIXELS // images[0, 0].numel()))
    device = _device(encoder)
    passes = []
    for start in range(0, len(images), size):
        some = images[start : start + size]
        batch = some.new_zeros(size, *some.shape[1:])
        batch[: len(some)] = some
        batch = batch.to(device, memory_format=torch.channels_last)
        with torch.inference_mode():
            passes.append(encoder(batch)[: len(some)].float().cpu().numpy())
    return np.concatenate(passes)


def _computed(
    todo: _Todo, chunks: list[Chunk], workers: int
) -> Iterator[tuple[Chunk, NDArray[np.float32]]]:
    """Chunks in their order with their features (rows, columns, width)."""
    processes = min(workers, len(chunks))
    # Forked workers share the encoder's memory and need no pickling.
    fork = "fork" if processes and sys.platform == "linux" else None
    loader = DataLoader(
        todo,
        batch_size=None,
        sampler=chunks,
        num_workers=processes,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # or each loader would draw from the run's random numbers
        multiprocessing_context=fork,
    )
    with explain_killed_workers():
        for chunk, item in zip(chunks, loader, strict=True):
            if isinstance(item, UserError):
                raise item
            rows = item.numpy() if _on_cpu(todo.encoder) else encode(todo.encoder, item)
            yield chunk, rows.reshape(len(chunk[0]), len(chunk[1]), -1)


def _chunks(found: NDArray[np.bool_]) -> list[Chunk]:
    """What is missing, in shards; images that lack the same views go together.

    The images that a killed run did not reach fall into the same chunks again, and so into the
    same batches: the result is the same to the last bit.
    """
    chunks: list[Chunk] = []
    patterns, pattern_of = np.unique(~found, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        columns = tuple(np.flatnonzero(pattern).tolist())
        if columns:
            rows = np.flatnonzero(pattern_of.reshape(-1) == number).tolist()
            step = max(1, SHARD_ROWS // len(columns))
            chunks += [(tuple(rows[at : at + step]), columns) for at in range(0, len(rows), step)]
    return chunks


def for_inference(encoder: nn.Module) -> nn.Module:
    """A copy in the layout that convolutions prefer; the encoder itself stays as it is."""
    return copy.deepcopy(encoder).eval().to(memory_format=torch.channels_last)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _on_cpu(encoder: nn.Module) -> bool:
    return _device(encoder).type == "cpu"


def _device(encoder: nn.Module) -> torch.device:
    return next(encoder.parameters()).device


def _must_be_finite(features: NDArray[np.float32], names: list[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(features).all(axis=(1, 2)))
    if len(bad):
        raise UserError(
            f"the encoder gives features that are not finite for {names[bad[0]]}: "
            "check the encoder's weights"
        )


def _as_it_is(item: Any) -> Any:
    return item
