"""The environment record, the digest of the numeric code, and the addresses of runs."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import scs_supcon
from scs_supcon.recipe import make_recipe, write_toml
from scs_supcon.runs import address
from scs_supcon.runs.environment import (
    NUMERIC_PACKAGES,
    describe_environment,
    environment_changes,
    numeric_code_digest,
)

RECIPE = {"data": {"source": "birds", "content": "0" * 64}, "method": {"name": "supcon"}}


def test_the_record_holds_versions_code_and_command():
    environment = asdict(describe_environment())
    assert environment["libraries"]["torch"] == torch.__version__.partition("+")[0]
    assert environment["threads"] == torch.get_num_threads()
    assert environment["cpu"]
    assert environment["code"] == numeric_code_digest()
    assert environment["date"].startswith("20")
    assert environment["command"]
    assert json.loads(json.dumps(environment)) == environment


def test_the_commit_is_that_of_the_checkout():
    root = Path(scs_supcon.__file__).parents[2]
    git = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    expected = git.stdout.strip() if git.returncode == 0 and (root / ".git").exists() else None
    assert describe_environment().commit == expected


def test_numeric_packages_exist():
    for package in NUMERIC_PACKAGES:
        assert (Path(scs_supcon.__file__).parent / package / "__init__.py").is_file()


def test_the_digest_is_the_same_in_another_process():
    script = "from scs_supcon.runs.environment import numeric_code_digest as d; print(d())"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == numeric_code_digest()


def test_changes_that_may_change_numbers_are_listed():
    then = {"threads": 1, "code": "a", "date": "1", "libraries": {"torch": "2.0"}}
    now = {"threads": 2, "code": "b", "date": "2", "libraries": {"torch": "2.1", "timm": "1"}}
    assert environment_changes(then, now) == [
        "threads: 1 then, 2 now",
        "the numeric code of scs-supcon has changed",
        "libraries.torch: 2.0 then, 2.1 now",
    ]
    assert environment_changes(then, then) == []
    assert environment_changes({}, now) == [], "older versions recorded fewer values"


def store(folder, recipe, code, finished=True):
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(write_toml(recipe))
    (folder / "environment.json").write_text(
        json.dumps({"libraries": {"scs-supcon": "0.1.0"}} | ({"code": code} if code else {}))
    )
    if finished:
        (folder / "finished.json").write_text("{}")


def test_an_address_depends_on_recipe_and_code_but_not_on_the_location_of_the_data(monkeypatch):
    here, there = (make_recipe(RECIPE | {"data": RECIPE["data"] | {"source": s}}) for s in "ab")
    assert address.run_address(here) == address.run_address(there)
    assert address.run_address(here) != address.run_address(make_recipe(RECIPE | {"seed": 1}))
    before = address.run_address(here)
    monkeypatch.setattr(address, "numeric_code_digest", lambda: "f" * 64)
    assert address.run_address(here) != before
    assert address.run_address(here).partition("-")[0] == before.partition("-")[0]


def test_stored_runs_are_found_by_their_recipe_with_and_without_written_options(tmp_path):
    old = make_recipe(RECIPE)
    options = {"temperature": 0.1, "loss_scale": 1.0, "anchors": "all"}
    new = make_recipe(RECIPE | {"method": {"name": "supcon", "options": options}})
    store(tmp_path / "old", old, None)
    store(tmp_path / "unfinished", new, "other", finished=False)
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "recipe.toml").write_text("not a recipe")
    runs = address.stored_runs(tmp_path)[address.recipe_key(new)]
    assert [run.name for run in runs] == ["old", "unfinished"], "finished runs come first"
    assert not any(run.same_code for run in runs)
    assert runs[0].version == "0.1.0"
    store(tmp_path / "today", new, numeric_code_digest())
    assert address.stored_runs(tmp_path)[address.recipe_key(new)][0].name == "today"


def test_stored_runs_never_import_a_plugin_that_was_not_named(tmp_path):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    name = f"{tmp_path}/trap.py:Trap"
    store(tmp_path / "run", make_recipe(RECIPE | {"method": {"name": name}}), None)
    assert address.stored_runs(tmp_path) == {}
    with pytest.raises(SystemExit, match="imported"):
        address.stored_runs(tmp_path, {name})
