"""`scs train` from end to end."""

import json

QUICK = (
    *("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1"),
)


def accuracy(run):
    return f"{json.loads((run / 'finished.json').read_text())['accuracy']:.1%}"


def test_train_prints_an_estimate_first_and_the_result_last(scs, shapes, tmp_path):
    result = scs("train", shapes, "--out", tmp_path / "run", *QUICK)
    assert result.code == 0
    assert result.out.startswith(
        f"{accuracy(tmp_path / 'run')} test accuracy on 4 images (95% confidence inter"
    )
    for text in (
        "kNN on the probe input",
        "linear probe of the encoder",
        "probe heads",
    ):
        assert text in result.out
    assert f"scs predict {tmp_path / 'run'} image.jpg" in result.out
    titles = [line.split()[0] for line in result.err.splitlines()]
    order = ["checking", "choice", "data", "caution", "encoder", "batches", "pairs", "style"]
    order += ["stage", "stage"]
    assert titles[: len(order)] == order, "the estimate comes before the first epoch"
    again = scs("train", shapes, "--out", tmp_path / "run", *QUICK)
    assert again.code == 0
    assert f"is finished: {accuracy(tmp_path / 'run')}" in again.err
    assert again.out == result.out


def test_train_prints_json(scs, shapes, runs):
    result = scs("train", shapes, "--out", runs / "x", *QUICK, "--json", "--quiet")
    assert result.err == ""
    assert json.loads(result.out) == json.loads((runs / "x" / "finished.json").read_text())


def test_only_the_first_of_several_processes_prints(scs, shapes, runs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    result = scs("train", shapes, "--out", runs / "x", *QUICK)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_a_printed_recipe_can_be_used_again(scs, shapes, finished, tmp_path):
    printed = scs("train", shapes, *QUICK, "--method", "supcon", "--print-recipe")
    assert (printed.code, printed.err) == (0, "")
    file = tmp_path / "r.toml"
    file.write_text(printed.out)
    again = scs("train", shapes, "--recipe", file, "--print-recipe", "--device", "cpu")
    assert again.out == printed.out
    assert 'name = "supcon"' in again.out
    seeded = scs("train", shapes, "--recipe", file, "--print-recipe", "--seed", "7")
    assert seeded.out == printed.out.replace("seed = 0", "seed = 7")


def test_a_run_needs_an_output_directory(scs, shapes):
    result = scs("train", shapes, *QUICK)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: --out is missing: add for example --out runs/{shapes.name}\n"


def test_a_dry_run_needs_no_output_directory(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = scs("train", shapes, *QUICK, "--dry-run")
    assert (result.code, result.out) == (0, "")
    assert result.err.endswith(
        "dry run passed: one batch and one epoch of each stage; the run was deleted\n"
    )
    assert not any(tmp_path.iterdir())


def test_another_recipe_needs_overwrite(scs, shapes, runs):
    rejected = scs("train", shapes, "--out", runs / "x", *QUICK, "--seed", "1")
    assert rejected.code == 2
    assert "seed: 0 then, 1 now" in rejected.err
    assert "--overwrite" in rejected.err
    result = scs("train", shapes, "--out", runs / "x", *QUICK, "--seed", "1", "--overwrite")
    assert result.code == 0
    assert "seed = 1" in (runs / "x" / "recipe.toml").read_text()


def test_imbalance_sets_the_recipe(scs):
    result = scs("train", "shapes", "--imbalance", "10", "--print-recipe")
    assert result.code == 0, result.err
    assert "\nimbalance = 10.0\n" in result.out
