"""What holds for every verb: help, version, and mistakes told in one sentence."""

import pytest

from scs_supcon.cli import app

VERBS = sorted(command.callback.__name__ for command in app.registered_commands)


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
        (["predict", "{run}", "{run}/*.jpeg"], "no images at"),
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
