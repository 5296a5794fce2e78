"""The way in: exit codes, and errors for people without tracebacks."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scs_supcon import __version__

LONG = (
    *("--epochs", "6", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--no-report"),
    *("--set", "probe.epochs=3", "--set", "probe.views=1"),
)


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_module_and_the_script_are_the_same_command():
    done = python("-m", "scs_supcon", "--version")
    assert (done.returncode, done.stdout) == (0, f"scs-supcon {__version__}\n")
    script = Path(sys.executable).with_name("scs")
    if script.exists():
        installed = subprocess.run(
            [script, "--version"], capture_output=True, text=True, check=True
        )
        assert installed.stdout == done.stdout


def test_user_errors_end_with_exit_code_2():
    done = python("-m", "scs_supcon", "runs", "/no/such/folder")
    assert done.returncode == 2
    assert done.stderr.startswith("error: folder /no/such/folder does not exist")
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_reported_with_the_command_that_installs_it():
    without = (
        "import sys; sys.modules['typer'] = None; from scs_supcon.__main__ import main; main()"
    )
    done = python("-c", without)
    assert done.returncode == 2
    assert done.stderr == "error: this needs typer: pip install 'scs-supcon[train]'\n"


def test_a_missing_library_is_reported_late_too(scs, finished, shapes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = scs("embed", finished, shapes / "bar", "-o", tmp_path / "v.parquet", "--quiet")
    assert said.code == 2
    assert said.err == "error: this needs pyarrow: pip install 'scs-supcon[train]'\n"
    monkeypatch.setitem(sys.modules, "timm", None)
    said = scs("train", shapes, "--out", tmp_path / "run", "--encoder", "resnet18", "--quiet")
    assert said.code == 2
    assert "pip install 'scs-supcon[train]'" in said.err


def test_tune_without_optuna_reports_its_extra(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = scs("tune", shapes, "--out", tmp_path / "search", "--quiet")
    assert said.code == 2
    assert said.err == "error: this needs optuna: pip install 'scs-supcon[paper]'\n"


def test_out_of_gpu_memory_is_reported_with_advice(scs, monkeypatch):
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr("scs_supcon.cli.app", fail)
    said = scs("--version")
    assert said.code == 2
    assert said.err.startswith("error: out of GPU memory (CUDA out of memory): ")
    assert "--micro-batch" in said.err
    assert "--batch-size" in said.err


@pytest.mark.parametrize(
    "wrong", [("--workers", "-1"), ("--device", "cpu:1"), ("--device", "cpu:x")]
)
def test_invalid_workers_and_devices_are_errors(scs, shapes, tmp_path, wrong):
    said = scs("train", shapes, "--out", tmp_path / "run", *wrong)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert wrong[1] in said.err


def test_a_missing_module_of_this_package_keeps_its_traceback(scs, monkeypatch):
    monkeypatch.setitem(sys.modules, "scs_supcon.cli", None)
    with pytest.raises(ImportError, match=r"scs_supcon\.cli"):
        scs("--version")


def test_any_other_exception_keeps_its_traceback(scs, monkeypatch):
    def fail():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("scs_supcon.cli.app", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        scs("--version")


@pytest.fixture(scope="module")
def unbroken(shapes, processes, left_by, tmp_path_factory):
    run = tmp_path_factory.mktemp("unbroken") / "run"
    assert processes.run("train", shapes, "--out", run, *LONG).code == 0
    return left_by(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
    ids=["SIGTERM", "Ctrl-C", "SIGKILL"],
)
@pytest.mark.parametrize("stage", ["pretrain", "probe"])
def test_an_interrupted_run_resumes_to_the_same_result(
    number, code, stage, shapes, processes, unbroken, left_by, tmp_path
):
    line = ("train", shapes, "--out", tmp_path / "run", *LONG)
    # metrics.csv is opened at the end of every epoch: six times in stage 1, then three and three.
    stopped = processes.run(*line, fate=(number, "metrics.csv", 4 if stage == "pretrain" else 8))
    assert stopped.code == code
    assert stopped.out == ""
    if number != signal.SIGKILL:
        assert stopped.err.endswith("\nstopped; run the same command again to resume\n")
    assert not (tmp_path / "run" / "finished.json").exists()
    assert processes.run(*line).code == 0
    assert left_by(tmp_path / "run") == unbroken


@pytest.mark.slow
def test_a_second_process_is_an_error_and_a_killed_one_leaves_no_lock(
    shapes, processes, scs, left_by, unbroken, tmp_path
):
    line = ("train", shapes, "--out", tmp_path / "run", *LONG)
    fate = (signal.SIGSTOP, "metrics.csv", 2)
    owner = processes.start(*line, fate=fate)
    while not (tmp_path / "run" / "metrics.csv").exists():
        os.kill(owner, 0)  # fails if it ended
    rejected = scs(*line)
    assert rejected.code == 2
    assert f"is in use by process {owner} on " in rejected.err
    os.kill(owner, signal.SIGKILL)
    assert processes.wait().code == -signal.SIGKILL
    assert scs(*line).code == 0
    assert left_by(tmp_path / "run") == unbroken, "though finished by another process than begun"


def numbers(run):
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row.values())[:-1]: float(row["value"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "frozen", "micro-batches"])
def test_two_processes_of_torchrun_train_like_one(how, shapes, weights, scs, tmp_path):
    given = {
        "whole": (),
        "frozen": ("--encoder", "tiny", "--weights", str(weights), "--frozen"),
        "micro-batches": ("--micro-batch", "3"),
    }[how]

    def line(name):
        out, cache = (str(tmp_path / name / part) for part in ("run", "cache"))
        return ("train", str(shapes), "--out", out, "--cache", cache, *LONG, *given)

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = python(*torchrun, "-m", "scs_supcon", *line("two"), "--json")
    assert two.returncode == 0, two.stderr
    one = scs(*line("one"), "--json")
    assert one.code == 0
    summaries = json.loads(one.out), json.loads(two.stdout)  # which the first process alone prints
    assert summaries[0]["accuracy"] == summaries[1]["accuracy"]
    runs = tmp_path / "one" / "run", tmp_path / "two" / "run"
    for name in ("recipe.toml", "splits.csv", "classes.json"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()
    assert numbers(runs[1]) == pytest.approx(numbers(runs[0]), rel=1e-4, abs=1e-6)
    first, second = (load_file(run / "model" / "weights.safetensors") for run in runs)
    assert first.keys() == second.keys()
    for name in (name for name in first if name.startswith(("encoder/", "head/"))):
        torch.testing.assert_close(second[name], first[name], rtol=1e-4, atol=1e-5)
