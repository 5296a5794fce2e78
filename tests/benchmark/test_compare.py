"""The whole command as a function, on runs that are there."""

import json
import shutil

import pytest
from markupsafe import escape

from scs_supcon.benchmark.compare import compare, forecast, report, spread_over, summary
from scs_supcon.benchmark.table import read_table_file
from scs_supcon.errors import UserError
from scs_supcon.progress import Display

FILES = (
    *("comparison.html", "comparison.toml", "results.csv", "statistics.json"),
    *("table.md", "table.tex"),
)


def test_what_it_leaves(two_seeds, suite_of, silent):
    table, runs = two_seeds
    suite = suite_of(table, runs)
    found = compare(suite, silent, train=False)
    assert {path.name for path in suite.out.iterdir()} == {*FILES, "figures"}
    assert {path.name for path in (suite.out / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("accuracy", "critical_difference") for kind in ("png", "svg")
    }
    assert read_table_file(suite.out / "comparison.toml") == table
    for name in ("table.md", "comparison.html"):
        assert "left out" not in (suite.out / name).read_text().lower()
    statistics = json.loads((suite.out / "statistics.json").read_text())
    assert statistics["control"] == "scs_supcon"
    assert [f["title"] for f in statistics["findings"]]
    for row in found.comparison.rows:
        assert row in found.text
    assert not found.failed


def test_the_same_runs_give_the_same_bytes(two_seeds, suite_of, silent):
    table, runs = two_seeds
    suite = suite_of(table, runs)
    compare(suite, silent, train=False)
    before = {path: path.read_bytes() for path in suite.out.rglob("*.*")}
    compare(suite, silent, train=False)
    assert {path: path.read_bytes() for path in suite.out.rglob("*.*")} == before


def test_images_that_cannot_be_used_are_named(shapes, small_table, suite_of, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "shapes")
    broken = next(data.rglob("*.png"))
    broken.write_bytes(broken.read_bytes()[:60])
    suite = suite_of(small_table(columns=[{"data": str(data)}]))
    compare(suite, Display(quiet=False), train=False)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out: " in line]
    assert broken.name in line
    detail = line.partition("left out: ")[2]
    assert f"\nLeft out by all methods:\n\n- `{detail}`" in (suite.out / "table.md").read_text()
    page = (suite.out / "comparison.html").read_text()
    assert "Images left out by all methods: 1" in page
    assert f"<li>{escape(detail)}</li>" in page


def test_a_dash_where_nothing_was_run(two_seeds, small_table, suite_of, silent):
    _, runs = two_seeds
    suite = suite_of(small_table(["supcon", "simclr"], seeds=3), runs)
    found = compare(suite, silent, train=False)
    lines = {line.split()[0]: line for line in found.text.splitlines() if line}
    assert lines["simclr"].endswith("–")
    assert lines["supcon"].endswith("(2 of 3)")
    assert "| simclr | – |" in (suite.out / "table.md").read_text()
    assert "simclr & -- " in (suite.out / "table.tex").read_text()


def test_failures_are_named(two_seeds, small_table, cells_of, suite_of):
    _, runs = two_seeds
    table = small_table(["supcon", "simclr"])
    cells = cells_of(table)
    found = report(suite_of(table, runs), cells, {cells[1].address: "out of memory"})
    assert found.failed == {"simclr on shapes, seed 0": "out of memory"}
    said = summary(found, suite_of(table, runs).out)
    assert said["failed"] == dict(found.failed)
    assert said["accuracy"]["shapes"]["supcon"]["runs"] == 1
    json.dumps(said)


def test_what_a_dry_run_says(two_seeds, suite_of, silent):
    table, runs = two_seeds
    text = forecast(suite_of(table, runs), silent)
    assert text.count("finished") == 6
    assert text.endswith("6 runs, 0 to do")


def test_the_spread_has_a_name(small_table):
    assert spread_over(small_table()) == "1 seed"
    assert spread_over(small_table(seeds=3)) == "3 seeds"
    assert spread_over(small_table(folds=5)) == "5 folds"
    assert spread_over(small_table(seeds=2, folds=5)) == "5 folds of 2 seeds"


def test_no_jobs(small_table, suite_of, silent):
    with pytest.raises(UserError, match="--jobs is 0"):
        compare(suite_of(small_table(), jobs=0), silent)
