"""Made-up tests of methods on pictures."""

import numpy as np
import pytest

from scs_supcon.results.pairwise import Judged


@pytest.fixture
def judged():
    """`judged(chance, seed)`: 200 pictures, each right by chance; other names for another fold."""

    def make(chance: float, seed: int, fold: int | None = None) -> Judged:
        rng = np.random.default_rng([seed, fold or 0])
        names = tuple(f"{fold}/{number:03d}" for number in range(200))
        return Judged(names, rng.random(200) < chance, 800)

    return make


@pytest.fixture
def rows(judged):
    """`rows(keys, good=0.9, bad=0.5)`: each method's runs; the draws of a key are shared."""

    def make(keys, **chances):
        return {
            name: {key: judged(chance, *key) for key in keys} for name, chance in chances.items()
        }

    return make
