"""Images to features, in the very way in which training evaluates them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from scs_supcon.data.feature_cache import CPU_IMAGES, CPU_PIXELS, SHARD_ROWS, encode, for_inference
from scs_supcon.data.image_io import ImageError, converted, open_image
from scs_supcon.data.transforms import eval_view
from scs_supcon.errors import UserError
from scs_supcon.inference.types import Failure
from scs_supcon.recipe import DataRecipe

Item = str | Path | Image.Image
Progress = Callable[[int, int], None]


class Read(NamedTuple):
    """Names and features (n, F) of the readable images in their order, and the other ones."""

    names: tuple[str, ...]
    features: Tensor
    failures: tuple[Failure, ...]


def no_progress(_done: int, _total: int) -> None:
    """Tell nobody."""


class Reader:
    """Opens images, makes their evaluation views and encodes them, several at a time.

    On a CPU every pass of the encoder has one size and one thread, for the sake of the last bits;
    passes run side by side instead, as many as torch has threads.
    """

    def __init__(self, encoder: nn.Module, data: DataRecipe) -> None:
        self.encoder = for_inference(encoder)
        self._view = eval_view(data)
        self._on_cpu = next(encoder.parameters()).device.type == "cpu"
        per_pass = min(CPU_IMAGES, max(1, CPU_PIXELS // data.image_size**2))
        self._per_pass = per_pass if self._on_cpu else SHARD_ROWS
        self._width = int(encoder.num_features)  # type: ignore[arg-type]  # a number, no module

    def read(self, images: Sequence[Item], progress: Progress = no_progress) -> Read:
        """Read images; `progress` is called with (images done, images in all)."""
        if isinstance(images, str | Path):
            raise UserError(f"give a list of images, such as [{str(images)!r}]")
        numbered = list(enumerate(images, start=1))
        chunks = [
            numbered[at : at + self._per_pass] for at in range(0, len(numbered), self._per_pass)
        ]
        parts = []
        with _workers() as pool:
            for chunk, part in zip(chunks, pool.map(self._read_chunk, chunks), strict=True):
                parts.append(part)
                progress(chunk[-1][0], len(numbered))
        return Read(
            tuple(name for part in parts for name in part.names),
            torch.cat([torch.empty(0, self._width), *(part.features for part in parts)]),
            tuple(failure for part in parts for failure in part.failures),
        )

    def _read_chunk(self, chunk: list[tuple[int, Item]]) -> Read:
        names, views, failures = [], [], []
        for number, item in chunk:
            name = f"image {number}" if isinstance(item, Image.Image) else str(item)
            try:
                views.append(self._view(opened(item, name)))
                names.append(name)
            except ImageError as error:
                failures.append(Failure(name, str(error)))
        features = torch.empty(0, self._width)
        if views:
            features = torch.from_numpy(encode(self.encoder, torch.stack(views)))
        return Read(tuple(names), features, tuple(failures))


def opened(item: Item, name: str = "an image") -> Image.Image:
    """Return an image as upright RGB, by its path or as it is given; errors call it `name`."""
    return converted(item, name) if isinstance(item, Image.Image) else open_image(item)


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Yield as many workers as torch has threads, each of which computes with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # when interrupted, begin nothing more
        torch.set_num_threads(threads)
