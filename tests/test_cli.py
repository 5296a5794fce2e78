"""The command from end to end, as a new user would type it."""

import csv
import io
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.methods import available
from scs_supcon.model import load

VERBS = ("train", "predict", "embed", "methods", "show", "runs")
QUICK = (
    *("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1"),
)


@pytest.fixture
def runs(tmp_path, finished):
    """A folder with one finished run, x."""
    shutil.copytree(finished, tmp_path / "runs" / "x")
    return tmp_path / "runs"


@pytest.fixture
def odd(tmp_path, shapes):
    """A folder with three pictures, one of them cut short, and a text that is called a picture."""
    folder = tmp_path / "odd"
    folder.mkdir()
    first, second, third = sorted((shapes / "bar").iterdir())[:3]
    shutil.copy(first, folder / "a.png")
    shutil.copy(second, folder / "b.png")
    (folder / "cut.png").write_bytes(third.read_bytes()[:60])
    (folder / "text.jpg").write_text("hello")
    return folder


def accuracy(run):
    return f"{json.loads((run / 'finished.json').read_text())['accuracy']:.2%}"


def test_train_ends_with_the_result_and_says_what_it_expects_before(scs, shapes, tmp_path):
    said = scs("train", shapes, "--out", tmp_path / "run", *QUICK)
    assert said.code == 0
    assert said.out.startswith(f"{accuracy(tmp_path / 'run')} of 4 test pictures right (95 % inter")
    for part in (
        "kNN on the readout",
        "linear probe of the encoder",
        "spread of the bank of heads",
    ):
        assert part in said.out
    assert f"scs predict {tmp_path / 'run'} picture.jpg" in said.out
    titles = [line.split()[0] for line in said.err.splitlines()]
    order = ["checking", "data", "encoder", "batches", "pairs", "stage", "stage", "features:"]
    assert titles[: len(order)] == order, "the forecast comes before the first epoch"
    again = scs("train", shapes, "--out", tmp_path / "run", *QUICK)
    assert again.code == 0
    assert f"is finished: {accuracy(tmp_path / 'run')}" in again.err
    assert again.out == said.out


def test_train_as_json_for_programs(scs, shapes, runs):
    said = scs("train", shapes, "--out", runs / "x", *QUICK, "--json", "--quiet")
    assert said.err == ""
    assert json.loads(said.out) == json.loads((runs / "x" / "finished.json").read_text())


def test_only_the_first_of_several_processes_prints(scs, shapes, runs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    said = scs("train", shapes, "--out", runs / "x", *QUICK)
    assert (said.code, said.out, said.err) == (0, "", "")


def test_a_printed_recipe_goes_in_again(scs, shapes, finished, tmp_path):
    printed = scs("train", shapes, *QUICK, "--method", "supcon", "--print-recipe")
    assert (printed.code, printed.err) == (0, "")
    file = tmp_path / "r.toml"
    file.write_text(printed.out)
    again = scs("train", shapes, "--recipe", file, "--print-recipe", "--device", "cpu")
    assert again.out == printed.out
    assert 'name = "supcon"' in again.out
    seeded = scs("train", shapes, "--recipe", file, "--print-recipe", "--seed", "7")
    assert seeded.out == printed.out.replace("seed = 0", "seed = 7")


def test_a_run_needs_a_place(scs, shapes):
    said = scs("train", shapes, *QUICK)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: say where the run goes: --out runs/{shapes.name}\n"


def test_a_dry_run_needs_none(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = scs("train", shapes, *QUICK, "--dry-run")
    assert (said.code, said.out) == (0, "")
    assert said.err.endswith("dry run passed: one batch of everything; nothing was kept\n")
    assert not any(tmp_path.iterdir())


def test_other_recipes_are_refused_unless_overwritten(scs, shapes, runs):
    refused = scs("train", shapes, "--out", runs / "x", *QUICK, "--seed", "1")
    assert refused.code == 2
    assert "seed: 0 then, 1 now" in refused.err
    assert "--overwrite" in refused.err
    said = scs("train", shapes, "--out", runs / "x", *QUICK, "--seed", "1", "--overwrite")
    assert said.code == 0
    assert "seed = 1" in (runs / "x" / "recipe.toml").read_text()


def test_predict_names_files_folders_and_patterns(scs, runs, shapes):
    said = scs(
        "predict", runs / "x", shapes / "bar", shapes / "circle" / "06.png", f"{shapes}/cross/*"
    )
    assert said.code == 0
    lines = said.out.splitlines()
    assert len(lines) == 6 + 1 + 6
    assert str(shapes / "circle" / "06.png") in lines[6]
    assert lines[0].count("%") == 3, "three classes unless told otherwise"
    assert "predict: 13 of 13" in said.err


def test_predictions_as_csv_and_json_lines_agree_with_the_model(scs, runs, shapes, tmp_path):
    model = load(runs / "x")
    files = sorted((shapes / "square").iterdir())
    expected = model.predict(files, topk=4).records
    as_json = scs("predict", runs / "x", *files, "--format", "jsonl", "--topk", "4", "--quiet")
    assert as_json.err == ""
    rows = [json.loads(line) for line in as_json.out.splitlines()]
    assert [tuple(row["top"].items()) for row in rows] == [record.top for record in expected]
    file = tmp_path / "names.csv"
    written = scs("predict", runs / "x" / "model", *files, "--format", "csv", "-o", file, "--quiet")
    assert (written.code, written.out) == (0, "")
    with file.open(newline="") as text:
        table = list(csv.DictReader(text))
    assert [row["class"] for row in table] == [record.label for record in expected]


def test_unreadable_files_are_listed_and_the_rest_is_done(scs, runs, odd):
    said = scs("predict", runs / "x", odd, odd / "gone.png", "--format", "csv")
    assert said.code == 1
    named = [row["picture"] for row in csv.DictReader(io.StringIO(said.out))]
    assert named == [str(odd / "a.png"), str(odd / "b.png")]
    failures = [line for line in said.err.splitlines() if line.startswith("not read: ")]
    assert len(failures) == 3
    for name, why in (("cut.png", "cut short"), ("text.jpg", "not a"), ("gone.png", "exist")):
        assert sum(name in line and why in line for line in failures) == 1


def test_embed_writes_the_vectors_of_the_model(scs, runs, odd, tmp_path):
    expected = load(runs / "x").embed([odd / "a.png", odd / "b.png"])
    said = scs("embed", runs / "x", odd, "-o", tmp_path / "v.parquet")
    assert said.code == 1, "two could not be read"
    assert said.err.count("not read: ") == 2
    assert said.out == f"2 pictures: {tmp_path / 'v.parquet'}\n"
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["name"] == list(expected.names)
    assert np.array_equal(np.array(table["common"], dtype=np.float32), expected.common)
    assert scs("embed", runs / "x", odd / "a.png", "-o", tmp_path / "v.npz").code == 0
    with np.load(tmp_path / "v.npz") as arrays:
        assert np.array_equal(arrays["style"], expected.style[:1])


def test_runs_lists_and_cleans(scs, runs, shapes):
    listed = scs("runs", runs)
    assert listed.code == 0
    title, line = listed.out.splitlines()
    assert title.split() == ["run", "data", "method", "accuracy", "MiB", "spare"]
    assert line.split()[:4] == [str(runs / "x"), str(shapes), "scs_supcon", accuracy(runs / "x")]
    (found,) = json.loads(scs("runs", runs, "--json").out)
    assert found["path"] == str(runs / "x")
    assert found["spare"] > 0
    cleaned = scs("runs", runs, "--clean")
    assert cleaned.out == f"freed {found['spare'] / 2**20:,.1f} MiB\n"
    (after,) = json.loads(scs("runs", runs, "--json").out)
    assert after["bytes"] == found["bytes"] - found["spare"]
    assert scs("predict", runs / "x", shapes / "bar").code == 0
    assert "is finished" in scs("train", shapes, "--out", runs / "x", *QUICK).err


def test_no_runs_are_no_error_but_no_folder_is(scs, tmp_path):
    assert scs("runs", tmp_path).out == f"no runs in {tmp_path}\n"
    assert scs("runs", tmp_path / "gone").code == 2


def test_methods_are_listed_with_a_line_each(scs):
    found = json.loads(scs("methods", "--json").out)
    assert list(found) == available()
    assert all(found.values()), "each has something to say"
    lines = scs("methods").out.splitlines()
    assert [line.split()[0] for line in lines] == available()


@pytest.mark.parametrize("name", [*available(), "scs_supcon@paper"])
def test_every_method_shows_its_formula_and_arguments(name, scs):
    said = scs("show", name)
    assert said.code == 0
    assert said.out.count("\n") > 5
    assert "(self" not in said.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, scs):
    said = scs(verb, "--help")
    assert said.code == 0
    assert f"scs {verb}" in said.out


def test_the_version(scs):
    from scs_supcon import __version__

    assert scs("--version").out == f"scs-supcon {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "{run}", "{shapes}", "--format", "xml"], "choose table, csv or jsonl"),
        (["predict", "{run}", "{shapes}", "--topk", "0"], "at least 1 class"),
        (["predict", "{run}", "{run}/*.jpeg"], "no pictures at"),
        (["predict", "{shapes}", "{shapes}"], "holds no model"),
        (["predict", "gone", "{shapes}"], "there is no gone"),
        (["embed", "{run}", "{shapes}", "-o", "vectors.csv"], "a .parquet or an .npz file"),
        (["embed", "{run}", "{shapes}", "-o", "{run}/recipe.toml/v.npz"], "cannot write"),
        (["show", "supcom"], "did you mean 'supcon'?"),
        (["train", "{shapes}", "--out", "y", "--set", "pretrain.lrr=1"], "did you mean 'lr'?"),
        (["train", "{shapes}", "--out", "y", "--frozen"], "give --weights FILE"),
        (["train", "digts", "--out", "y"], "did you mean 'digits'?"),
    ],
)
def test_what_a_person_can_put_right_is_told_in_one_sentence(
    arguments, message, scs, runs, shapes, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    said = scs(*(part.format(run=runs / "x", shapes=shapes) for part in arguments))
    assert (said.code, said.out) == (2, "")
    *_, last = said.err.splitlines()
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in said.err
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train"], ["train", "digits", "--epochs", "many"], ["embed", "x", "y"]],
)
def test_what_cannot_be_parsed_is_a_usage_error(arguments, scs):
    said = scs(*arguments)
    assert said.code == 2
    assert "Usage" in said.err
