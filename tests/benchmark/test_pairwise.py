"""The test depends on the design of the runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.benchmark.metrics import find_metric
from scs_supcon.benchmark.pairwise import EvaluatedRun, PairTests
from scs_supcon.benchmark.statistics import corrected_t, holm, mcnemar, paired_t

SEEDS = [(0, None), (1, None), (2, None)]
FOLDS = [(0, fold) for fold in range(5)]


def scores(rows, name, keys):
    return [rows[name][key].accuracy for key in keys]


def test_folds_use_the_test_of_nadeau_and_bengio(rows):
    runs = rows(FOLDS, good=0.9, fair=0.85, bad=0.4)
    tests = PairTests(runs)
    pairs = [("good", "fair"), ("good", "bad"), ("fair", "bad")]
    expected = holm(
        [
            corrected_t(
                scores(runs, a, FOLDS), scores(runs, b, FOLDS), test_per_train=1 / 4, names=(a, b)
            ).p
            for a, b in pairs
        ]
    )
    assert [tests.p[frozenset(pair)] for pair in pairs] == pytest.approx(expected)
    first, second = tests.findings("good", "good")
    assert "Nadeau and Bengio" in first.title
    assert "about this dataset only" in first.warnings[0]
    assert len(second.sentences) == 2
    assert "Holm-corrected p" in second.sentences[0]
    gaps = np.subtract(scores(runs, "good", FOLDS), scores(runs, "fair", FOLDS))
    assert second.numbers[0]["cohens_dz"] == pytest.approx(gaps.mean() / gaps.std(ddof=1))


def test_a_new_split_per_seed_is_not_a_common_test_set(rows):
    runs = rows([(0, 0), (1, 1)], good=0.9, bad=0.4)
    assert not PairTests(runs).same_images
    assert (
        "So few runs can only show large differences"
        in PairTests(runs).findings("bad", "good")[0].warnings[0]
    )


def test_seeds_with_one_test_set_are_paired_over_its_images(rows):
    runs = rows(SEEDS, good=0.9, bad=0.4)
    tests = PairTests(runs)
    assert tests.same_images
    share = {
        name: np.mean([runs[name][key].correct for key in SEEDS], axis=0) * 100 for name in runs
    }
    expected = paired_t(share["good"], share["bad"], names=("good", "bad")).p
    assert tests.p[frozenset(("good", "bad"))] == pytest.approx(expected)
    pairs, gaps, models = tests.findings("bad", "good")
    assert "not to other training sets or seeds" in pairs.warnings[0]
    gap = share["bad"].mean() - share["good"].mean()
    assert gaps.sentences[0].startswith(f"bad − good: {gap:+.2f} points")
    assert gaps.numbers[0]["low"] < gap < gaps.numbers[0]["high"] < 0
    assert models.title.endswith("seed 0")


def test_one_seed_uses_mcnemar(rows):
    runs = rows(SEEDS[:1], good=0.9, bad=0.4)
    correct = {name: method_runs[SEEDS[0]].correct for name, method_runs in runs.items()}
    expected = mcnemar(correct["good"], correct["bad"], names=("good", "bad"))
    tests = PairTests(runs)
    assert tests.p[frozenset(("good", "bad"))] == pytest.approx(expected.p)
    assert "McNemar" in tests.findings("good", "good")[0].title
    assert tests.findings("good", "good")[2].sentences[0].startswith(expected.sentence)


def test_one_run_per_method_on_different_images_cannot_be_tested():
    first = EvaluatedRun(("a", "b"), np.array([True, False]), 8)
    second = EvaluatedRun(("c", "d"), np.array([True, True]), 8)
    tests = PairTests({"first": {(0, 0): first}, "second": {(0, 0): second}})
    assert set(tests.p.values()) == {1.0}
    (finding,) = tests.findings("first", "second")
    assert "nothing can be tested" in finding.warnings[0]


def test_two_equal_differences_are_not_significant():
    def half(fold, correct):
        return EvaluatedRun((f"{fold}a", f"{fold}b"), np.array([True, correct]), 8)

    rows = {
        "better": {(0, fold): half(fold, True) for fold in range(2)},
        "worse": {(0, fold): half(fold, False) for fold in range(2)},
    }
    tests = PairTests(rows)
    assert set(tests.p.values()) == {0.5}
    assert tests.level_with("better") == ["worse"]
    sentence = tests.findings("better", "better")[0].sentences[0]
    assert sentence == (
        "better has the highest mean. It does not differ significantly from any other method."
    )
    against = tests.findings("better", "better")[1]
    assert "no spread" in against.warnings[0]
    assert "not significant at the 5% level" in against.sentences[0]
    assert "Holm-corrected p = 0.5." in against.sentences[0]


def test_methods_without_a_significant_difference_are_level(rows):
    runs = rows(FOLDS, good=0.9, fair=0.9, bad=0.4)
    # Common random numbers: equal accuracies give equal runs.
    assert PairTests(runs).level_with("good") == ["fair"]
    sentence = PairTests(runs).findings("good", "good")[0].sentences[0]
    assert sentence == (
        "good has the highest mean. It differs significantly from bad, but not from fair."
    )


def test_accuracy_is_in_per_cent(evaluated):
    assert math.isclose(evaluated(1.0, 0).accuracy, 100.0)


def test_validation_images_are_not_called_test_images(rows):
    runs = rows([(0, None), (1, None)], good=0.9, bad=0.5)
    same = {
        name: {
            key: replace(run, images=method_runs[0, None].images, split="val")
            for key, run in method_runs.items()
        }
        for name, method_runs in runs.items()
    }
    texts = [
        text
        for finding in PairTests(same).findings("good", "good")
        for text in (finding.title, *finding.sentences, *finding.warnings)
    ]
    assert any("validation images" in text for text in texts)
    assert not any("test images" in text for text in texts)


def test_all_pairs_have_a_difference_and_a_raw_p_value(rows):
    runs = rows(FOLDS, good=0.9, fair=0.85, bad=0.4)
    tests = PairTests(runs)
    for pair in tests.pairs:
        first, second = scores(runs, pair.first, FOLDS), scores(runs, pair.second, FOLDS)
        assert pair.difference == pytest.approx(np.mean(first) - np.mean(second))
        names = (pair.first, pair.second)
        assert pair.p == corrected_t(first, second, test_per_train=1 / 4, names=names).p
    assert holm([pair.p for pair in tests.pairs]) == tuple(p.p_holm for p in tests.pairs)
    numbers = tests.findings("good", "good")[0].numbers
    assert [number["p"] for number in numbers] == [pair.p for pair in tests.pairs]
    assert {"difference", "p_holm", "pair"} <= numbers[0].keys()


def with_values(rows, **values):
    """Runs on the same images whose metric is not the accuracy."""
    runs = rows(SEEDS, **dict.fromkeys(values, 0.5))
    return {
        name: {
            key: replace(run, value=value)
            for (key, run), value in zip(runs[name].items(), column, strict=True)
        }
        for name, column in values.items()
    }


def test_other_metrics_are_tested_over_the_runs(rows):
    runs = with_values(rows, low=[0.5, 0.6, 0.55], high=[0.9, 1.1, 1.0])
    tests = PairTests(runs, find_metric("nll"))
    (pair,) = tests.pairs
    assert pair.difference == pytest.approx(-0.45)
    assert pair.p == paired_t([0.5, 0.6, 0.55], [0.9, 1.1, 1.0], names=("low", "high")).p
    first, *against = tests.findings("low", "low")
    assert first.title == "All pairs: t-test paired over the seeds, corrected by Holm"
    assert first.sentences[0].startswith("low has the lowest mean")
    assert len(against) == 1


def test_one_run_of_another_metric_cannot_be_tested(rows):
    runs = {
        name: {SEEDS[0]: r[SEEDS[0]]}
        for name, r in with_values(rows, a=[1.0, 0, 0], b=[2.0, 0, 0]).items()
    }
    tests = PairTests(runs, find_metric("nll"))
    assert tests.pairs[0].p is None
    assert tests.level_with("a") == ["b"]
    (finding,) = tests.findings("a", "a")
    assert "nothing can be tested" in finding.warnings[0]
