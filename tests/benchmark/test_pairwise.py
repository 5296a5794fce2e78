"""Which test suits which design, and what it says."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.benchmark.pairwise import Judged, PairTests
from scs_supcon.benchmark.statistics import corrected_t, holm, mcnemar, paired_t

SEEDS = [(0, None), (1, None), (2, None)]
FOLDS = [(0, fold) for fold in range(5)]


def scores(rows, name, keys):
    return [rows[name][key].accuracy for key in keys]


def test_folds_are_tested_by_nadeau_and_bengio(rows):
    made = rows(FOLDS, good=0.9, fair=0.85, bad=0.4)
    tests = PairTests(made)
    pairs = [("good", "fair"), ("good", "bad"), ("fair", "bad")]
    expected = holm(
        [
            corrected_t(
                scores(made, a, FOLDS), scores(made, b, FOLDS), test_per_train=1 / 4, names=(a, b)
            ).p
            for a, b in pairs
        ]
    )
    found = [tests.p[frozenset(pair)] for pair in pairs]
    assert found == pytest.approx(expected)
    first, second = tests.findings("good", "good")
    assert "Nadeau and Bengio" in first.title
    assert "about this data set alone" in first.warnings[0]
    assert len(second.sentences) == 2
    assert "After Holm p" in second.sentences[0]
    gaps = np.subtract(scores(made, "good", FOLDS), scores(made, "fair", FOLDS))
    assert second.numbers[0]["cohens_dz"] == pytest.approx(gaps.mean() / gaps.std(ddof=1))


def test_splits_drawn_by_each_seed_are_no_common_test_set(rows):
    made = rows([(0, 0), (1, 1)], good=0.9, bad=0.4)
    assert not PairTests(made).same_test
    assert (
        "With so few, little can be told apart"
        in PairTests(made).findings("bad", "good")[0].warnings[0]
    )


def test_seeds_on_one_test_set_are_paired_over_its_images(rows):
    made = rows(SEEDS, good=0.9, bad=0.4)
    tests = PairTests(made)
    assert tests.same_test
    share = {name: np.mean([made[name][key].right for key in SEEDS], axis=0) * 100 for name in made}
    expected = paired_t(share["good"], share["bad"], names=("good", "bad")).p
    assert tests.p[frozenset(("good", "bad"))] == pytest.approx(expected)
    pairs, gaps, models = tests.findings("bad", "good")
    assert "not what another training set or other seeds would" in pairs.warnings[0]
    gap = share["bad"].mean() - share["good"].mean()
    assert gaps.sentences[0].startswith(f"bad − good: {gap:+.2f} points")
    assert gaps.numbers[0]["low"] < gap < gaps.numbers[0]["high"] < 0
    assert models.title.endswith("seed 0")


def test_one_seed_is_mcnemar(rows):
    made = rows(SEEDS[:1], good=0.9, bad=0.4)
    right = {name: cells[SEEDS[0]].right for name, cells in made.items()}
    truth = np.ones(200, dtype=bool)
    expected = mcnemar(truth, right["good"], right["bad"], names=("good", "bad"))
    tests = PairTests(made)
    assert tests.p[frozenset(("good", "bad"))] == pytest.approx(expected.p)
    assert "McNemar" in tests.findings("good", "good")[0].title
    assert tests.findings("good", "good")[2].sentences[0].startswith(expected.sentence)


def test_one_split_of_its_own_for_each_method_cannot_be_tested():
    one = Judged(("a", "b"), np.array([True, False]), 8)
    other = Judged(("c", "d"), np.array([True, True]), 8)
    tests = PairTests({"first": {(0, 0): one}, "second": {(0, 0): other}})
    assert set(tests.p.values()) == {1.0}
    (finding,) = tests.findings("first", "second")
    assert "nothing can be tested" in finding.warnings[0]


def test_equal_gaps_are_no_certainty():
    def half(fold, right):
        return Judged((f"{fold}a", f"{fold}b"), np.array([True, right]), 8)

    rows = {
        "better": {(0, fold): half(fold, True) for fold in range(2)},
        "worse": {(0, fold): half(fold, False) for fold in range(2)},
    }
    tests = PairTests(rows)
    assert set(tests.p.values()) == {0.5}
    assert tests.level("better") == ["better", "worse"]
    said = tests.findings("better", "better")[0].sentences[0]
    assert said == "better has the highest mean. The tests cannot set it apart from any other."
    against = tests.findings("better", "better")[1]
    assert "no spread" in against.warnings[0]
    assert "chance alone could explain it" in against.sentences[0]
    assert "After Holm p = 0.5." in against.sentences[0]


def test_level_are_those_the_tests_cannot_set_apart(rows):
    made = rows(FOLDS, good=0.9, fair=0.9, bad=0.4)
    # The same draws: equal chances make equal runs.
    assert PairTests(made).level("good") == ["good", "fair"]
    sentence = PairTests(made).findings("good", "good")[0].sentences[0]
    assert sentence == "good has the highest mean. It is set apart from bad; not from fair."


def test_accuracy_is_in_per_cent(judged):
    assert math.isclose(judged(1.0, 0).accuracy, 100.0)


def test_validation_images_are_called_so(rows):
    found = rows([(0, None), (1, None)], good=0.9, bad=0.5)
    same = {
        name: {
            key: replace(judged, names=cells[0, None].names, judged_on="val")
            for key, judged in cells.items()
        }
        for name, cells in found.items()
    }
    told = [
        text
        for finding in PairTests(same).findings("good", "good")
        for text in (finding.title, *finding.sentences, *finding.warnings)
    ]
    assert any("validation images" in text for text in told)
    assert not any("test images" in text for text in told)
