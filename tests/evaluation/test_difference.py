"""Settings and results of two runs or recipes side by side."""

import json
import shutil

import pytest

from scs_supcon.errors import UserError
from scs_supcon.evaluation.difference import describe_differences, find_differences
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.recipe import from_toml, write_toml


def test_only_what_differs_is_listed(finished, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    recipe = from_toml((finished / "recipe.toml").read_text())
    changed = recipe.model_copy(
        update={
            "seed": 5,
            "pretrain": recipe.pretrain.model_copy(update={"lr": 0.25}),
            "method": recipe.method.model_copy(
                update={"options": recipe.method.options | {"t0": 3.0}}
            ),
        }
    )
    (other / "recipe.toml").write_text(write_toml(changed))
    report = find_differences(str(finished), str(other))
    differences = {row.name: (row.first, row.second) for row in report.settings}
    assert differences == {
        "seed": (0, 5),
        "pretrain.lr": (recipe.pretrain.lr, 0.25),
        "method.options.t0": (recipe.method.options["t0"], 3.0),
    }
    accuracy = Evaluation.read(finished / "evaluation.json").accuracy
    results = {row.name: (row.first, row.second) for row in report.results}
    assert results["top-1 accuracy"][0].startswith(f"{accuracy:.2%}")
    text = describe_differences(report)
    assert "pretrain.lr" in text and "0.25" in text and f"{report.equal_settings} settings" in text
    assert "batch_size" not in text


def test_equal_runs(finished):
    report = find_differences(str(finished), str(finished))
    assert report.settings == () and report.results
    assert "no setting differs" in describe_differences(report)


@pytest.mark.parametrize("data", ["cifar100", "cub200", "voc2005"])
def test_the_paper_and_the_recommended_recipe(data):
    report = find_differences("paper", "recommended", data)
    rows = {row.name: (row.first, row.second) for row in report.settings}
    assert rows["probe.classifier"] == ("single", "bank")
    assert rows["pretrain.epochs"][0] == 1000
    assert rows["fusion.whitened"] == (False, True)
    assert rows["method.preset"] == ("paper", "solved")
    assert "data.source" not in rows
    assert report.titles == (f"paper ({data})", f"recommended ({data})")


def test_a_run_and_a_recipe_file(finished, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text((finished / "recipe.toml").read_text())
    report = find_differences(str(finished), str(file))
    assert report.settings == ()
    assert {row.second for row in report.results} == {None}  # a recipe has no results


def test_errors(tmp_path):
    with pytest.raises(UserError, match="neither a run directory nor a recipe file"):
        find_differences("papre", "paper")
    (tmp_path / "x.toml").write_text("[pretrain]\nepoch = 1\n")
    with pytest.raises(UserError, match="unknown key 'epoch'"):
        find_differences(str(tmp_path / "x.toml"), "paper")


def test_the_command(scs, finished):
    result = scs("diff", finished, "paper", "--data", "cifar10", "--json")
    assert result.code == 0, result.err
    content = json.loads(result.out)
    assert content["settings"]["probe.classifier"] == ["bank", "single"]
    assert "top-1 accuracy" in content["results"]
    assert "single" in scs("diff", finished, "paper").out
