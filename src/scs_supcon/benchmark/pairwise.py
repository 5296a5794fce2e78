"""Pairwise tests of the methods in one column, chosen by the design of the runs.

- Different test images in each run (folds, or a new split per seed): the t-test of Nadeau and
  Bengio, because the training sets overlap.
- The same test images in every run: tests paired over these images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.statistics import TTest, holm
from scs_supcon.benchmark.statistics.scores import join
from scs_supcon.data.splits import SPLIT_TITLES

ALPHA = 0.05
RESAMPLES = 2000
RunKey = tuple[int, int | None]  # seed and fold, by which the runs of two methods are paired


@dataclass(frozen=True)
class EvaluatedRun:
    """The predictions of one run on its test images.

    Attributes:
        images: names of the images, sorted.
        correct: whether each image is classified correctly.
        training_images: number of images that the training images were drawn from: all of them,
            unless the number of images per class is limited.
        split: "test", or "val" if there is no test split.
    """

    images: tuple[str, ...]
    correct: NDArray[np.bool_]
    training_images: int
    split: str = "test"

    @property
    def accuracy(self) -> float:
        """Accuracy in per cent."""
        return 100 * float(self.correct.mean())


MethodRuns = Mapping[RunKey, EvaluatedRun]


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    Attributes:
        title: the test.
        sentences: the result in words.
        warnings: limits of the result.
        numbers: details for statistics.json.
    """

    title: str
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    numbers: Any


class PairTests:
    """All pairwise tests of one column.

    Args:
        rows: the runs of each method, with the same keys for all.
    """

    def __init__(self, rows: Mapping[str, MethodRuns]) -> None:
        self.rows = rows
        self.keys = sorted(next(iter(rows.values())), key=str)
        runs = [method_runs[key] for method_runs in rows.values() for key in self.keys]
        self.same_images = len({run.images for run in runs}) == 1
        self.image_count = len(runs[0].images)
        self.split = SPLIT_TITLES[runs[0].split]
        ratios = [len(run.images) / max(1, run.training_images) for run in runs]
        self.test_per_train = float(np.mean(ratios))
        pairs = list(combinations(rows, 2))
        adjusted = holm([self._p(*pair) for pair in pairs])
        self.p = {frozenset(pair): p for pair, p in zip(pairs, adjusted, strict=True)}

    def level_with(self, best: str) -> list[str]:
        """Return the other methods that do not differ significantly from the best."""
        others = [row for row in self.rows if row != best]
        return [row for row in others if self.p[frozenset((row, best))] >= ALPHA]

    def findings(self, control: str, best: str) -> list[Finding]:
        """Return the test of all pairs, then the tests of the control against each other method."""
        return [self._all_pairs(best), *self._against_control(control)]

    def _p(self, first: str, second: str) -> float:
        if not self.same_images:
            return self._resampled(first, second).p if len(self.keys) > 1 else 1.0
        if len(self.keys) == 1:
            return self._mcnemar(first, second).p
        return statistics.paired_t(
            self._share_correct(first).tolist(),
            self._share_correct(second).tolist(),
            names=(first, second),
        ).p

    def _accuracies(self, row: str) -> list[float]:
        return [self.rows[row][key].accuracy for key in self.keys]

    def _share_correct(self, row: str) -> NDArray[np.float64]:
        """Return for each image the share of a method's runs that are correct, in per cent."""
        runs = [self.rows[row][key].correct for key in self.keys]
        share: NDArray[np.float64] = 100 * np.stack(runs).astype(np.float64).mean(axis=0)
        return share

    def _resampled(self, first: str, second: str) -> TTest:
        return statistics.corrected_t(
            self._accuracies(first),
            self._accuracies(second),
            test_per_train=self.test_per_train,
            names=(first, second),
        )

    def _mcnemar(self, first: str, second: str) -> statistics.McNemar:
        key = self.keys[0]
        correct, other = self.rows[first][key].correct, self.rows[second][key].correct
        return statistics.mcnemar(correct, other, names=(first, second))

    def _all_pairs(self, best: str) -> Finding:
        level = self.level_with(best)
        worse = [row for row in self.rows if row != best and row not in level]
        result = "It does not differ significantly from any other method"
        if worse:
            not_from = f", but not from {join(level)}" if level else ""
            result = f"It differs significantly from {join(worse)}{not_from}"
        significant = sum(p < ALPHA for p in self.p.values())
        sentences = (
            f"{best} has the highest mean. {result}.",
            f"{significant} of {len(self.p)} pairs differ significantly after Holm's correction.",
        )
        numbers = [
            {"pair": sorted(pair), "p_holm": p, "significant": p < ALPHA}
            for pair, p in self.p.items()
        ]
        return Finding(f"All pairs: {self._test_name}", sentences, self._warnings, numbers)

    @property
    def _test_name(self) -> str:
        if not self.same_images:
            return "t-test corrected for overlapping training sets (Nadeau and Bengio) and by Holm"
        if len(self.keys) == 1:
            return "McNemar's test on the stored predictions, corrected by Holm"
        return f"t-test paired over the {self.split} images, mean over seeds, corrected by Holm"

    @property
    def _warnings(self) -> tuple[str, ...]:
        runs = len(self.keys)
        if self.same_images:
            return (
                f"All runs use the same {self.image_count} {self.split} images: the result applies "
                "to other images of this kind, but not to other training sets or seeds. Use "
                "--folds to include those.",
            )
        if runs == 1:
            return ("One run per method: nothing can be tested. Use more folds or seeds.",)
        text = f"{runs} splits of one dataset: the result is about this dataset only."
        return (text,) if runs >= 5 else (f"{text} So few runs can only show large differences.",)

    def _against_control(self, control: str) -> list[Finding]:
        others = [row for row in self.rows if row != control]
        if self.same_images:
            return self._against_by_images(control, others)
        return self._against_by_splits(control, others) if len(self.keys) > 1 else []

    def _against_by_splits(self, control: str, others: Sequence[str]) -> list[Finding]:
        tests = [self._resampled(control, other) for other in others]
        adjusted = holm([test.p for test in tests])
        effects = [
            statistics.cohens_dz(self._accuracies(control), self._accuracies(other))
            for other in others
        ]
        numbers = [
            asdict(test) | {"p_holm": p, "cohens_dz": effect}
            for test, p, effect in zip(tests, adjusted, effects, strict=True)
        ]
        title = f"{control} against each other method"
        return [Finding(title, _with_holm(tests, adjusted), _all_warnings(tests), numbers)]

    def _against_by_images(self, control: str, others: Sequence[str]) -> list[Finding]:
        tests = [self._mcnemar(control, other) for other in others]
        adjusted = holm([test.p for test in tests])
        intervals = [
            statistics.bootstrap(
                self._share_correct(control) - self._share_correct(other),
                np.random.default_rng(0),
                resamples=RESAMPLES,
            )
            for other in others
        ]
        gaps = tuple(
            f"{control} − {other}: {gap.value:+.2f} points, 95% interval {gap.low:+.2f} to "
            f"{gap.high:+.2f} over resampled {self.split} images."
            for other, gap in zip(others, intervals, strict=True)
        )
        title, seed = f"{control} against each other method", self.keys[0][0]
        return [
            Finding(
                f"{title}: bootstrap over the {self.split} images",
                gaps,
                (),
                [asdict(gap) | {"second": o} for o, gap in zip(others, intervals, strict=True)],
            ),
            Finding(
                f"{title}: McNemar's test of the models of seed {seed}",
                _with_holm(tests, adjusted),
                _all_warnings(tests),
                [asdict(t) | {"p_holm": p} for t, p in zip(tests, adjusted, strict=True)],
            ),
        ]


def _with_holm(
    tests: Sequence[TTest | statistics.McNemar], adjusted: Sequence[float]
) -> tuple[str, ...]:
    return tuple(
        f"{test.sentence} Holm-corrected p = {p:.2g}."
        for test, p in zip(tests, adjusted, strict=True)
    )


def _all_warnings(tests: Sequence[TTest | statistics.McNemar]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warning for test in tests for warning in test.warnings))
