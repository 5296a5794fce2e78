"""The tables of docs/recommended.md are those of the committed records."""

import csv
import importlib.util
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

SCRIPTS = Path(__file__).parents[1] / "experiments" / "recommended"


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"study_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables():
    return script("tables")


def test_the_pages_hold_the_tables_of_the_records(tables):
    for path in tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert tables.BLOCK.search(page), path
        assert tables.rewrite(page) == page, path


def write_record(
    folder: Path, scores: dict[str, list[float | None]], column: str = "birds"
) -> None:
    (folder / "comparison.toml").write_text(
        'folds = 3\ncontrol = "ours"\n[[columns]]\ndata = "birds"\n'
    )
    lines = ["method,column,seed,fold,status,accuracy"]
    for method, values in scores.items():
        for fold, value in enumerate(values):
            status = "missing," if value is None else f"done,{value}"
            lines.append(f"{method},{column},0,{fold},{status}")
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


def test_means_of_several_records_are_of_the_methods_that_all_have(tables, tmp_path):
    records = {
        "first": {"ours": [0.80, 0.82, 0.81], "other": [0.85, 0.86, None], "one": [0.1] * 3},
        "second": {"other": [0.5, 0.6, 0.7], "ours": [0.7] * 3, "two": [0.1] * 3},
    }
    for name, scores in records.items():
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, scores, column=name)
    assert tables.means_table(tmp_path / "first") == (
        "| set | other | **ours** | one |\n|---|---|---|---|\n| first | 85.5 | 81.0 | 10.0 |\n"
    )
    assert tables.means_table(tmp_path / "first+second") == (
        "| set | other | **ours** |\n|---|---|---|\n| first | 85.5 | 81.0 |\n"
        "| second | 60.0 | 70.0 |\n"
    )


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


def test_baselines_of_a_frozen_encoder_are_those_of_the_control(tables, tmp_path):
    (tmp_path / "comparison.toml").write_text(
        'folds = 2\ncontrol = "ours"\n[[columns]]\ndata = "birds"\nfrozen = true\n'
    )
    lines = ["method,column,seed,fold,status,accuracy,linear_probe_of_encoder,knn_on_encoder"]
    lines += ["other,birds,0,0,done,0.5,0.11,0.12", "other,birds,0,1,done,0.6,0.13,0.14"]
    lines += ["ours,birds,0,0,done,0.7,0.4,0.3", "ours,birds,0,1,done,0.8,0.42,0.32"]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n")
    scores = tables.read_scores(tmp_path)["birds"]
    assert scores["linear probe"] == pytest.approx({("0", "0"): 40.0, ("0", "1"): 42.0})
    assert scores["kNN on the features"] == pytest.approx({("0", "0"): 30.0, ("0", "1"): 32.0})
    text = (tmp_path / "results.csv").read_text()
    (tmp_path / "results.csv").write_text(text.replace("other,", "linear probe,"))
    scores = tables.read_scores(tmp_path)["birds"]
    assert scores["linear probe"] == pytest.approx({("0", "0"): 50.0, ("0", "1"): 60.0})


def write_run(folder: Path, rows: list[tuple[str, str, list[float]]]) -> None:
    """Write the test images of a run: name, label, probabilities of a, b."""
    folder.mkdir()
    (folder / "classes.json").write_text(json.dumps(["a", "b"]))
    images = [
        {"name": name, "split": "test", "label": label, "probabilities": probabilities}
        for name, label, probabilities in rows
    ]
    images.append({"name": "seen", "split": "train", "label": "a", "probabilities": [0.0, 1.0]})
    pq.write_table(pa.Table.from_pylist(images), folder / "predictions.parquet")


def test_images_are_counted_over_all_seeds_and_folds(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    runs.mkdir()
    right, wrong = [0.9, 0.1], [0.2, 0.8]
    # Two seeds of one fold. Images of label a; the order of the names differs between runs.
    write_run(runs / "ours0", [("1", "a", right), ("2", "a", right), ("3", "a", wrong)])
    write_run(runs / "ours1", [("1", "a", right), ("2", "a", wrong), ("3", "a", wrong)])
    write_run(runs / "probe0", [("3", "a", right), ("2", "a", wrong), ("1", "a", right)])
    write_run(runs / "probe1", [("1", "a", wrong), ("2", "a", wrong), ("3", "a", right)])
    (tmp_path / "comparison.toml").write_text('control = "ours"\n[[columns]]\ndata = "birds"\n')
    lines = ["method,column,seed,fold,status,run"]
    lines += ["ours,birds,0,0,done,ours0", "ours,birds,1,0,done,ours1"]
    lines += ["linear probe,birds,0,0,done,probe0", "linear probe,birds,1,0,done,probe1"]
    lines += ["ours,birds,2,0,missing,"]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("sys.argv", ["pooled.py", str(tmp_path), "--runs", str(runs)])
    script("pooled").main()
    with (tmp_path / "pooled.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    numbers = {
        name: tuple(int(row[key]) for key in ("images", "correct", "only_control", "only_method"))
        for name, row in rows.items()
    }
    assert numbers == {
        "ours": (6, 3, 0, 0),
        "linear probe": (6, 3, 2, 2),
        # Means of 0.9 and 0.2 are right: all but the second image of the second seed ...
        "average with the linear probe": (6, 5, 0, 2),
    }
