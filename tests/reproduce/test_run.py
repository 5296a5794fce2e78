"""All experiments, on a few small images."""

import csv
import re

import pytest

from scs_supcon.reproduce.experiment import experiment_names

QUICK = (
    *("--device", "cpu", "--quiet", "--set", "pretrain.epochs=1", "--set", "probe.epochs=2"),
    *("--set", "pretrain.batch_size=8", "--set", "data.test_share=0.34"),
    *("--set", "data.val_share=0.2", "--row", "SCS-SupCon"),
)
LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.mark.slow
def test_every_table_and_figure_is_written_and_can_be_verified(scs, shapes, tmp_path):
    data = ("--data", f"cifar100={shapes}", "--data", f"cub200={shapes}")
    folders = ("--out", tmp_path / "results", "--runs", tmp_path / "runs")
    result = scs("reproduce", "all", *data, *folders, *QUICK)
    assert result.code == 0, result.err
    results = tmp_path / "results" / "smoke"
    assert {folder.name for folder in results.iterdir()} == set(experiment_names())
    for name in experiment_names():
        page = (results / name / "README.md").read_text()
        assert str(tmp_path) not in page
        for link in LINK.findall(page):
            assert (results / name / link).is_file(), (name, link)
        kind = "figures/" if name.startswith("figure") else "recipes/"
        assert kind in page
    for recipe in results.glob("*/recipes/*.toml"):
        assert str(tmp_path) not in recipe.read_text()
        assert str(shapes) not in recipe.read_text()
    search = (results / "table7_bayesopt" / "README.md").read_text()
    assert re.search(r"\| \d+\.\d\d \[0\]\(recipes/", search)  # accuracies link to their recipes
    table = results / "table8_ablation"
    with (table / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"SCS-SupCon", "Baseline"}
    assert str(tmp_path) not in (table / "table.toml").read_text()
    assert "| SCS-SupCon | " in (table / "README.md").read_text()
    assert "79.2 |" in (table / "README.md").read_text()  # the published number
    neighbours = re.compile(r"\| kNN[^|]*\| \d+\.\d\d \[0\]\(recipes/")
    assert neighbours.search((table / "README.md").read_text())

    again = scs("reproduce", "--verify", table, *data, "--device", "cpu", "--quiet")
    assert again.code == 0, again.err
    assert "agrees: all " in again.out
    missing = scs("reproduce", "--verify", table, "--device", "cpu", "--quiet")
    assert missing.code == 2
    assert "add --data cifar100=PATH" in missing.err


def test_the_published_ranks_need_no_images(scs, tmp_path, monkeypatch):
    monkeypatch.delenv("SCS_DATA", raising=False)
    result = scs(
        "reproduce", "figure_cd", "--out", tmp_path, "--runs", tmp_path / "runs", "--quiet"
    )
    assert result.code == 0, result.err
    page = (tmp_path / "smoke" / "figure_cd" / "README.md").read_text()
    assert "CD = 8.7561" in page
    assert "Mean ranks: SCS-SupCon 1.083, CSTCN 4.000" in page
    assert "run `scs reproduce table3_main` first" in page
