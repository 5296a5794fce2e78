"""Methods in one column, pair by pair, tested as the design asks for.

- other test images every time (folds, or a split drawn by each seed): Nadeau and Bengio's
  t-test, because the training sets overlap;
- the same test images every time: tests paired over these images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.statistics import TTest, holm
from scs_supcon.benchmark.statistics.wording import join
from scs_supcon.evaluation.splits import PARTS

ALPHA = 0.05
RESAMPLES = 2000
Key = tuple[int, int | None]  # seed and fold: what two methods share when they are compared


@dataclass(frozen=True)
class Judged:
    """One run's test: which images, which were right, how many it learnt from, and the part."""

    names: tuple[str, ...]
    right: NDArray[np.bool_]
    trained_on: int
    judged_on: str = "test"

    @property
    def accuracy(self) -> float:
        """In per cent."""
        return 100 * float(self.right.mean())


Cells = Mapping[Key, Judged]


@dataclass(frozen=True)
class Finding:
    """One test in plain words.

    Attributes:
        title: what was done.
        sentences: what came out.
        warnings: what it cannot show.
        numbers: everything else, for statistics.json.
    """

    title: str
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    numbers: Any


class PairTests:
    """The pairwise tests of one column, as its design asks for."""

    def __init__(self, rows: Mapping[str, Cells]) -> None:
        self.rows = rows
        self.keys = sorted(next(iter(rows.values())), key=str)
        every = [cells[key] for cells in rows.values() for key in self.keys]
        self.same_test = len({judged.names for judged in every}) == 1
        self.part = PARTS[every[0].judged_on]
        share = [len(judged.names) / max(1, judged.trained_on) for judged in every]
        self.test_per_train = float(np.mean(share))
        pairs = list(combinations(rows, 2))
        adjusted = holm([self._p(*pair) for pair in pairs])
        self.p = {frozenset(pair): p for pair, p in zip(pairs, adjusted, strict=True)}

    def level(self, best: str) -> list[str]:
        """Rows that cannot be set apart from the best."""
        return [row for row in self.rows if row == best or self.p[frozenset((row, best))] >= ALPHA]

    def findings(self, control: str, best: str) -> list[Finding]:
        """The tests in words: all pairs, then the control against each of the others."""
        return [self._all_pairs(best), *self._against(control)]

    def _p(self, first: str, second: str) -> float:
        if not self.same_test:
            return self._resampled(first, second).p if len(self.keys) > 1 else 1.0
        if len(self.keys) == 1:
            return self._mcnemar(first, second).p
        return self._over_images(first, second).p

    def _scores(self, row: str) -> list[float]:
        return [self.rows[row][key].accuracy for key in self.keys]

    def _right(self, row: str) -> NDArray[np.float64]:
        """Share of a row's runs that name each image rightly, in per cent."""
        runs = [self.rows[row][key].right for key in self.keys]
        share: NDArray[np.float64] = 100 * np.stack(runs).astype(np.float64).mean(axis=0)
        return share

    def _resampled(self, first: str, second: str) -> TTest:
        return statistics.corrected_t(
            self._scores(first),
            self._scores(second),
            test_per_train=self.test_per_train,
            names=(first, second),
        )

    def _over_images(self, first: str, second: str) -> TTest:
        return statistics.paired_t(
            self._right(first).tolist(), self._right(second).tolist(), names=(first, second)
        )

    def _mcnemar(self, first: str, second: str) -> statistics.McNemar:
        key = self.keys[0]
        right, other = self.rows[first][key].right, self.rows[second][key].right
        return statistics.mcnemar(
            np.ones(len(right), dtype=bool), right, other, names=(first, second)
        )

    def _all_pairs(self, best: str) -> Finding:
        apart = [row for row in self.rows if row not in self.level(best)]
        level = [row for row in self.level(best) if row != best]
        found = sum(p < ALPHA for p in self.p.values())
        told = f"It is set apart from {join(apart)}" + (
            f"; not from {join(level)}" if level else ""
        )
        alone = "The tests cannot set it apart from any other"
        sentences = [f"{best} has the highest mean. {told if apart else alone}."]
        sentences.append(f"{found} of {len(self.p)} pairs differ after Holm's correction.")
        numbers = [
            {"pair": sorted(pair), "p_holm": p, "significant": p < ALPHA}
            for pair, p in self.p.items()
        ]
        return Finding(f"All pairs: {self._how}", tuple(sentences), self._cautions, numbers)

    @property
    def _how(self) -> str:
        if not self.same_test:
            return "t-test corrected for overlapping training sets (Nadeau and Bengio), Holm"
        if len(self.keys) == 1:
            return "McNemar on the stored predictions, Holm"
        return f"t-test paired over the {self.part} images, seeds averaged, Holm"

    @property
    def _cautions(self) -> tuple[str, ...]:
        runs = len(self.keys)
        if not self.same_test and runs == 1:
            return ("One run of each method: nothing can be tested. Ask for more folds or seeds.",)
        if not self.same_test:
            few = f"{runs} splits of one data set: the result is about this data set alone."
            return (few,) if runs >= 5 else (f"{few} With so few, little can be told apart.",)
        one = self.rows[next(iter(self.rows))][self.keys[0]]
        text = (
            f"The same {len(one.names)} {self.part} images in every run: the tests say what "
            "other such images would change, not what another training set or other seeds would. "
            "Folds say more."
        )
        return (text,)

    def _against(self, control: str) -> list[Finding]:
        others = [row for row in self.rows if row != control]
        if not self.same_test:
            return self._against_by_splits(control, others) if len(self.keys) > 1 else []
        return self._against_by_images(control, others)

    def _against_by_splits(self, control: str, others: Sequence[str]) -> list[Finding]:
        tests = [self._resampled(control, other) for other in others]
        adjusted = holm([test.p for test in tests])
        effects = [
            statistics.cohens_dz(self._scores(control), self._scores(other)) for other in others
        ]
        sentences = tuple(
            f"{test.sentence} After Holm p = {p:.2g}."
            for test, p in zip(tests, adjusted, strict=True)
        )
        numbers = [
            asdict(test) | {"p_holm": p, "cohens_dz": effect.value}
            for test, p, effect in zip(tests, adjusted, effects, strict=True)
        ]
        warnings = tuple(dict.fromkeys(w for test in tests for w in test.warnings))
        return [Finding(f"{control} against each other method", sentences, warnings, numbers)]

    def _against_by_images(self, control: str, others: Sequence[str]) -> list[Finding]:
        tests = [self._mcnemar(control, other) for other in others]
        adjusted = holm([test.p for test in tests])
        intervals = [
            statistics.bootstrap(
                self._right(control) - self._right(other),
                np.random.default_rng(0),
                resamples=RESAMPLES,
            )
            for other in others
        ]
        gaps = tuple(
            f"{control} − {other}: {gap.value:+.2f} points, 95 % interval {gap.low:+.2f} to "
            f"{gap.high:+.2f} when the {self.part} images are drawn again."
            for other, gap in zip(others, intervals, strict=True)
        )
        seed = self.keys[0][0]
        return [
            Finding(
                f"{control} against each other method: bootstrap over the {self.part} images",
                gaps,
                (),
                [asdict(gap) | {"second": o} for o, gap in zip(others, intervals, strict=True)],
            ),
            Finding(
                f"{control} against each other method: McNemar, the two models of seed {seed}",
                tuple(
                    f"{test.sentence} After Holm p = {p:.2g}."
                    for test, p in zip(tests, adjusted, strict=True)
                ),
                tuple(dict.fromkeys(w for test in tests for w in test.warnings)),
                [asdict(t) | {"p_holm": p} for t, p in zip(tests, adjusted, strict=True)],
            ),
        ]
