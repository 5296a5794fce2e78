"""Reads batches of mapped features with less memory than the features take, in its own process.

Run by tests/training/test_mapped_features.py: python limited_memory.py FOLDER
"""

import mmap
import resource
import sys
from pathlib import Path

import numpy as np
import torch

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_table import empty_table
from scs_supcon.data.sampler import plan_epoch
from scs_supcon.recipe import make_recipe
from scs_supcon.training.pretrain import training_set_from_features

N, VIEWS, WIDTH = 40_000, 3, 512  # 234 MiB
LIMIT = 100 * 2**20


def main(folder: Path) -> None:
    labels = np.arange(N) % 100
    images = ImageDataset(
        names=tuple(map(str, range(N))),
        labels=labels,
        classes=tuple(map(str, range(100))),
        splits=None,
        groups=None,
        folds=None,
        open=None,  # images are not read
        file_hash=None,
        native_size=8,
    )
    recipe = make_recipe(
        {"data": {"source": "shapes"}, "encoder": {"frozen_dropout": 0, "frozen_mix": False}}
    )
    plan = plan_epoch(labels, 256, kind="balanced", per_class=4, seed=0, epoch=0)[:20]
    torch.zeros(256, VIEWS, WIDTH).sum()  # what torch allocates once
    limit_private_memory()
    assert not can_allocate((N, VIEWS, WIDTH)), "the limit does not work"
    table = empty_table((N, VIEWS, WIDTH), folder)
    table[:, :, 0] = np.arange(N)[:, None]
    features = torch.from_numpy(table)
    for batch in training_set_from_features(features, images, np.arange(N), recipe, 2).batches(
        plan, 0, 0, 0
    ):
        assert batch.images.shape[1] == WIDTH
    rows = np.arange(0, N, 2)
    half = training_set_from_features(features, images, rows, recipe, 2, torch.from_numpy(rows))
    (batch,) = half.batches([[np.arange(5)]], 0, 0, 0)
    assert batch.labels.tolist() == labels[[0, 2, 4, 6, 8]].tolist()
    assert set(batch.images[:5, 0].tolist()) <= {0.0, 2.0, 4.0, 6.0, 8.0}


def limit_private_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT, hard))


def can_allocate(shape: tuple[int, ...]) -> bool:
    try:
        np.empty(shape, np.float32)
    except MemoryError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
