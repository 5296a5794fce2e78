"""The whole comparison, on finished runs."""

import json
import shutil

import pytest
from markupsafe import escape

from scs_supcon.benchmark.compare import describe_repeats, dry_run, summary, write_results
from scs_supcon.benchmark.table import read_table_file
from scs_supcon.errors import UserError
from scs_supcon.progress import Display

FILES = (
    *("comparison.html", "comparison.toml", "results.csv", "statistics.json"),
    *("pairs.csv", "table.md", "table.tex", "tuning.csv"),
)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_comparison_writes_tables_statistics_figures_and_page(two_seeds, run_compare, out):
    table, runs = two_seeds
    report = run_compare(table, runs)
    assert {path.name for path in out.iterdir()} == {*FILES, "figures"}
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("accuracy", "critical_difference", "pair_parameters")
        for kind in ("png", "svg")
    }
    assert read_table_file(out / "comparison.toml") == table
    for name in ("table.md", "comparison.html"):
        assert "no method used" not in (out / name).read_text().lower()
    statistics = json.loads((out / "statistics.json").read_text())
    assert statistics["control"] == "scs_supcon"
    assert [f["title"] for f in statistics["findings"]]
    for row in report.comparison.rows:
        assert row in report.text
    assert "*: highest mean of the column" in report.text
    assert "Bold: highest mean" in (out / "table.md").read_text()
    assert not report.failed


def test_the_same_runs_give_the_same_bytes(two_seeds, run_compare, out):
    run_compare(*two_seeds)
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    run_compare(*two_seeds)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before


def test_unusable_images_are_named(shapes, small_table, run_compare, out, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "shapes")
    broken = next(data.rglob("*.png"))
    broken.write_bytes(broken.read_bytes()[:60])
    table = small_table(columns=[{"data": str(data)}])
    run_compare(table, tmp_path / "runs", display=Display(quiet=False))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out: " in line]
    assert broken.name in line
    detail = line.partition("left out: ")[2]
    assert f"\nImages that no method used:\n\n- `{detail}`" in (out / "table.md").read_text()
    page = (out / "comparison.html").read_text()
    assert "Images that no method used: 1" in page
    assert f"<li>{escape(detail)}</li>" in page


def test_methods_without_runs_have_a_dash(two_seeds, small_table, run_compare, out):
    _, runs = two_seeds
    report = run_compare(small_table(["supcon", "simclr"], seeds=3), runs)
    lines = {line.split()[0]: line for line in report.text.splitlines() if line}
    assert lines["simclr"].endswith("–")
    assert lines["supcon"].endswith("(2 of 3)")
    assert "| simclr | – |" in (out / "table.md").read_text()
    assert "simclr & -- " in (out / "table.tex").read_text()


def test_failures_are_named(two_seeds, small_table, cells_of, out):
    _, runs = two_seeds
    table = small_table(["supcon", "simclr"])
    cells = cells_of(table)
    report = write_results(table, cells, {cells[1].address: "out of memory"}, out=out, runs=runs)
    assert report.failed == {"simclr on shapes, seed 0": "out of memory"}
    values = summary(report, out)
    assert values["failed"] == dict(report.failed)
    assert values["accuracy"]["shapes"]["supcon"]["runs"] == 1
    json.dumps(values)


def test_a_dry_run_lists_runs_and_costs(two_seeds, compute, silent):
    table, runs = two_seeds
    text = dry_run(table, runs=runs, compute=compute, jobs=1, display=silent)
    assert text.count("finished") == 6
    assert text.endswith("6 runs, 0 to do")


def test_repeats_as_text(small_table):
    assert describe_repeats(small_table()) == "1 seed"
    assert describe_repeats(small_table(seeds=3)) == "3 seeds"
    assert describe_repeats(small_table(folds=5)) == "5 folds"
    assert describe_repeats(small_table(seeds=2, folds=5)) == "5 folds of 2 seeds"


def test_jobs_must_be_positive(small_table, run_compare, tmp_path):
    with pytest.raises(UserError, match="--jobs must be at least 1, got 0"):
        run_compare(small_table(), tmp_path / "runs", jobs=0)
