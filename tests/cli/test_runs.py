"""`scs runs`: list the runs on disk and free space."""

import json

QUICK = (
    *("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1"),
)


def accuracy(run):
    return f"{json.loads((run / 'finished.json').read_text())['accuracy']:.2%}"


def test_runs_are_listed_and_cleaned(scs, runs, shapes):
    listed = scs("runs", runs)
    assert listed.code == 0
    title, line = listed.out.splitlines()
    assert title.split() == ["run", "data", "method", "accuracy", "MiB", "spare"]
    assert line.split()[:4] == [
        str(runs / "x"),
        str(shapes),
        "scs_supcon@solved",
        accuracy(runs / "x"),
    ]
    (listed_run,) = json.loads(scs("runs", runs, "--json").out)
    assert listed_run["path"] == str(runs / "x")
    assert listed_run["spare"] > 0
    cleaned = scs("runs", runs, "--clean")
    assert cleaned.out == f"freed {listed_run['spare'] / 2**20:,.1f} MiB\n"
    (after,) = json.loads(scs("runs", runs, "--json").out)
    assert after["bytes"] == listed_run["bytes"] - listed_run["spare"]
    assert scs("predict", runs / "x", shapes / "bar").code == 0
    assert "is finished" in scs("train", shapes, "--out", runs / "x", *QUICK).err


def test_a_missing_folder_is_an_error_but_an_empty_one_is_not(scs, tmp_path):
    assert scs("runs", tmp_path).out == f"no runs in {tmp_path}\n"
    assert scs("runs", tmp_path / "gone").code == 2
