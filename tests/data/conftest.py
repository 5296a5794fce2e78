"""Fixtures that write small image folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Path]


@pytest.fixture
def paint() -> Paint:
    """`paint(path, seed)` writes an image of coarse noise that depends on the seed."""

    def paint(path: Path, seed: int = 0, size: tuple[int, int] = (24, 16)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(noise).resize(size).save(path)
        return path

    return paint


@pytest.fixture
def class_folders(tmp_path: Path, paint: Paint) -> Callable[[dict[str, int]], Path]:
    """`class_folders({"birds/finch": 3})` writes that many different images to each folder."""

    def make(counts: dict[str, int]) -> Path:
        seed = 0
        for folder, count in counts.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                paint(tmp_path / folder / f"{number:03d}.png", seed)
                seed += 1
        return tmp_path

    return make


@pytest.fixture
def bomb() -> Callable[..., Path]:
    """`bomb(path, side)` writes a small BMP file whose header claims `side` × `side` pixels."""

    def bomb(path: Path, side: int = 10_000) -> Path:
        Image.new("RGB", (2, 2)).save(path)
        content = bytearray(path.read_bytes())
        content[18:22] = content[22:26] = side.to_bytes(4, "little")
        path.write_bytes(content)
        return path

    return bomb


Scene = Callable[..., Image.Image]


@pytest.fixture(scope="session")
def scene() -> Scene:
    """`scene(seed)` returns smooth noise with detail at every scale, as in photographs."""

    def scene(seed: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
        rng = np.random.default_rng(seed)
        layers = np.zeros((*size[::-1], 3))
        for cells in (3, 6, 12, 24):
            noise = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
            layers += np.asarray(Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)) / 4
        return Image.fromarray(layers.astype(np.uint8))

    return scene
