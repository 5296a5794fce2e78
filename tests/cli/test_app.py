"""Properties of every command: help, version, one-sentence errors, shared options."""

import re
from pathlib import Path

import pytest

from scs_supcon.cli import app

COMMANDS = sorted(c.callback.__name__.replace("_", "-") for c in app.registered_commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, scs):
    result = scs(command, "--help")
    assert result.code == 0
    assert f"scs {command}" in result.out


def test_version_prints_the_version(scs):
    from scs_supcon import __version__

    assert scs("--version").out == f"scs-supcon {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "{run}", "{shapes}", "--format", "xml"], "choose table, csv, jsonl, summary"),
        (["predict", "{run}", "{shapes}", "--topk", "0"], "topk must be at least 1"),
        (["predict", "{run}", "{run}/*.jpeg"], "no images at"),
        (["predict", "{shapes}", "{shapes}"], "has no model"),
        (["predict", "gone", "{shapes}"], "gone does not exist"),
        (["embed", "{run}", "{shapes}", "-o", "vectors.csv"], "must end with .parquet or .npz"),
        (["embed", "{run}", "{shapes}", "-o", "{run}/recipe.toml/v.npz"], "cannot write"),
        (["show", "supcom"], "did you mean 'supcon'?"),
        (["train", "{shapes}", "--out", "y", "--set", "pretrain.lrr=1"], "did you mean 'lr'?"),
        (["train", "{shapes}", "--out", "y", "--frozen"], "add --weights FILE"),
        (["train", "digts", "--out", "y"], "did you mean 'digits'?"),
    ],
)
def test_user_errors_are_one_sentence_without_a_traceback(
    arguments, message, scs, runs, shapes, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = scs(*(word.format(run=runs / "x", shapes=shapes) for word in arguments))
    assert (result.code, result.out) == (2, "")
    *_, last = result.err.splitlines()
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in result.err
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train"], ["train", "digits", "--epochs", "many"], ["embed", "x", "y"]],
)
def test_an_invalid_command_line_is_a_usage_error(arguments, scs):
    result = scs(*arguments)
    assert result.code == 2
    assert "Usage" in result.err


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
@pytest.mark.parametrize(
    ("option", "key"),
    [("--lr", "pretrain.lr"), ("--common-dim", "head.common_dim"), ("--t0", "method.options.t0")],
)
def test_an_unknown_option_that_names_a_recipe_value_gets_advice(command, option, key, scs):
    result = scs(command, "digits", option, "1")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: no such option: {option}; use --set {key}=VALUE\n"


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
def test_commands_that_train_share_their_options(command, scs):
    text = scs(command, "--help").out
    for option in ("--encoder", "--weights", "--frozen", "--epochs", "--micro-batch", "--set"):
        assert option in text
    assert "--no-dry-run" not in text
    assert "--no-offline" not in text


def test_an_option_marked_with_a_recipe_key_sets_it(scs, shapes):
    result = scs("train", shapes, "--micro-batch", "4", "--print-recipe")
    assert "micro_batch = 4" in result.out
    both = ("--micro-batch", "4", "--set", "pretrain.micro_batch=2", "--print-recipe")
    assert "micro_batch = 2" in scs("train", shapes, *both).out


def test_commands_print_through_one_function():
    """Names may contain control characters, which `echo` and `Display` write as escapes."""
    files = (Path(__file__).parents[2] / "src" / "scs_supcon" / "cli").glob("*.py")
    printing = [f.name for f in files if re.search(r"(?<![\w.])print\(", f.read_text())]
    assert printing == ["app.py"], "use echo"
