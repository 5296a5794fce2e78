"""Flip bits in checkpoints and cached features: what is read is right, or nothing is."""

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from scs_supcon.data.shards import read_shards, write_shard
from scs_supcon.errors import UserError
from scs_supcon.runs.checkpoint_io import Checkpoint, read_checkpoint, write_checkpoint

from .outcome import Outcome, attempt


def flips(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Flip one bit at a time, half of them in checkpoints and half in shards of features."""
    chance = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _flip_checkpoints(chance, count - count // 2, folder / "checkpoints")
        yield from _flip_shards(chance, count // 2, folder / "features")


def _flip_checkpoints(chance: random.Random, count: int, folder: Path) -> Iterator[Outcome]:
    generator = torch.Generator().manual_seed(0)
    written = []
    for number in range(2):
        tensors = {"a": torch.randn(64, 8, generator=generator), "b": torch.arange(10) + number}
        written.append(Checkpoint(tensors, {"metrics_bytes": number, "training": {"x": [1, 2]}}))
        write_checkpoint(folder, "pretrain", written[-1])
    for _ in range(count):
        file, content = _flip(chance, folder)
        try:
            checkpoint = read_checkpoint(folder, "pretrain")
        except UserError:
            yield attempt(2)
        except Exception as error:
            yield attempt(1, f"{file.name}: {type(error).__name__}: {error}")
        else:
            same = checkpoint is not None and any(_equal(checkpoint, one) for one in written)
            yield attempt(0, "" if same else f"{file.name}: another checkpoint was read")
        file.write_bytes(content)


def _equal(one: Checkpoint, other: Checkpoint) -> bool:
    return (
        one.state == other.state
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


def _flip_shards(chance: random.Random, count: int, folder: Path) -> Iterator[Outcome]:
    rows = np.random.default_rng(0).standard_normal((6, 2, 16)).astype(np.float32)
    images = [bytes([number]) * 32 for number in range(6)]
    views = [bytes([100 + number]) * 32 for number in range(2)]
    for start in (0, 3):
        write_shard(folder, images[start : start + 3], views, rows[start : start + 3])
    row_of, column_of = ({key: i for i, key in enumerate(keys)} for keys in (images, views))
    for _ in range(count):
        file, content = _flip(chance, folder)
        table = np.full_like(rows, np.nan)
        try:
            filled = read_shards(folder, row_of, column_of, table)
        except Exception as error:
            yield attempt(1, f"shard: {type(error).__name__}: {error}")
        else:
            right = bool((table[filled] == rows[filled]).all())
            yield attempt(0, "" if right else "shard: wrong features were read")
        file.write_bytes(content)


def _flip(chance: random.Random, folder: Path) -> tuple[Path, bytes]:
    """Flip a bit of a random file; return the file and its content before."""
    file = chance.choice(sorted(path for path in folder.iterdir() if path.suffix != ".tmp"))
    content = file.read_bytes()
    damaged = bytearray(content)
    position = chance.randrange(len(damaged))
    damaged[position] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(damaged))
    return file, content
