"""Pairwise tests of the methods in one column, chosen by the design of the runs.

- Different test images in each run (folds, or a new split per seed): the t-test of Nadeau and
  Bengio, because the training sets overlap.
- The same test images in every run: tests paired over these images.
- Another metric than accuracy, which single images do not have: tests over the runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.metrics import ACCURACY, Metric
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
        value: the metric, if it is not the accuracy.
    """

    images: tuple[str, ...]
    correct: NDArray[np.bool_]
    training_images: int
    split: str = "test"
    value: float | None = None

    @property
    def score(self) -> float:
        """The metric that methods are compared by."""
        return self.accuracy if self.value is None else self.value

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


@dataclass(frozen=True)
class PairDifference:
    """The test of two methods.

    Attributes:
        first: a method.
        second: another one.
        difference: mean of the first minus that of the second, in the units of the table.
        p: of the test, without correction; None if nothing can be tested.
        p_holm: corrected for the number of pairs.
    """

    first: str
    second: str
    difference: float
    p: float | None
    p_holm: float


class PairTests:
    """All pairwise tests of one column.

    Args:
        rows: the runs of each method, with the same keys for all.
        metric: what methods are compared by.
    """

    def __init__(self, rows: Mapping[str, MethodRuns], metric: Metric = ACCURACY) -> None:
        self.rows, self.metric = rows, metric
        self.keys = sorted(next(iter(rows.values())), key=str)
        runs = [method_runs[key] for method_runs in rows.values() for key in self.keys]
        self.same_images = len({run.images for run in runs}) == 1
        self.by_images = self.same_images and metric is ACCURACY
        self.image_count = len(runs[0].images)
        self.split = SPLIT_TITLES[runs[0].split]
        ratios = [len(run.images) / max(1, run.training_images) for run in runs]
        self.test_per_train = float(np.mean(ratios))
        pairs = list(combinations(rows, 2))
        raw = [self._p(*pair) for pair in pairs]
        adjusted = holm([1.0 if p is None else p for p in raw])
        self.pairs = tuple(
            PairDifference(first, second, self._mean(first) - self._mean(second), p, p_holm)
            for (first, second), p, p_holm in zip(pairs, raw, adjusted, strict=True)
        )
        self.p = {frozenset((pair.first, pair.second)): pair.p_holm for pair in self.pairs}

    def level_with(self, best: str) -> list[str]:
        """Return the other methods that do not differ significantly from the best."""
        others = [row for row in self.rows if row != best]
        return [row for row in others if self.p[frozenset((row, best))] >= ALPHA]

    def findings(self, control: str, best: str) -> list[Finding]:
        """Return the test of all pairs, then the tests of the control against each other method."""
        return [self._all_pairs(best), *self._against_control(control)]

    def _p(self, first: str, second: str) -> float | None:
        """Return the p-value of a pair; None if a single run per method cannot be tested."""
        if self.by_images and len(self.keys) == 1:
            return self._mcnemar(first, second).p
        if len(self.keys) == 1:
            return None
        if not self.same_images:
            return self._resampled(first, second).p
        if not self.by_images:
            return self._over_runs(first, second).p
        return statistics.paired_t(
            self._share_correct(first).tolist(),
            self._share_correct(second).tolist(),
            names=(first, second),
        ).p

    def _scores(self, row: str) -> list[float]:
        return [self.rows[row][key].score for key in self.keys]

    def _mean(self, row: str) -> float:
        return float(np.mean(self._scores(row)))

    def _share_correct(self, row: str) -> NDArray[np.float64]:
        """Return for each image the share of a method's runs that are correct, in per cent."""
        runs = [self.rows[row][key].correct for key in self.keys]
        share: NDArray[np.float64] = 100 * np.stack(runs).astype(np.float64).mean(axis=0)
        return share

    def _resampled(self, first: str, second: str) -> TTest:
        return statistics.corrected_t(
            self._scores(first),
            self._scores(second),
            test_per_train=self.test_per_train,
            names=(first, second),
        )

    def _over_runs(self, first: str, second: str) -> TTest:
        return statistics.paired_t(self._scores(first), self._scores(second), names=(first, second))

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
            f"{best} has the {self._extreme} mean. {result}.",
            f"{significant} of {len(self.p)} pairs differ significantly after Holm's correction.",
        )
        numbers = [
            asdict(pair)
            | {"pair": sorted((pair.first, pair.second)), "significant": pair.p_holm < ALPHA}
            for pair in self.pairs
        ]
        return Finding(f"All pairs: {self._test_name}", sentences, self._warnings, numbers)

    @property
    def _extreme(self) -> str:
        return "lowest" if self.metric.lower_is_better else "highest"

    @property
    def _test_name(self) -> str:
        if self.same_images and not self.by_images:
            return "t-test paired over the seeds, corrected by Holm"
        if not self.same_images:
            return "t-test corrected for overlapping training sets (Nadeau and Bengio) and by Holm"
        if len(self.keys) == 1:
            return "McNemar's test on the stored predictions, corrected by Holm"
        return f"t-test paired over the {self.split} images, mean over seeds, corrected by Holm"

    @property
    def _warnings(self) -> tuple[str, ...]:
        runs = len(self.keys)
        if runs == 1 and not self.by_images:
            return ("One run per method: nothing can be tested. Use more folds or seeds.",)
        if self.same_images:
            return (
                f"All runs use the same {self.image_count} {self.split} images: the result applies "
                "to other images of this kind, but not to other training sets or seeds. Use "
                "--folds to include those.",
            )
        text = f"{runs} splits of one dataset: the result is about this dataset only."
        return (text,) if runs >= 5 else (f"{text} So few runs can only show large differences.",)

    def _against_control(self, control: str) -> list[Finding]:
        others = [row for row in self.rows if row != control]
        if self.by_images:
            return self._against_by_images(control, others)
        return self._against_by_runs(control, others) if len(self.keys) > 1 else []

    def _against_by_runs(self, control: str, others: Sequence[str]) -> list[Finding]:
        test = self._over_runs if self.same_images else self._resampled
        tests = [test(control, other) for other in others]
        adjusted = holm([test.p for test in tests])
        effects = [
            statistics.cohens_dz(self._scores(control), self._scores(other)) for other in others
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
