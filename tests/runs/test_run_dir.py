import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.runs.checkpoint_io import Checkpoint
from scs_supcon.runs.run_dir import RunDir

RECIPE = 'seed = 0\n[pretrain]\nlr = 0.1\nepochs = 3\n[encoder]\nname = "resnet18"\n'
OTHER = RECIPE.replace("0.1", "0.2").replace("epochs = 3\n", "").replace("resnet18", "resnet50")


def save(run, stage, number):
    run.save_checkpoint(stage, Checkpoint({"a": torch.tensor(number)}, {"number": number}))


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def start(path, recipe=RECIPE):
    with RunDir.open(path, recipe) as run:
        run.append_metrics("pretrain", 1, 10, {"loss": 1.0})
        save(run, "pretrain", 1)
        run.append_metrics("pretrain", 2, 20, {"loss": 0.5})
        run.write_json("classes.json", ["a", "b"])
        run.write_text("model/README.md", "card")


def test_a_new_run_writes_recipe_and_environment(tmp_path):
    with RunDir.open(tmp_path / "runs" / "x", RECIPE) as run:
        assert run.finished is None
        assert run.load_checkpoint("pretrain") is None
        assert (run.path / "recipe.toml").read_text() == RECIPE
        environment = json.loads((run.path / "environment.json").read_text())
        assert environment["libraries"]["torch"]


def test_an_unfinished_run_resumes_from_its_last_checkpoint(tmp_path):
    start(tmp_path)
    with RunDir.open(tmp_path, RECIPE + "\n# a comment changes nothing\n") as run:
        checkpoint = run.load_checkpoint("pretrain")
        assert checkpoint.state == {"number": 1}
        assert torch.equal(checkpoint.tensors["a"], torch.tensor(1))
        assert (tmp_path / "metrics.csv").read_text().splitlines()[1:] == ["pretrain,1,10,loss,1.0"]


def test_metrics_are_rewound_to_the_last_intact_checkpoint(tmp_path):
    start(tmp_path)
    with RunDir.open(tmp_path, RECIPE) as run:
        run.append_metrics("probe", 1, 5, {"loss": 3.0})
        save(run, "probe", 2)
        run.append_metrics("probe", 2, 10, {"loss": 2.0})
        save(run, "probe", 3)
        run.append_metrics("probe", 3, 15, {"loss": 1.0})
    (tmp_path / "checkpoints" / "probe-000003.json").write_text('{"trunca')
    with (
        pytest.warns(RuntimeWarning, match="probe-000003 .* is damaged"),
        RunDir.open(tmp_path, RECIPE) as run,
    ):
        assert run.load_checkpoint("pretrain").state == {"number": 1}
        assert run.load_checkpoint("probe").state == {"number": 2}
        lines = (tmp_path / "metrics.csv").read_text().splitlines()
        assert lines[1:] == ["pretrain,1,10,loss,1.0", "probe,1,5,loss,3.0"]


def test_a_stage_whose_checkpoints_are_all_damaged_starts_again(tmp_path):
    start(tmp_path)
    with RunDir.open(tmp_path, RECIPE) as run:
        run.append_metrics("probe", 1, 5, {"loss": 3.0})
        save(run, "probe", 2)
    (tmp_path / "checkpoints" / "probe-000002.json").write_text('{"trunca')
    with (
        pytest.warns(RuntimeWarning, match="probe-000002 .* is damaged"),
        RunDir.open(tmp_path, RECIPE) as run,
    ):
        assert run.load_checkpoint("pretrain").state == {"number": 1}
        assert run.load_checkpoint("probe") is None
        lines = (tmp_path / "metrics.csv").read_text().splitlines()
        assert lines[1:] == ["pretrain,1,10,loss,1.0"]


def test_a_run_without_checkpoints_starts_again(tmp_path):
    with RunDir.open(tmp_path, RECIPE) as run:
        run.append_metrics("pretrain", 1, 10, {"loss": 1.0})
    with RunDir.open(tmp_path, RECIPE) as run:
        run.append_metrics("pretrain", 1, 10, {"loss": 1.0})
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 2


def test_another_recipe_replaces_a_run_that_saved_nothing(tmp_path):
    RunDir.open(tmp_path, RECIPE).close()
    (tmp_path / "notes.txt").write_text("mine")
    with RunDir.open(tmp_path, OTHER) as run:
        assert run.finished is None
    assert (tmp_path / "recipe.toml").read_text() == OTHER
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_finished_run_is_not_changed(tmp_path):
    start(tmp_path)
    with RunDir.open(tmp_path, RECIPE) as run:
        run.append_metrics("probe", 1, 5, {"loss": 3.0})
        run.finish({"accuracy": 0.97})
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    with RunDir.open(tmp_path, RECIPE) as run:
        assert run.finished == {"accuracy": 0.97}
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_data_with_the_same_content_may_be_at_another_location(tmp_path):
    here, there = (f'[data]\nsource = "{source}"\ncontent = "{"a" * 64}"\n' for source in "xy")
    with RunDir.open(tmp_path, here) as run:
        run.finish({"accuracy": 0.5})
    with RunDir.open(tmp_path, there) as run:
        assert run.finished == {"accuracy": 0.5}
    with pytest.raises(UserError, match=r"data\.content"):
        RunDir.open(tmp_path, there.replace("a" * 64, "b" * 64))


def test_a_different_recipe_is_an_error_that_lists_the_differences(tmp_path):
    start(tmp_path)
    before = names(tmp_path)
    with pytest.raises(UserError) as caught:
        RunDir.open(tmp_path, OTHER)
    assert str(caught.value) == (
        f"{tmp_path} contains a run with a different recipe:\n"
        "  encoder.name: resnet18 then, resnet50 now\n"
        "  pretrain.epochs: 3 then, not set now\n"
        "  pretrain.lr: 0.1 then, 0.2 now\n"
        "Choose another folder, or use --overwrite to delete that run."
    )
    assert names(tmp_path) == before
    RunDir.open(tmp_path, RECIPE).close()  # the lock was released


def test_overwriting_deletes_only_files_of_the_run(tmp_path):
    start(tmp_path)
    foreign = {"notes.txt", "model/mine.txt", "checkpoints/my-best.json", "figures/old.png"}
    for name in foreign:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with RunDir.open(tmp_path, OTHER, overwrite=True) as run:
        assert run.load_checkpoint("pretrain") is None
    assert names(tmp_path) == foreign | {"recipe.toml", "environment.json", ".lock"}
    assert not (tmp_path / "tensorboard").exists()
    assert (tmp_path / "recipe.toml").read_text() == OTHER


def test_a_command_with_overwrite_can_be_repeated(tmp_path):
    start(tmp_path, OTHER)
    with RunDir.open(tmp_path, RECIPE, overwrite=True) as run:
        save(run, "pretrain", 7)
    with RunDir.open(tmp_path, RECIPE, overwrite=True) as run:
        assert run.load_checkpoint("pretrain").state == {"number": 7}
        run.finish({})
    with RunDir.open(tmp_path, RECIPE, overwrite=True) as run:
        assert run.finished is None
        assert run.load_checkpoint("pretrain") is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_of_the_same_names_is_an_error(tmp_path, overwrite):
    (tmp_path / "metrics.csv").write_text("mine")
    with pytest.raises(UserError, match=r"contains metrics.csv but no recipe.toml"):
        RunDir.open(tmp_path, RECIPE, overwrite=overwrite)
    assert (tmp_path / "metrics.csv").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("recipe", [RECIPE, OTHER])
def test_a_recipe_without_an_environment_is_not_a_run(tmp_path, recipe, overwrite):
    for name, text in {"recipe.toml": RECIPE, "classes.json": "mine"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"contains recipe.toml but no environment.json"):
        RunDir.open(tmp_path, recipe, overwrite=overwrite)
    assert names(tmp_path) == {"recipe.toml", "classes.json", ".lock"}


@pytest.mark.parametrize("interrupted_at", ["finished.json", "recipe.toml", "environment.json"])
def test_an_interrupted_removal_is_continued(tmp_path, monkeypatch, interrupted_at):
    start(tmp_path)
    unlink = Path.unlink

    def interrupt(path, missing_ok=False):
        if path.name == interrupted_at:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with RunDir.open(tmp_path, RECIPE) as run:
        run.finish({})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt):
            RunDir.open(tmp_path, OTHER, overwrite=True)
    RunDir.open(tmp_path, OTHER, overwrite=True).close()
    assert names(tmp_path) == {"recipe.toml", "environment.json", ".lock"}


def test_unrelated_files_are_kept(tmp_path):
    (tmp_path / "log.txt").write_text("started")
    RunDir.open(tmp_path, RECIPE).close()
    assert names(tmp_path) == {"log.txt", "recipe.toml", "environment.json", ".lock"}


def test_a_damaged_recipe_is_an_error(tmp_path):
    start(tmp_path)
    (tmp_path / "recipe.toml").write_text("seed = ")
    with pytest.raises(UserError, match=r"recipe.toml is damaged: not valid TOML"):
        RunDir.open(tmp_path, RECIPE)


def test_a_damaged_summary_is_an_error(tmp_path):
    start(tmp_path)
    (tmp_path / "finished.json").write_text("{")
    with pytest.raises(UserError, match=r"finished.json is damaged: .*: delete it"):
        RunDir.open(tmp_path, RECIPE)


def test_another_environment_is_reported_with_a_warning(tmp_path):
    start(tmp_path)
    file = tmp_path / "environment.json"
    environment = json.loads(file.read_text())
    environment["libraries"]["torch"] = "2.0"
    file.write_text(json.dumps(environment))
    with pytest.warns(RuntimeWarning, match=r"libraries.torch: 2.0 then"):
        RunDir.open(tmp_path, RECIPE).close()


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_run_without_its_environment_can_be_resumed(tmp_path, content):
    start(tmp_path)
    file = tmp_path / "environment.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.warns(RuntimeWarning, match=r"environment\.json was missing or damaged"):
        RunDir.open(tmp_path, RECIPE).close()
    assert json.loads(file.read_text())["libraries"]["torch"]


def test_a_second_process_gets_an_error_with_the_owner(tmp_path):
    code = (
        "import sys; from scs_supcon.runs.run_dir import RunDir\n"
        "try: RunDir.open(sys.argv[1], sys.argv[2])\n"
        "except ValueError as error: print(error)"
    )
    with RunDir.open(tmp_path, RECIPE):
        result = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), RECIPE],
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stdout.startswith(f"{tmp_path} is in use by process {os.getpid()} on ")


def test_runs_are_utf_8_on_systems_with_another_encoding(tmp_path):
    recipe = '[data]\nsource = "Vögel"\n'
    RunDir.open(tmp_path, recipe).close()
    code = (
        "import sys; from pathlib import Path\n"
        "from scs_supcon.runs.run_dir import RunDir\n"
        "from scs_supcon.runs.listing import find_runs\n"
        "RunDir.open(sys.argv[1], '[data]\\nsource = \"V\\xf6gel\"\\n').close()\n"
        "print(ascii(find_runs(Path(sys.argv[1]))[0].source))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **plain},
    )
    assert result.stdout == "'V\\xf6gel'\n", result.stderr


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match="a file exists where a folder is needed"):
        RunDir.open(tmp_path / "x" / "y", RECIPE)


READ_ONLY = """
import os, sys
from scs_supcon.runs.run_dir import RunDir
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions do not apply to the superuser
for path in sys.argv[1:]:
    try: RunDir.open(path, "seed = 0")
    except ValueError as error: print(error)
"""


def test_a_read_only_folder_is_an_error():
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        paths = [folder, f"{folder}/new"]
        result = subprocess.run(
            [sys.executable, "-c", READ_ONLY, *paths], capture_output=True, text=True, check=True
        )
    for path, line in zip(paths, result.stdout.splitlines(), strict=True):
        assert line.startswith(f"cannot write {path}: no permission to write there: choose another")


def test_a_field_that_a_later_version_added_has_the_default_of_the_schema(tmp_path):
    old = '[data]\nsource = "x"\n[pretrain]\nlr = 0.1\n'
    with RunDir.open(tmp_path, old) as run:
        run.finish({"accuracy": 0.5})
    with RunDir.open(tmp_path, old + "ema = 0.0\n[head]\nhidden = 0\n") as run:
        assert run.finished == {"accuracy": 0.5}
    with pytest.raises(UserError, match=r"pretrain\.ema: not set then, 0\.9 now"):
        RunDir.open(tmp_path, old + "ema = 0.9\n")
