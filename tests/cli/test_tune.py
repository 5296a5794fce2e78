"""`scs tune` from end to end."""

import json

import pytest

QUICK = (
    *("--trials", "2", "--epochs", "1", "--batch-size", "8", "--workers", "0", "--device", "cpu"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1"),
)


@pytest.mark.slow
def test_a_search_writes_the_best_recipe(scs, shapes, tmp_path):
    out = tmp_path / "search"
    line = ("tune", shapes, "--out", out, *QUICK, "--over", "pretrain.lr=0.01..0.1:log")
    result = scs(*line)
    assert result.code == 0, result.err
    assert result.out.startswith("best of 2 trials on the validation images: trial ")
    assert "varying   pretrain.lr=0.01..0.1:log" in result.err
    again = scs(*line, "--json", "--quiet")
    assert json.loads(again.out)["trials"] == 2
    assert json.loads(again.out)["retrained"]["split"] == "test"
    assert again.err == ""
    trained = scs("train", shapes, "--recipe", out / "best.toml", "--out", tmp_path / "run")
    assert trained.code == 0
    lr = json.loads(again.out)["best"]["params"]["pretrain.lr"]
    assert f"lr = {lr!r}" in (tmp_path / "run" / "recipe.toml").read_text()


def test_an_invalid_range_leaves_no_folder(scs, shapes, tmp_path):
    result = scs("tune", shapes, "--out", tmp_path / "x", *QUICK, "--over", "pretrain.lrr=1..2")
    assert result.code == 2
    assert result.err.endswith("did you mean 'lr'?\n")
    assert not (tmp_path / "x").exists()
