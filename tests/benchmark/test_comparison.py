"""Means, the best method, and the tests over columns."""

from dataclasses import replace

import numpy as np
import pytest

from scs_supcon.benchmark.comparison import compare_methods
from scs_supcon.benchmark.metrics import find_metric
from scs_supcon.benchmark.statistics import bonferroni_dunn, friedman, nemenyi
from scs_supcon.benchmark.tables import legend, markdown_table

SEEDS = [(0, None), (1, None), (2, None)]


def over_seeds(rows, **accuracies):
    runs = rows(SEEDS, **accuracies)
    data = {"birds": "birds"}
    return compare_methods({"birds": runs}, control="good", expected_runs=3, data=data), runs


def test_mean_and_sample_deviation(rows):
    comparison, runs = over_seeds(rows, good=0.9, bad=0.4)
    (column,) = comparison.columns
    values = [runs["bad"][key].accuracy for key in SEEDS]
    assert column.means["bad"].mean == pytest.approx(np.mean(values))
    assert column.means["bad"].spread == pytest.approx(np.std(values, ddof=1))
    assert (column.best, column.level) == ("good", frozenset())
    assert comparison.rows == ("good", "bad")
    assert comparison.ranks_over == "seeds"
    assert "share their data" in comparison.ranks.warnings[-1]


def test_a_column_names_the_split_of_its_runs(rows):
    runs = rows(SEEDS, good=0.9, bad=0.4)
    untested = {
        name: {key: replace(run, split="val") for key, run in method_runs.items()}
        for name, method_runs in runs.items()
    }
    data = {"x": "x", "y": "y"}
    result = compare_methods({"x": runs, "y": untested}, control="good", expected_runs=3, data=data)
    assert [column.split for column in result.columns] == ["test", "val"]


def test_a_control_that_loses_is_reported(rows):
    runs = rows(SEEDS, good=0.4, other=0.9)
    result = compare_methods({"x": runs}, control="good", expected_runs=3, data={"x": "x"})
    assert result.columns[0].best == "other"
    assert (
        "other has the highest mean. It differs significantly from good"
        in (result.findings[0].sentences[0])
    )
    assert "good − other: -" in result.findings[1].sentences[0]


def test_incomplete_methods_are_shown_but_not_tested(rows):
    runs = rows(SEEDS, good=0.9, bad=0.4, late=0.99)
    runs["late"] = {SEEDS[0]: runs["late"][SEEDS[0]]}
    runs["never"] = {}
    result = compare_methods({"x": runs}, control="late", expected_runs=3, data={"x": "x"})
    (column,) = result.columns
    assert column.best == "good"
    assert column.means["late"].runs == 1
    assert column.means["late"].spread is None
    assert "never" not in column.means
    assert result.rows[-1] == "never"
    assert result.findings[-1].sentences == ("Not tested because runs are missing: late, never.",)


def test_a_table_without_runs(rows):
    result = compare_methods(
        {"x": {"a": {}, "b": {}}}, control="a", expected_runs=2, data={"x": "x"}
    )
    assert result.rows == ("a", "b")
    assert result.columns[0].best is None
    assert result.ranks is None


def test_several_columns_are_compared_by_ranks(rows):
    accuracies = [(0.9, 0.7, 0.5), (0.8, 0.85, 0.4), (0.95, 0.6, 0.65)]
    runs = {
        f"set {number}": rows([(number, None)], a=a, b=b, c=c)
        for number, (a, b, c) in enumerate(accuracies)
    }
    data = {"set 0": "birds", "set 1": "birds", "set 2": "cells"}
    result = compare_methods(runs, control="b", expected_runs=1, data=data)
    scores = {
        name: [column.means[name].mean for column in result.columns] for name in ("a", "b", "c")
    }
    groups = list(data.values())
    titles = [finding.title for finding in result.findings]
    assert titles[:4] == [
        "Friedman over the columns",
        "Nemenyi",
        "Bonferroni–Dunn against b",
        "Wilcoxon against b, Holm",
    ]
    assert result.findings[0].sentences[0] == friedman(scores, groups=groups).sentence
    assert "Iman and Davenport" in result.findings[0].sentences[1]
    assert result.findings[1].sentences == (nemenyi(scores, groups=groups).sentence,)
    expected = bonferroni_dunn(scores, control="b", groups=groups)
    assert result.findings[2].sentences == (expected.sentence,)
    assert any("share their data" in warning for warning in result.findings[0].warnings)
    assert titles[4].startswith("set 0. All pairs")
    assert result.ranks_over == "columns"
    assert result.rows == tuple(result.ranks.ranks)


def test_columns_without_complete_rows_have_no_ranks(rows):
    runs = {"x": rows(SEEDS[:1], a=0.9, b=0.5), "y": {"a": {}, "b": {}}}
    result = compare_methods(runs, control="a", expected_runs=1, data={"x": "x", "y": "y"})
    assert result.ranks is None
    assert result.columns[1].best is None


def test_all_means_that_look_alike_are_marked_alike(rows):
    runs = rows(SEEDS, good=0.9, bad=0.4)
    runs["same"] = runs["good"]
    result = compare_methods({"x": runs}, control="good", expected_runs=3, data={"x": "x"})
    (column,) = result.columns
    assert column.best == "good"
    assert column.tied == {"good", "same"}
    table = markdown_table(result, ())
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()}
    assert "**" in lines["good"] and "**" in lines["same"] and "**" not in lines["bad"]
    assert "≈" not in lines["good"] + lines["same"]


def test_lower_is_better_for_some_metrics(rows):
    metric = find_metric("nll")
    runs = rows(SEEDS, good=0.9, bad=0.4)
    for number, name in enumerate(runs):
        runs[name] = {k: replace(r, value=number + 0.1 * k[0]) for k, r in runs[name].items()}
    result = compare_methods(
        {"x": runs, "y": runs}, control="good", expected_runs=3, data={"x": "x", "y": "y"},
        metric=metric,
    )  # fmt: skip
    assert result.columns[0].best == "good"
    assert result.rows == ("good", "bad")
    assert result.ranks.ranks["good"] < result.ranks.ranks["bad"]
    text = legend(result, "3 seeds")
    assert "negative log-likelihood" in text
    assert "lowest mean of the column" in text
