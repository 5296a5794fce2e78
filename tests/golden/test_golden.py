"""What revision 54d96af has written can still be read: runs, models, caches, recipes.

The files were made by `make_golden.py`; README.md says what each of them is. Everything that may be
renamed is named in the first part of this file: attributes, JSON keys and options.
"""

import csv
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import version as _version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import scs_supcon

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
COMMANDS = json.loads((HERE / "commands.json").read_text(encoding="utf-8"))
PLAIN = ("data", "other", "recipes", "table.csv")
CLOSE = 1e-6  # probabilities and similarities of a loaded model

# ---- Names that may change: adapt them here and nowhere else. ----


def command(line: list[str]) -> list[str]:
    """An old command line as this version spells it."""
    return line


def predictions_of(model: Any, paths: list[str]) -> dict[str, dict[str, Any]]:
    said = model.predict(paths, topk=3)
    assert not said.failures
    return {
        one.name: {
            "label": one.label,
            "probability": one.probability,
            "top": [list(pair) for pair in one.top],
            "unknown": one.none_of_these,
            "nearest": one.nearest,
            "similarity": one.similarity,
        }
        for one in said.records
    }


def embeddings_of(model: Any, paths: list[str]) -> dict[str, dict[str, list[float]]]:
    found = model.embed(paths)
    return {
        name: {"common": common.tolist(), "style": style.tolist()}
        for name, common, style in zip(found.names, found.common, found.style, strict=True)
    }


def neighbours_of(model: Any, path: str, count: int) -> list[list[Any]]:
    return [[one.name, one.label, one.similarity] for one in model.neighbours(path, count)]


def rules_of(model: Any) -> dict[str, Any]:
    """What the model decides by."""
    facts = model.facts
    return {
        "classes": list(model.classes),
        "readout": facts.readout,
        "temperature": facts.temperature,
        "sharpness": facts.sharpness,
        "rule": facts.boundary.rule,
        "threshold": facts.boundary.threshold,
        "val_rejected": facts.boundary.val_rejected,
    }


def accuracy_of(evaluation: dict[str, Any]) -> float:
    """The accuracy in the record that `evaluate` returns."""
    return evaluation["scores"]["acc1"]["value"]


def listed(row: dict[str, Any]) -> tuple[str, bool, float | None]:
    """Path, whether finished, and accuracy in a row of `scs runs --json`."""
    return row["path"], row["finished"], row["accuracy"]


def meaning(recipe: dict[str, Any]) -> dict[str, Any]:
    """The values of a resolved recipe by their old names.

    A recipe of the method scs_supcon without a preset means the preset "solved".
    """
    recipe = {**recipe, "method": {"options": {}, **recipe["method"]}}
    if recipe["method"]["name"] == "scs_supcon":
        recipe["method"] = {"preset": "solved", **recipe["method"]}
    return recipe


def names_the_version(text: str) -> bool:
    """Whether a refusal says which version made the files."""
    made_by = r"version that (began|made|trained|wrote)|version 0\.1\.0|scs-supcon 0\.1\.0|54d96af"
    return re.search(made_by, text) is not None


# ---- Tools ----


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


@pytest.fixture(autouse=True)
def one_thread():
    """The numbers were computed with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """All golden files in one folder; look at them, do not touch them."""
    folder = tmp_path_factory.mktemp("golden")
    for name in PLAIN:
        source = HERE / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)
    with tarfile.open(HERE / "golden.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def golden(unpacked, tmp_path, monkeypatch):
    """`golden("runs/default", "cache")`: copies of these, beside the data, as current folder."""

    def copy(*names: str) -> Path:
        for name in (*PLAIN, "weights.safetensors", *names):
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (unpacked / name).is_dir():
                shutil.copytree(unpacked / name, target)
            else:
                shutil.copyfile(unpacked / name, target)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SCS_CACHE", str(tmp_path / "cache"))
        return tmp_path

    return copy


@pytest.fixture
def scs(monkeypatch, capsys):
    """`scs("train", ...)`: the command line, in this process."""

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["scs", *command(list(arguments))])
        code = 0
        try:
            runpy.run_module("scs_supcon", run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Said(code, *capsys.readouterr())

    return run


def scs_alone(*arguments: str) -> Said:
    """The command line in a process of its own, for commands that start processes."""
    line = [sys.executable, "-m", "scs_supcon", *command(list(arguments))]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but locks."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if not file.name.endswith("lock") and file.name != ".filling"
    }


def same_answers(model: Any, expected: dict[str, Any]) -> None:
    found = predictions_of(model, list(expected["predictions"]))
    assert list(found) == list(expected["predictions"])
    for name, one in expected["predictions"].items():
        for key in ("label", "unknown", "nearest"):
            assert found[name][key] == one[key], (name, key)
        for key in ("probability", "similarity"):
            assert found[name][key] == pytest.approx(one[key], rel=0, abs=CLOSE), (name, key)
        chances = dict(found[name]["top"])
        assert chances == pytest.approx(dict(one["top"]), rel=0, abs=CLOSE), name


def same_training(model: Any, expected: dict[str, Any]) -> None:
    """What was trained here: another processor or library may round in another way."""
    versions = {name: _version(name) for name in ("torch", "torchvision", "pillow", "numpy")}
    same = versions.items() <= EXPECTED["libraries"].items() and EXPECTED["cpu"] in _processor()
    if same:
        same_answers(model, expected)
        return
    found = predictions_of(model, list(expected["predictions"]))
    for name, one in expected["predictions"].items():
        assert dict(found[name]["top"]) == pytest.approx(dict(one["top"]), rel=0, abs=1e-2), name


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


# ---- Models and finished runs ----


@pytest.mark.parametrize("name", EXPECTED["finished"])
def test_a_run_gives_the_same_answers(name, golden):
    golden(f"runs/{name}")
    model = scs_supcon.load(f"runs/{name}")
    expected = EXPECTED["finished"][name]
    same_answers(model, expected)
    rules = rules_of(model)
    assert (rules["classes"], rules["readout"]) == (expected["classes"], expected["readout"])
    assert rules["rule"] == expected["boundary"]["rule"]
    for key in ("threshold", "val_rejected"):
        assert rules[key] == pytest.approx(expected["boundary"][key], abs=1e-9)
    for key in ("temperature", "sharpness"):
        assert rules[key] == pytest.approx(expected[key], rel=1e-9)


@pytest.mark.parametrize("name", EXPECTED["finished"])
def test_a_run_gives_the_same_embeddings_and_neighbours(name, golden):
    golden(f"runs/{name}")
    model = scs_supcon.load(f"runs/{name}/model")
    expected = EXPECTED["finished"][name]
    found = embeddings_of(model, list(expected["embeddings"]))
    for image, vectors in expected["embeddings"].items():
        for part, values in vectors.items():
            assert found[image][part][:8] == pytest.approx(values, rel=0, abs=CLOSE)
    neighbours = neighbours_of(model, "other/disc/01.png", 3)
    assert [one[:2] for one in neighbours] == [one[:2] for one in expected["neighbours"]]
    assert [one[2] for one in neighbours] == pytest.approx(
        [one[2] for one in expected["neighbours"]], rel=0, abs=CLOSE
    )


def test_a_model_with_an_added_class_gives_the_same_answers(golden):
    golden("models/added_class")
    model = scs_supcon.load("models/added_class")
    expected = EXPECTED["models"]["added_class"]
    assert rules_of(model)["classes"] == expected["classes"]
    same_answers(model, expected)


def test_a_model_saved_again_gives_the_same_answers(golden):
    golden("models/added_class")
    scs_supcon.load("models/added_class").save("models/again")
    same_answers(scs_supcon.load("models/again"), EXPECTED["models"]["added_class"])


def test_predicting_on_the_command_line(golden, scs):
    golden("runs/baseline")
    said = scs("predict", "runs/baseline", "data/disc/01.png", "--format", "csv", "--quiet")
    assert said.code == 0, said.err
    label = EXPECTED["finished"]["baseline"]["predictions"]["data/disc/01.png"]["label"]
    assert re.search(rf"^data/disc/01\.png,{label},", said.out, re.MULTILINE)


def test_the_runs_are_listed(unpacked, monkeypatch, scs):
    monkeypatch.chdir(unpacked)
    said = scs("runs", ".", "--json")
    assert said.code == 0, said.err
    rows = {Path(path).as_posix(): rest for path, *rest in map(listed, json.loads(said.out))}
    for name, expected in EXPECTED["finished"].items():
        assert rows[f"runs/{name}"] == [True, pytest.approx(expected["accuracy"])]
    for name in EXPECTED["unfinished"]:
        assert rows[f"unfinished/{name}"] == [False, None]
    assert scs("runs", ".").code == 0


@pytest.mark.parametrize("name", ["default", "table"])
def test_a_report_can_be_made(name, golden, scs):
    golden(f"runs/{name}")
    said = scs("report", f"runs/{name}")
    assert said.code == 0, said.err
    page = Path(f"runs/{name}/report.html").read_text(encoding="utf-8")
    page = re.sub(r"&nbsp;|[\u00a0\u202f]", " ", page)
    assert f"{100 * EXPECTED['finished'][name]['accuracy']:.1f} %" in page
    assert all(label in page for label in EXPECTED["finished"][name]["classes"])
    assert ("cross/12.png" in page) == (name == "default"), "the broken image is named"
    assert [*Path(f"runs/{name}/figures").iterdir()]


@pytest.mark.parametrize("name", EXPECTED["finished"])
def test_the_record_of_a_run_is_read(name, golden):
    golden(f"runs/{name}")
    record = scs_supcon.evaluate(f"runs/{name}")
    assert accuracy_of(record) == pytest.approx(EXPECTED["finished"][name]["accuracy"])


@pytest.mark.parametrize("name", ["default", "frozen"])
def test_a_run_is_evaluated_on_other_data(name, golden, scs):
    golden(f"runs/{name}", "cache")
    before = contents(Path(f"runs/{name}/evaluations"))
    assert before
    options = ("--workers", "0", "--device", "cpu", "--quiet", "--json")
    said = scs("evaluate", f"runs/{name}", "other", *options)
    assert said.code == 0, said.err
    expected = EXPECTED["evaluated"][name]["acc1"]["value"]
    assert accuracy_of(json.loads(said.out)) == pytest.approx(expected)
    after = contents(Path(f"runs/{name}/evaluations"))
    assert before.items() <= after.items(), "an evaluation of other data is replaced"


@pytest.mark.parametrize("name", EXPECTED["finished"])
def test_a_finished_run_is_not_trained_again(name, golden, scs):
    golden(f"runs/{name}")
    before = contents(Path(f"runs/{name}"))
    said = scs(*COMMANDS["finished"][name])
    assert said.code == 0, said.err
    assert "is finished" in said.text
    assert contents(Path(f"runs/{name}")) == before


def test_another_recipe_is_refused(golden, scs):
    golden("runs/paper")
    before = contents(Path("runs/paper"))
    said = scs(*COMMANDS["finished"]["paper"], "--set", "pretrain.lr=0.03")
    assert said.code == 2
    assert "pretrain.lr: 0.1 then, 0.03 now" in said.err
    assert contents(Path("runs/paper")) == before


def test_a_run_is_a_start_for_another(golden, scs):
    golden("runs/paper")
    said = scs("train", "data", "--init-from", "runs/paper", "--device", "cpu", "--print-recipe")
    assert said.code == 0, said.err
    then, now = (
        tomllib.loads(text)
        for text in (Path("runs/paper/recipe.toml").read_text(encoding="utf-8"), said.out)
    )
    assert now["head"] == then["head"]
    assert now["data"]["image_size"] == then["data"]["image_size"]
    assert now["encoder"]["weights"] == (
        f"sha256:{EXPECTED['finished']['paper']['weights_sha256']}"
    )


# ---- Unfinished runs ----


@pytest.mark.parametrize("name", EXPECTED["unfinished"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # another environment
def test_an_unfinished_run_goes_on_or_is_refused(name, golden, scs):
    golden(f"unfinished/{name}", "cache")
    run, expected = Path(f"unfinished/{name}"), EXPECTED["unfinished"][name]
    before = contents(run / "checkpoints")
    marked = _mark_metrics(run / "metrics.csv")
    said = scs(*COMMANDS["unfinished"][name])
    if said.code:
        assert names_the_version(said.text), said.text
        assert before.items() <= contents(run / "checkpoints").items(), "what was saved is lost"
        return
    now = (run / "metrics.csv").read_bytes()
    assert now.startswith(marked), "the run began again from the start"
    summary = json.loads((run / "finished.json").read_text(encoding="utf-8"))
    one_image = 1 / expected["test_images"]
    assert summary["accuracy"] == pytest.approx(expected["accuracy"], abs=one_image / 2)
    same_training(scs_supcon.load(run), expected)
    assert not [*run.rglob("*.tmp")]
    assert not (run / "features").exists()


def _mark_metrics(file: Path) -> bytes:
    """Change the first number: a run that goes on keeps the line, one that restarts does not."""
    content = file.read_bytes()
    lines = content.splitlines(keepends=True)
    number = lines[1].rstrip(b"\n")
    digit = b"1" if number[-1:] != b"1" else b"2"
    marked = b"".join([lines[0], number[:-1] + digit + b"\n"])
    file.write_bytes(marked + content[len(marked) :])
    return marked


# ---- Features ----


@pytest.mark.parametrize("recipe", ["method_only", "solved"])
def test_features_are_used_again_and_no_preset_means_solved(recipe, golden, scs):
    golden("cache")
    before = contents(Path("cache"))
    line = [*COMMANDS["finished"]["frozen"], "--recipe", f"recipes/{recipe}.toml"]
    line[line.index("--out") + 1] = "again"
    said = scs(*line)
    assert said.code == 0, said.err
    assert "damaged" not in said.text
    assert contents(Path("cache")) == before, "features were removed or computed again"
    assert sorted(f"cache/{name}" for name in before) == EXPECTED["features"]
    same_training(scs_supcon.load("again"), EXPECTED["finished"]["frozen"])


def test_damaged_features_are_still_noticed(golden, scs):
    golden("cache")
    for name in EXPECTED["features"]:
        Path(name).write_bytes(Path(name).read_bytes()[:-4] + b"\1\2\3\4")
    line = list(COMMANDS["finished"]["frozen"])
    line[line.index("--out") + 1] = "again"
    assert scs(*line).code == 0
    same_training(scs_supcon.load("again"), EXPECTED["finished"]["frozen"])


# ---- Recipes ----

RECIPES = sorted(file.stem for file in (HERE / "recipes").glob("*.toml"))
WRITTEN = [name for name in RECIPES if not name.startswith("resolved_")]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_keeps_its_meaning(name, golden, scs):
    golden()
    said = scs(
        "train", "data", "--recipe", f"recipes/{name}.toml", "--device", "cpu", "--print-recipe"
    )
    assert said.code == 0, said.err
    resolved = Path(f"recipes/resolved_{name.removeprefix('resolved_')}.toml")
    old = tomllib.loads(resolved.read_text(encoding="utf-8"))
    assert meaning(tomllib.loads(said.out)) == meaning(old)


def test_other_presets_are_not_solved(golden, scs):
    golden()
    texts = {}
    for name in ("method_only", "paper", "siglip"):
        line = ("train", "data", "--recipe", f"recipes/{name}.toml", "--device", "cpu")
        texts[name] = meaning(tomllib.loads(scs(*line, "--print-recipe").out))
    assert {name: text["head"]["centre"] for name, text in texts.items()} == {
        "method_only": True,
        "paper": False,
        "siglip": False,
    }
    assert texts["paper"]["method"]["preset"] == "paper"


# ---- Comparisons and searches ----


def test_a_comparison_uses_its_runs_again_or_says_why_not(golden):
    golden("cache", "compared", "comparisons")
    before = contents(Path("compared"))
    assert sorted(p.name for p in Path("compared").iterdir()) == sorted(
        row["run"] for row in EXPECTED["compared"].values()
    )
    said = scs_alone(*COMMANDS["compare"])
    assert before.items() <= contents(Path("compared")).items(), "old runs are left alone"
    if said.code or contents(Path("compared")).keys() != before.keys():
        assert names_the_version(said.text), f"it does not say why it trains again: {said.text}"
        return
    with Path("comparisons/data/results.csv").open(newline="", encoding="utf-8") as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    for method, expected in EXPECTED["compared"].items():
        assert found[method]["run"] == expected["run"]
        assert float(found[method]["accuracy"]) == expected["accuracy"]


def test_the_table_file_of_a_comparison_is_read(golden):
    golden("cache", "compared", "comparisons")
    options = ("--runs", "compared", "--cache", "cache", "--device", "cpu", "--offline")
    said = scs_alone("compare", "comparisons/data/comparison.toml", *options, "--dry-run")
    assert said.code == 0, said.err
    if not names_the_version(said.text):
        assert "2 runs, 0 to do" in said.out


def test_a_search_goes_on(golden):
    golden("cache", "tunings")
    before = Path("tunings/data/best.toml").read_bytes()
    trials = contents(Path("tunings/data/trials"))
    said = scs_alone(*COMMANDS["tune"])
    assert trials.items() <= contents(Path("tunings/data/trials")).items()
    if said.code:
        assert names_the_version(said.text), said.text
        return
    assert Path("tunings/data/best.toml").read_bytes() == before
    with Path("tunings/data/trials.csv").open(newline="", encoding="utf-8") as file:
        assert [*csv.DictReader(file)] == EXPECTED["trials"]


# ---- Export ----


def test_an_exported_file_gives_the_same_answers(unpacked, monkeypatch):
    """The names in the file are what programs such as examples/onnx_predict.py use."""
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(unpacked)
    session = onnxruntime.InferenceSession("exported/supcon.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["scs_supcon"])
    expected = EXPECTED["finished"]["supcon"]
    assert facts["classes"] == expected["classes"]
    assert (facts["prepare"]["short_side"], facts["prepare"]["centre_crop"]) == (16, 16)
    names = [name for name in expected["predictions"] if name.endswith(".png")]
    pixels = np.stack([np.asarray(Image.open(name).convert("RGB")) for name in names])
    chances, unknown = session.run(["probabilities", "none_of_these"], {"pixels": pixels})
    for name, row, refused in zip(names, chances, unknown, strict=True):
        one = expected["predictions"][name]
        assert row.max() == pytest.approx(one["probability"], abs=1e-5)
        assert (facts["classes"][row.argmax()], bool(refused)) == (one["label"], one["unknown"])
