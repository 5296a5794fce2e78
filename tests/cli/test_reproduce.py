"""`scs reproduce` on the command line: lists, costs and errors."""

import pytest

from scs_supcon.reproduce.experiment import experiment_names


def test_without_a_name_the_experiments_are_listed(scs):
    result = scs("reproduce")
    assert result.code == 0, result.err
    assert [line.split()[0] for line in result.out.splitlines()] == list(experiment_names())


def test_the_cost_of_the_papers_scale_needs_no_data(scs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCS_DATA", raising=False)
    result = scs("reproduce", "table6", "--scale", "paper", "--dry-run")
    assert result.code == 0, result.err
    assert "GPU hours" in result.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tabel8",), "there is no experiment 'tabel8'"),
        (("table8", "--scale", "large"), "unknown scale 'large'"),
        (("table8", "--scale", "small"), "give --data NAME=PATH for at least one of cifar10"),
        (("table8", "--images-per-class", "1"), "'1' is neither a number of at least 2 nor all"),
        (("table8", "--data", "cifar=x"), "the paper has no dataset 'cifar'"),
    ],
)
def test_errors_are_one_sentence(scs, monkeypatch, arguments, message):
    monkeypatch.delenv("SCS_DATA", raising=False)
    result = scs("reproduce", *arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
