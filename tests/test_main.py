"""The entry point: exit codes, errors without tracebacks, interrupted and distributed runs."""

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

from command_processes import CommandResult
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
    result = python("-m", "scs_supcon", "--version")
    assert (result.returncode, result.stdout) == (0, f"scs-supcon {__version__}\n")
    script = Path(sys.executable).with_name("scs")
    if script.exists():
        installed = subprocess.run(
            [script, "--version"], capture_output=True, text=True, check=True
        )
        assert installed.stdout == result.stdout


def test_user_errors_end_with_exit_code_2():
    result = python("-m", "scs_supcon", "runs", "/no/such/folder")
    assert result.returncode == 2
    assert result.stderr.startswith("error: folder /no/such/folder does not exist")
    assert "Traceback" not in result.stderr


def test_a_missing_extra_is_reported_with_the_command_that_installs_it():
    code = "import sys; sys.modules['typer'] = None; from scs_supcon.__main__ import main; main()"
    result = python("-c", code)
    assert result.returncode == 2
    assert result.stderr == "error: typer is not installed: pip install 'scs-supcon[train]'\n"


def test_a_library_that_is_missing_during_a_command_is_reported(
    scs, finished, shapes, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = scs("embed", finished, shapes / "bar", "-o", tmp_path / "v.parquet", "--quiet")
    assert result.code == 2
    assert result.err == "error: pyarrow is not installed: pip install 'scs-supcon[train]'\n"
    monkeypatch.setitem(sys.modules, "timm", None)
    result = scs("train", shapes, "--out", tmp_path / "run", "--encoder", "resnet18", "--quiet")
    assert result.code == 2
    assert "pip install 'scs-supcon[train]'" in result.err


def test_tune_without_optuna_reports_its_extra(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = scs("tune", shapes, "--out", tmp_path / "search", "--quiet")
    assert result.code == 2
    assert result.err == "error: optuna is not installed: pip install 'scs-supcon[paper]'\n"


def test_out_of_gpu_memory_is_reported_with_advice(scs, monkeypatch):
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr("scs_supcon.cli.app", fail)
    result = scs("--version")
    assert result.code == 2
    assert result.err.startswith("error: out of GPU memory (CUDA out of memory): ")
    assert "--micro-batch" in result.err
    assert "--batch-size" in result.err


@pytest.mark.parametrize(
    "option", [("--workers", "-1"), ("--device", "cpu:1"), ("--device", "cpu:x")]
)
def test_invalid_workers_and_devices_are_errors(scs, shapes, tmp_path, option):
    result = scs("train", shapes, "--out", tmp_path / "run", *option)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert option[1] in result.err


def test_a_missing_module_of_this_package_keeps_its_traceback(scs, monkeypatch):
    monkeypatch.setitem(sys.modules, "scs_supcon.cli", None)
    with pytest.raises(ImportError, match=r"scs_supcon\.cli"):
        scs("--version")


def test_ctrl_c_before_the_command_starts_has_no_traceback(scs, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("scs_supcon.cli.app", interrupted)
    assert scs("runs") == CommandResult(130, "", "stopped\n")


def test_any_other_exception_keeps_its_traceback(scs, monkeypatch):
    def fail():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("scs_supcon.cli.app", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        scs("--version")


@pytest.fixture(scope="module")
def uninterrupted(shapes, processes, deterministic_files, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert processes.run("train", shapes, "--out", run, *LONG).code == 0
    return deterministic_files(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)],
    ids=["SIGTERM", "Ctrl-C", "SIGKILL"],
)
@pytest.mark.parametrize("stage", ["pretrain", "probe"])
def test_an_interrupted_run_resumes_to_the_same_result(
    number, code, stage, shapes, processes, uninterrupted, deterministic_files, tmp_path
):
    command = ("train", shapes, "--out", tmp_path / "run", *LONG)
    # metrics.csv is opened at the end of every epoch: six times in stage 1, then three and three.
    stopped = processes.run(
        *command, signal_at=(number, "metrics.csv", 4 if stage == "pretrain" else 8)
    )
    assert stopped.code == code
    assert stopped.out == ""
    if number != signal.SIGKILL:
        assert stopped.err.endswith("\nstopped; run the same command again to resume\n")
    assert not (tmp_path / "run" / "finished.json").exists()
    assert processes.run(*command).code == 0
    assert deterministic_files(tmp_path / "run") == uninterrupted


@pytest.mark.slow
def test_a_second_process_is_an_error_and_a_killed_one_leaves_no_lock(
    shapes, processes, scs, deterministic_files, uninterrupted, tmp_path
):
    command = ("train", shapes, "--out", tmp_path / "run", *LONG)
    owner = processes.start(*command, signal_at=(signal.SIGSTOP, "metrics.csv", 2))
    while not (tmp_path / "run" / "metrics.csv").exists():
        os.kill(owner, 0)  # raises an error if the process has exited
    rejected = scs(*command)
    assert rejected.code == 2
    assert f"is in use by process {owner} on " in rejected.err
    os.kill(owner, signal.SIGKILL)
    assert processes.wait().code == -signal.SIGKILL
    assert scs(*command).code == 0
    assert deterministic_files(tmp_path / "run") == uninterrupted


def metrics(run):
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row.values())[:-1]: float(row["value"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["whole", "frozen", "micro-batches", "unfreeze"])
def test_two_processes_of_torchrun_train_like_one(mode, shapes, weights, scs, tmp_path):
    tiny = ("--encoder", "tiny", "--weights", str(weights))
    fine_tuning = ("pretrain.head_epochs=2", "pretrain.ema=0.9", "pretrain.patience=9")
    settings = [part for value in fine_tuning for part in ("--set", value)]
    # Few and short steps, because a trained encoder soon amplifies rounding errors.
    short = ("--epochs", "3", "--set", "pretrain.clip_norm=1")
    plain = ("--method", "scs_supcon@solved", *short)
    options = {
        "whole": plain,
        "frozen": (*tiny, "--frozen"),
        "micro-batches": ("--micro-batch", "3", *plain),
        "unfreeze": (*tiny, "--unfreeze", *settings, *plain),
    }[mode]

    def command(name):
        out, cache = (str(tmp_path / name / folder) for folder in ("run", "cache"))
        return ("train", str(shapes), "--out", out, "--cache", cache, *LONG, *options)

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = python(*torchrun, "-m", "scs_supcon", *command("two"), "--json")
    assert two.returncode == 0, two.stderr
    one = scs(*command("one"), "--json")
    assert one.code == 0
    summaries = json.loads(one.out), json.loads(two.stdout)  # printed by the first process only
    assert summaries[0]["accuracy"] == summaries[1]["accuracy"]
    runs = tmp_path / "one" / "run", tmp_path / "two" / "run"
    for name in ("recipe.toml", "splits.csv", "classes.json"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()
    # Mean cosines are those of the first process's rows.
    values = [
        {key: value for key, value in metrics(run).items() if not key[-1].endswith("_cosine")}
        for run in runs
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-4, abs=1e-6)
    first, second = (load_file(run / "model" / "weights.safetensors") for run in runs)
    assert first.keys() == second.keys()
    for name in (name for name in first if name.startswith(("encoder/", "head/"))):
        # One process computes small batches by the dense formula, several by tiles: the float32
        # sums differ in their last digits. tests/methods/test_across_processes.py checks float64.
        torch.testing.assert_close(second[name], first[name], rtol=1e-4, atol=5e-5)
