"""Tables for the terminal, Markdown and LaTeX."""

from dataclasses import replace

import pytest

from scs_supcon.benchmark.comparison import ColumnResult, Comparison, MeanScore
from scs_supcon.benchmark.tables import latex_table, legend, markdown_table, mean_text, text_table


@pytest.fixture
def comparison():
    birds = ColumnResult(
        "birds_50",
        3,
        {
            "a_b": MeanScore(78.404, 0.306, 3),
            "c": MeanScore(77.1, 0.2, 3),
            "d|$": MeanScore(70.0, None, 1),
        },
        "a_b",
        frozenset({"a_b"}),
        frozenset({"c"}),
        (),
    )
    cells = ColumnResult(
        "cells", 3, {"c": MeanScore(91.26, 1.04, 3)}, "c", frozenset({"c"}), frozenset(), ()
    )
    return Comparison(("a_b", "c", "d|$", "never"), (birds, cells), (), None, "")


def test_terminal_table(comparison):
    assert text_table(comparison, {"a_b"}).splitlines() == [
        "method         birds_50        cells",
        "-------------  --------------  --------------",
        "c              77.10 ± 0.20 ≈  91.26 ± 1.04 *",
        "a_b (adapted)  78.40 ± 0.31 *  –",
        "d|$            70.00 (1 of 3)  –",
        "never          –               –",
    ]


def test_markdown_table(comparison):
    assert markdown_table(comparison, {"a_b"}).splitlines() == [
        r"| method | birds\_50 | cells |",
        "| --- | ---: | ---: |",
        "| c | 77.10 ± 0.20 ≈ | **91.26 ± 1.04** |",
        r"| a\_b (adapted) | **78.40 ± 0.31** | – |",
        r"| d\|$ | 70.00 (1 of 3) | – |",
        "| never | – | – |",
    ]


def test_latex_table(comparison):
    lines = latex_table(comparison, set()).splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}"
    assert r"c & 77.10 $\pm$ 0.20\,$\approx$ & \textbf{91.26 $\pm$ 1.04} \\" in lines
    assert r"a\_b & \textbf{78.40 $\pm$ 0.31} & -- \\" in lines
    assert r"d|\$ & 70.00 (1 of 3) & -- \\" in lines
    assert lines[-1] == r"\end{tabular}"


def test_the_legend_explains_the_marks_in_use(comparison):
    text = legend(comparison, "3 seeds")
    assert "over 3 seeds" in text
    assert "Adapted" not in text
    assert "Adapted: " in legend(comparison, "3 seeds", {"a_b"})
    assert "(2 of 3): number of finished runs" in text
    assert text.endswith("–: not run.")


def test_the_legend_names_columns_without_a_test_split(comparison):
    assert legend(comparison, "3 seeds").startswith("Test accuracy")
    birds, cells = comparison.columns
    birds = replace(birds, split="val")
    partial = legend(replace(comparison, columns=(birds, cells)), "3 seeds")
    assert partial.startswith("Test accuracy")
    assert "birds_50: validation accuracy. There is no test split" in partial
    every = legend(replace(comparison, columns=(birds,)), "3 seeds")
    assert every.startswith("Validation accuracy")
    assert "temperature" in every


def test_a_missing_mean_is_a_dash(comparison):
    assert mean_text(comparison.columns[0], "never") == "–"
