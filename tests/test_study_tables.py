"""The tables of docs/recommended.md are those of the committed records."""

import importlib.util
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

SCRIPT = Path(__file__).parents[1] / "experiments" / "recommended" / "tables.py"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("study_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_hold_the_tables_of_the_records(tables):
    for path in tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert tables.BLOCK.search(page), path
        assert tables.rewrite(page) == page, path


def write_record(folder: Path, scores: dict[str, list[float | None]]) -> None:
    (folder / "comparison.toml").write_text(
        'folds = 3\ncontrol = "ours"\n[[columns]]\ndata = "birds"\n'
    )
    lines = ["method,column,seed,fold,status,accuracy"]
    for method, values in scores.items():
        for fold, value in enumerate(values):
            status = "missing," if value is None else f"done,{value}"
            lines.append(f"{method},birds,0,{fold},{status}")
    (folder / "results.csv").write_text("\n".join(lines) + "\n")


def test_differences_are_paired_and_corrected_for_overlap(tables, tmp_path):
    ours, other = [0.80, 0.82, 0.81], [0.79, 0.80, 0.805]
    write_record(tmp_path, {"ours": ours, "other": other})
    gaps = 100 * (np.array(ours) - np.array(other))
    error = math.sqrt((1 / 3 + 1 / 2) * gaps.var(ddof=1))
    low, high = stats.t.interval(0.95, 2, gaps.mean(), error)
    p = 2 * stats.t.sf(gaps.mean() / error, 2)
    text = tables.accuracy_table(tmp_path)
    assert "| **ours** | 81.0 ± 1.0 | 1.0 |  |  |" in text
    assert f"+{gaps.mean():.1f} (−{-low:.1f} to +{high:.1f}) | {p:.3f} |" in text
    assert text.index("ours") < text.index("| other |")


def test_p_is_corrected_over_the_methods_and_missing_runs_are_shown(tables, tmp_path):
    ours = [0.80, 0.82, 0.81]
    scores = {"ours": ours, "a": [0.79, 0.80, 0.805], "b": [0.70, 0.71, None]}
    write_record(tmp_path, scores)
    single = {}
    for name in "ab":
        write_record(tmp_path, {"ours": ours, name: scores[name]})
        single[name] = tables.accuracy_table(tmp_path)
    write_record(tmp_path, scores)
    both = tables.accuracy_table(tmp_path)
    assert "70.5 ± 0.7 (2 of 3)" in both

    def p(text: str, name: str) -> float:
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        return float(line.split("|")[-2])

    expected = sorted(p(single[name], name) for name in "ab")
    adjusted = sorted(p(both, name) for name in "ab")
    assert adjusted[0] == pytest.approx(2 * expected[0], abs=2e-3)
    assert adjusted[1] == pytest.approx(max(expected[1], adjusted[0]), abs=2e-3)


def test_the_line_of_means_starts_with_the_highest(tables, tmp_path):
    write_record(tmp_path, {"ours": [0.80, 0.82, 0.81], "other": [0.85, 0.86, None]})
    assert tables.means_table(tmp_path) == "| other | **ours** |\n|---|---|\n| 85.5 | 81.0 |\n"


def test_pooled_images_are_compared_by_the_exact_test_of_mcnemar(tables, tmp_path):
    write_record(tmp_path, {"ours": [0.8, 0.8, 0.8]})
    (tmp_path / "pooled.csv").write_text(
        "column,method,images,correct,only_control,only_method\n"
        "birds,ours,100,80,0,0\nbirds,a,100,70,15,5\nbirds,b,100,79,3,2\n"
    )
    text = tables.pooled_table(tmp_path)
    p = 2 * sum(math.comb(20, k) for k in range(6)) / 2**20
    # Over the images, the differences of "a" are 1 (15 times), -1 (5) and 0 (80).
    differences = [1] * 15 + [-1] * 5 + [0] * 80
    margin = 100 * 1.95996 * statistics.pstdev(differences) / math.sqrt(100)
    interval = f"+10.0 (+{10 - margin:.1f} to +{10 + margin:.1f})"
    assert f"| a | 100 | 70.0 | {interval} | 15 | 5 | {2 * p:.3f} |" in text
    assert "| b | 100 | 79.0 | +1.0 (−3.4 to +5.4) | 3 | 2 | 1.000 |" in text
    assert "| ours |" not in text


def test_measures_are_averaged_over_the_runs_of_a_group(tables, tmp_path):
    (tmp_path / "measures.csv").write_text(
        "set,method,run,rejected,auroc\nbirds,ours,0,0.04,0.75\nbirds,ours,1,0.06,\nshapes,ours,0,0.05,\n"
    )
    text = tables.measures_table(tmp_path)
    assert "| set | method | runs | rejected | auroc |" in text
    assert "| birds | ours | 2 | 0.050 (0.040 to 0.060) | 0.750 |" in text
    assert "| shapes | ours | 1 | 0.050 |  |" in text
