"""What is cheap is checked first: these commands answer without importing torch."""

import json
import subprocess
import sys

import pytest

from scs_supcon.errors import UserError
from scs_supcon.runs.layout import check_new_run

SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
sys.modules.update(dict.fromkeys(("torch", "timm", "torchvision", "sklearn", "matplotlib")))
from scs_supcon.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv, code, out, err = ["scs", *arguments], 0, io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_these_commands_do_not_import_torch(finished, shapes, tmp_path):
    run, missing = str(finished), str(tmp_path / "gone")
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.doc").touch()
    train = ["train", str(shapes), "--out"]
    out = str(tmp_path / "run")
    cases = {
        ("train", missing, "--out", out): "does not exist: expected a folder of class folders",
        (*train, out, "--method", "supcom"): "unknown method 'supcom'; did you mean 'supcon'?",
        (*train, out, "--recipe", missing): f"--recipe {missing} does not exist",
        (*train, out, "--weights", missing): f"--weights {missing} does not exist",
        (*train, out, "--set", "pretrain.lrr=1"): "unknown key 'lrr'",
        (*train, out, "--lr", "1"): "no such option: --lr; use --set pretrain.lr=VALUE",
        (*train, out, "--from-scratch", "--weights", str(tmp_path / "file")): "use one of them",
        (*train, out, "--frozen", "--unfreeze"): "use one of them",
        ("serve", missing): "does not exist: give the directory",
        ("serve", str(shapes)): "has no model",
        ("serve", "--onnx", missing): "does not exist: write it with `scs export RUN --onnx`",
        (*train, str(tmp_path / "file")): "is a file",
        (*train, str(tmp_path / "other")): "contains other files (letter.doc)",
        (*train, str(shapes)): "is the folder of the images",
        (*train, str(shapes / "runs" / "x")): "is inside the folder of the images",
        ("compare", str(shapes), "--methods", "supcom"): "did you mean 'supcon'?",
        ("tune", missing, "--out", out): "does not exist",
        ("predict", missing, str(shapes)): "does not exist: give the directory",
        ("predict", str(shapes), str(shapes)): "has no model",
        ("predict", run, missing): f"{missing} does not exist",
        ("predict", run, str(shapes), "-o", str(tmp_path / "file" / "x.csv")): "cannot write",
        ("export", run, "-o", str(tmp_path / "file" / "x.onnx")): "cannot write",
        ("evaluate", missing): "does not exist",
        ("evaluate", run, missing): "does not exist",
        ("report", missing): "does not exist",
    }
    commands = [list(case) for case in cases] + [["evaluate", run], ["runs", str(finished.parent)]]
    lines = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    results = [json.loads(line) for line in lines]
    for (case, message), (code, _, err) in zip(cases.items(), results, strict=False):
        assert code == 2, (case, err)
        assert message in err, case
    (evaluated, evaluation, _), (listed, table, _) = results[-2:]
    assert (evaluated, listed) == (0, 0)
    assert "top-1 accuracy" in evaluation
    assert run in table


def test_a_new_run_may_share_a_folder_with_logs_only(tmp_path, shapes):
    out = tmp_path / "run"
    check_new_run(out, str(shapes))
    assert not out.exists(), "the check writes nothing"
    out.mkdir()
    for name in ("train.log", ".DS_Store", "environment.json"):
        (out / name).touch()
    check_new_run(out, str(shapes))
    (out / "photo.jpg").touch()
    with pytest.raises(UserError, match=r"other files \(photo.jpg\): choose a new or empty"):
        check_new_run(out, str(shapes))
    (out / "recipe.toml").touch()
    check_new_run(out, str(shapes))
