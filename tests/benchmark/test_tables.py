"""Terminal, Markdown and LaTeX: the same numbers, the marks, the dashes."""

from dataclasses import replace

import pytest

from scs_supcon.benchmark.comparison import ColumnResult, Comparison, Mean
from scs_supcon.benchmark.tables import latex_table, legend, markdown_table, number, text_table


@pytest.fixture
def comparison():
    birds = ColumnResult(
        "birds_50",
        3,
        {
            "a_b": Mean(78.404, 0.306, 3),
            "c": Mean(77.1, 0.2, 3),
            "d|$": Mean(70.0, None, 1),
        },
        "a_b",
        frozenset({"c"}),
        (),
    )
    cells = ColumnResult("cells", 3, {"c": Mean(91.26, 1.04, 3)}, "c", frozenset(), ())
    return Comparison(("a_b", "c", "d|$", "never"), (birds, cells), (), None, "")


def test_terminal(comparison):
    assert text_table(comparison, {"a_b"}).splitlines() == [
        "method         birds_50        cells",
        "-------------  --------------  --------------",
        "c              77.10 ± 0.20 ≈  91.26 ± 1.04 *",
        "a_b (adapted)  78.40 ± 0.31 *  –",
        "d|$            70.00 (1 of 3)  –",
        "never          –               –",
    ]


def test_markdown(comparison):
    assert markdown_table(comparison, {"a_b"}).splitlines() == [
        r"| method | birds\_50 | cells |",
        "| --- | ---: | ---: |",
        "| c | 77.10 ± 0.20 ≈ | **91.26 ± 1.04** |",
        r"| a\_b (adapted) | **78.40 ± 0.31** | – |",
        r"| d\|$ | 70.00 (1 of 3) | – |",
        "| never | – | – |",
    ]


def test_latex(comparison):
    lines = latex_table(comparison, set()).splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}"
    assert r"c & 77.10 $\pm$ 0.20\,$\approx$ & \textbf{91.26 $\pm$ 1.04} \\" in lines
    assert r"a\_b & \textbf{78.40 $\pm$ 0.31} & -- \\" in lines
    assert r"d|\$ & 70.00 (1 of 3) & -- \\" in lines
    assert lines[-1] == r"\end{tabular}"


def test_legend_explains_what_occurs(comparison):
    text = legend(comparison, "3 seeds")
    assert "over 3 seeds" in text
    assert "only so many runs" in text
    assert text.endswith("–: not run.")


def test_legend_says_where_there_is_no_test_part(comparison):
    assert legend(comparison, "3 seeds").startswith("Test accuracy")
    birds, cells = comparison.columns
    birds = replace(birds, judged_on="val")
    some = legend(replace(comparison, columns=(birds, cells)), "3 seeds")
    assert some.startswith("Test accuracy")
    assert "birds_50: validation accuracy. There is no test split" in some
    every = legend(replace(comparison, columns=(birds,)), "3 seeds")
    assert every.startswith("Validation accuracy")
    assert "chose the classifier and the temperature" in every


def test_number(comparison):
    assert number(comparison.columns[0], "never") == "–"
