"""The table of means, who is best, and the tests over columns."""

from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.benchmark.comparison import compare_methods
from scs_supcon.benchmark.statistics import bonferroni_dunn, friedman, nemenyi

SEEDS = [(0, None), (1, None), (2, None)]


def over_seeds(rows, **chances):
    made = rows(SEEDS, **chances)
    data = {"birds": "birds"}
    return compare_methods({"birds": made}, control="good", wanted=3, data=data), made


def test_mean_and_sample_deviation(rows):
    comparison, made = over_seeds(rows, good=0.9, bad=0.4)
    (column,) = comparison.columns
    values = [made["bad"][key].accuracy for key in SEEDS]
    assert column.means["bad"].mean == pytest.approx(np.mean(values))
    assert column.means["bad"].spread == pytest.approx(np.std(values, ddof=1))
    assert (column.best, column.level) == ("good", frozenset())
    assert comparison.rows == ("good", "bad")
    assert comparison.ranks_over == "seeds"
    assert "share their data" in comparison.ranks.warnings[-1]


def test_a_column_says_what_its_runs_were_judged_on(rows):
    made = rows(SEEDS, good=0.9, bad=0.4)
    untested = {
        name: {key: replace(judged, judged_on="val") for key, judged in cells.items()}
        for name, cells in made.items()
    }
    data = {"x": "x", "y": "y"}
    found = compare_methods({"x": made, "y": untested}, control="good", wanted=3, data=data)
    assert [column.judged_on for column in found.columns] == ["test", "val"]


def test_the_control_may_lose_and_that_is_said(rows):
    made = rows(SEEDS, good=0.4, other=0.9)
    found = compare_methods({"x": made}, control="good", wanted=3, data={"x": "x"})
    assert found.columns[0].best == "other"
    assert "other has the highest mean. It is set apart from good" in found.findings[0].sentences[0]
    assert "good − other: -" in found.findings[1].sentences[0]


def test_rows_without_all_their_runs_are_shown_but_not_tested(rows):
    made = rows(SEEDS, good=0.9, bad=0.4, late=0.99)
    made["late"] = {SEEDS[0]: made["late"][SEEDS[0]]}
    made["never"] = {}
    found = compare_methods({"x": made}, control="late", wanted=3, data={"x": "x"})
    (column,) = found.columns
    assert column.best == "good"
    assert column.means["late"].runs == 1
    assert column.means["late"].spread is None
    assert "never" not in column.means
    assert found.rows[-1] == "never"
    assert found.findings[-1].sentences == (
        "Left out of the tests, for want of runs: late, never.",
    )


def test_nothing_was_run(rows):
    found = compare_methods({"x": {"a": {}, "b": {}}}, control="a", wanted=2, data={"x": "x"})
    assert found.rows == ("a", "b")
    assert found.columns[0].best is None
    assert found.ranks is None


def test_several_columns_are_compared_by_ranks(rows):
    chances = [(0.9, 0.7, 0.5), (0.8, 0.85, 0.4), (0.95, 0.6, 0.65)]
    judged = {
        f"set {number}": rows([(number, None)], a=a, b=b, c=c)
        for number, (a, b, c) in enumerate(chances)
    }
    data = {"set 0": "birds", "set 1": "birds", "set 2": "cells"}
    found = compare_methods(judged, control="b", wanted=1, data=data)
    scores = {
        name: [column.means[name].mean for column in found.columns] for name in ("a", "b", "c")
    }
    groups = list(data.values())
    titles = [finding.title for finding in found.findings]
    assert titles[:4] == [
        "Friedman over the columns",
        "Nemenyi",
        "Bonferroni–Dunn against b",
        "Wilcoxon against b, Holm",
    ]
    assert found.findings[0].sentences[0] == friedman(scores, groups=groups).sentence
    assert "Iman and Davenport" in found.findings[0].sentences[1]
    assert found.findings[1].sentences == (nemenyi(scores, groups=groups).sentence,)
    expected = bonferroni_dunn(scores, control="b", groups=groups)
    assert found.findings[2].sentences == (expected.sentence,)
    assert any("share their data" in warning for warning in found.findings[0].warnings)
    assert titles[4].startswith("set 0. All pairs")
    assert found.ranks_over == "columns"
    assert found.rows == tuple(found.ranks.ranks)


def test_columns_without_complete_rows_have_no_ranks(rows):
    judged = {"x": rows(SEEDS[:1], a=0.9, b=0.5), "y": {"a": {}, "b": {}}}
    found = compare_methods(judged, control="a", wanted=1, data={"x": "x", "y": "y"})
    assert found.ranks is None
    assert found.columns[1].best is None
