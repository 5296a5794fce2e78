"""The committed results are complete, and their numbers follow from the stored predictions."""

import csv
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scs_supcon.recipe import from_toml
from scs_supcon.reproduce.experiment import experiment_names

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/*/README.md"))
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")


@pytest.mark.parametrize("folder", [RESULTS, *FOLDERS], ids=lambda folder: folder.name)
def test_links_point_to_existing_files(folder):
    for link in LINK.findall((folder / "README.md").read_text()):
        assert (folder / link).exists(), link


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_accuracies_follow_from_the_predictions(folder):
    assert folder.name in experiment_names()
    if not (folder / "predictions").is_dir():
        return
    with (folder / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        table = pq.read_table(folder / "predictions" / f"{row['run']}.parquet").to_pylist()
        correct = sum(image["label"] == image["prediction"] for image in table)
        assert len(table) == int(row["images"])
        assert correct / len(table) == pytest.approx(float(row["accuracy"]), abs=1e-12)
        recipe = from_toml((folder / "recipes" / f"{row['run']}.toml").read_text())
        assert recipe.seed == int(row["seed"])
        assert "/" not in recipe.data.source
