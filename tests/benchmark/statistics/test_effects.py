import math

import numpy as np
import pytest

from scs_supcon.benchmark.statistics import bootstrap, cohens_dz, paired_t, rank_biserial
from scs_supcon.errors import UserError

OURS, OVERLAP = "SCS-SupCon", "CS-overlap"


def test_dz_is_t_over_the_root_of_the_pairs(folds):
    effect = cohens_dz(folds[OURS], folds[OVERLAP])
    t = paired_t(folds[OURS], folds[OVERLAP], names=(OURS, OVERLAP)).t
    assert effect.value == pytest.approx(t / math.sqrt(5))
    assert effect.value == pytest.approx(2.985, abs=5e-4)
    assert "2.98 times the spread" in effect.sentence


def test_dz_without_spread():
    assert cohens_dz([1.3, 2.3], [1.0, 2.0]).value == math.inf
    assert cohens_dz([1.0, 2.0], [1.3, 2.3]).value == -math.inf
    assert cohens_dz([1.0, 2.0], [1.0, 2.0]).value == 0.0


def test_rank_biserial_by_hand():
    # gaps 1, −2, 3, 0: ranks 1 and 3 speak for the first, 2 against
    effect = rank_biserial([2.0, 1.0, 5.0, 7.0], [1.0, 3.0, 2.0, 7.0])
    assert effect.value == pytest.approx((4 - 2) / 6)
    assert "67% of the rank sum" in effect.sentence
    assert rank_biserial([1.0, 1.0], [1.0, 1.0]).value == 0.0


def test_rank_biserial_of_the_paper_is_at_its_end(main, folds):
    assert rank_biserial(main[OURS], main[OVERLAP]).value == 1.0
    assert rank_biserial(folds["SupCon"], folds[OURS]).value == -1.0


def test_bootstrap_of_an_accuracy_meets_the_binomial_interval():
    right = np.arange(1000) < 800
    result = bootstrap(right, np.random.default_rng(0), resamples=4000)
    spread = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert result.value == 0.8
    assert result.low == pytest.approx(0.8 - spread, abs=0.003)
    assert result.high == pytest.approx(0.8 + spread, abs=0.003)
    assert result.warnings == ()
    assert result.sentence.startswith("0.8, and 0.77")


def test_bootstrap_repeats_with_the_same_generator_state():
    rows = np.linspace(0, 1, 40) ** 2
    again = [bootstrap(rows, np.random.default_rng(7), resamples=200) for _ in range(2)]
    other = bootstrap(rows, np.random.default_rng(8), resamples=200)
    assert again[0] == again[1]
    assert again[0].low != other.low


def test_bootstrap_keeps_the_columns_of_a_row_together():
    pairs = np.column_stack([np.arange(30), np.arange(30) + 5])

    def gap(rows):
        return float((rows[:, 1] - rows[:, 0]).mean())

    result = bootstrap(pairs, np.random.default_rng(0), statistic=gap, resamples=50)
    assert (result.low, result.value, result.high) == (5.0, 5.0, 5.0)


def test_bootstrap_of_few_rows_warns(folds):
    result = bootstrap(folds[OURS], np.random.default_rng(0), resamples=100)
    assert "5 rows are few" in result.warnings[0]
    with pytest.raises(UserError, match="at least 2 rows, not 1"):
        bootstrap([1.0], np.random.default_rng(0))
