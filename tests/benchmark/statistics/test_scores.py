"""Ranks and checks of scores, and numbers as text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.statistics import average_ranks
from scs_supcon.benchmark.statistics.scores import (
    differences,
    join,
    p_text,
    shared_columns,
    significance_text,
)
from scs_supcon.errors import UserError


def reference_ranks(scores: dict[str, list[float]]) -> dict[str, float]:
    """1 + methods that are better + half of the others that are equal, averaged over columns."""
    means = {}
    for name, row in scores.items():
        total = 0.0
        for column, score in enumerate(row):
            others = [scores[other][column] for other in scores if other != name]
            total += 1 + sum(o > score for o in others) + sum(o == score for o in others) / 2
        means[name] = total / len(row)
    return means


def test_average_ranks_of_the_printed_table(main):
    ranks = average_ranks(main)
    expected = {
        "SCS-SupCon": 1.083,
        "CSTCN": 4.000,
        "CS-overlap": 4.083,
        "TimeSCL": 5.083,
        "DACL": 6.667,
        "CSA-RSIC": 7.083,
        "FNCL": 7.250,
        "PCL": 7.500,
        "CS-SupCon": 7.667,
        "PaCo": 8.417,
        "SupCon": 9.583,
        "Circle": 9.917,
        "Baseline": 13.000,
        "BYOL": 13.833,
        "SimCLR": 14.833,
    }
    assert ranks == pytest.approx(expected, abs=5e-4)
    assert ranks == pytest.approx(reference_ranks(main), abs=1e-12)


@given(
    st.integers(2, 6).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 4).map(float), min_size=columns, max_size=columns),
            min_size=2,
            max_size=7,
        )
    )
)
def test_average_ranks_with_many_ties(rows):
    scores = {f"m{i}": row for i, row in enumerate(rows)}
    assert average_ranks(scores) == pytest.approx(reference_ranks(scores), abs=1e-12)


def test_rounding_errors_do_not_hide_ties():
    noisy = {"a": [0.1 + 0.2, 1.0], "b": [0.3, 2.0]}
    assert average_ranks(noisy) == {"a": 1.75, "b": 1.25}
    gaps = differences([95.9, 93.3], [95.7, 93.1])
    assert gaps[0] == gaps[1]


def test_methods_with_missing_scores_are_named(printed_main):
    with pytest.raises(UserError, match=r"SelfCon: a score is missing.*leave the method out"):
        average_ranks(printed_main)


def test_none_is_a_missing_score():
    with pytest.raises(UserError, match=r"^a: a score is missing"):
        average_ranks({"a": [1.0, None], "b": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"a": [1.0, 2.0], "b": [1.0]}, "one score per column.*'a': 2, 'b': 1"),
        ({"a": [1.0, 2.0]}, "at least 2 methods and 2 columns, got 1 methods and 2"),
        ({"a": [1.0], "b": [2.0]}, "got 2 methods and 1 columns"),
        ({}, "got 0 methods and 0 columns"),
        ({"a": [1.0, math.inf], "b": [1.0, 2.0]}, "a: a score is missing or not finite"),
    ],
)
def test_invalid_scores_are_errors(scores, message):
    with pytest.raises(UserError, match=message):
        average_ranks(scores)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1.0, 2.0], [1.0], "got 2 and 1 scores"),
        ([1.0], [1.0], "two or more pairs"),
        ([1.0, math.nan], [1.0, 2.0], "missing or not finite"),
    ],
)
def test_invalid_pairs_are_errors(first, second, message):
    with pytest.raises(UserError, match=message):
        differences(first, second)


def test_columns_of_one_dataset_give_a_warning():
    groups = ["CIFAR10", "CIFAR100", "CUB", "Dogs", "Dogs", "VOC"]
    (warning,) = shared_columns(groups, 6)
    assert "Columns 4 and 5 (Dogs) share their data" in warning
    assert "at most 5 of the 6 columns are independent" in warning
    assert shared_columns(None, 6) == ()
    assert shared_columns(list("abcdef"), 6) == ()
    with pytest.raises(UserError, match="5 groups were given for 6 columns"):
        shared_columns(groups[:5], 6)


def test_the_input_is_not_changed(main):
    before = {name: list(row) for name, row in main.items()}
    statistics.nemenyi(main)
    arrays = {name: np.array(row) for name, row in main.items()}
    assert average_ranks(arrays) == average_ranks(main)
    assert main == before


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.5, "p = 0.5"), (0.00261, "p = 0.0026"), (1.0, "p = 1"), (6.6e-6, "p < 0.0001")],
)
def test_p_text(p, text):
    assert p_text(p) == text


def test_join():
    assert join([]) == ""
    assert join(["a"]) == "a"
    assert join(["a", "b"]) == "a and b"
    assert join({"a": 1, "b": 2, "c": 3}) == "a, b and c"


def test_a_p_equal_to_alpha_is_not_significant():
    assert significance_text(0.01, 0.05) == "significant at the 5% level"
    assert significance_text(0.05, 0.05) == "not significant at the 5% level"
