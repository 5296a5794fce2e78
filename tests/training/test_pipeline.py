"""A run checks its inputs, can be interrupted between steps, and depends only on its recipe."""

import os
import shutil
import signal
from functools import partial

import pytest

from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.device import find_compute
from scs_supcon.errors import UserError
from scs_supcon.methods import available
from scs_supcon.recipe import from_toml
from scs_supcon.training.checkpointing import CheckpointManager, SavePolicy, Stopped
from scs_supcon.training.pipeline import run
from scs_supcon.training.pretrain import make_method


def test_images_must_not_change_while_a_run_is_interrupted(shapes, train_small, tmp_path):
    data, run = shutil.copytree(shapes, tmp_path / "data"), tmp_path / "run"
    train_small(data, run)
    (run / "finished.json").unlink()
    (data / "bar" / "00.png").rename(data / "bar" / "renamed.png")
    with pytest.raises(UserError, match=r"1 added .*renamed.png.*1 removed \('bar/00\.png'\)"):
        train_small(data, run)


@pytest.mark.parametrize("lost", ["classes.json", "splits.csv"])
def test_a_run_killed_between_its_first_files_writes_the_missing_one(
    shapes, train_small, tmp_path, monkeypatch, lost
):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scs_supcon.training.pipeline.build_network", interrupt)
        with pytest.raises(Stopped):
            train_small(shapes, tmp_path / "run")
        before = (tmp_path / "run" / lost).read_bytes()
        (tmp_path / "run" / lost).unlink()
        with pytest.raises(Stopped):
            train_small(shapes, tmp_path / "run")
    assert (tmp_path / "run" / lost).read_bytes() == before


@pytest.mark.parametrize("content", [b'["a", "b"]\n', b"{", b"\xff"])
def test_a_changed_list_of_classes_is_written_again_with_a_warning(
    shapes, train_small, tmp_path, caplog, content
):
    train_small(shapes, tmp_path / "run", epochs=1)
    (tmp_path / "run" / "finished.json").unlink()
    file = tmp_path / "run" / "classes.json"
    before = file.read_bytes()
    file.write_bytes(content)
    train_small(shapes, tmp_path / "run", epochs=1)
    assert file.read_bytes() == before
    assert "classes.json" in caplog.text
    assert "it is written again" in caplog.text


@pytest.mark.parametrize("settings", [["pretrain.batches=long_tail"], ["pretrain.batch_size=4"]])
def test_a_dry_run_uses_a_few_images_of_each_class(train_small, settings, capsys):
    train_small("digits", "", dry_run=True, quiet=False, settings=settings)
    output = capsys.readouterr().err
    assert "images of 10 classes: 40 train, 10 val, 10 test" in output
    assert "1 epoch of" in output


def test_ctrl_c_between_the_loops_stops_the_run(shapes, train_small, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("scs_supcon.training.features.frozen_features", interrupt)
    with pytest.raises(Stopped, match="run the same command again") as stop:
        train_small(shapes, tmp_path / "run", epochs=1)
    assert stop.value.exit_code == 130


def test_the_dimensions_of_the_head_define_the_fields(finished):
    recipe = from_toml((finished / "recipe.toml").read_text())
    head = recipe.head.model_copy(update={"common_dim": 10, "overlap": 3})
    pairs_alone = recipe.pretrain.model_copy(update={"cross_entropy": 0.0})
    method = make_method(recipe.model_copy(update={"head": head, "pretrain": pairs_alone}))
    assert (method.common_dim, method.overlap) == (10, 3)


@pytest.mark.parametrize("name", available())
def test_several_processes_gather_their_batches(finished, name):
    recipe = from_toml((finished / "recipe.toml").read_text())
    method = recipe.method.model_copy(update={"name": name, "preset": None, "options": {}})
    plain = recipe.pretrain.model_copy(update={"cross_entropy": 0.0, "views": None})
    for world in (1, 2):
        built = make_method(recipe.model_copy(update={"method": method, "pretrain": plain}), world)
        assert built.gather_across_devices == (world > 1)


def test_a_recipe_with_a_content_digest_needs_that_data(shapes, train_small, tmp_path):
    pinned = f"data.content={content_digest(load_dataset(str(shapes), 1, lambda *_: None)[0])}"
    with pytest.raises(UserError, match="digits is not the data this recipe was made for"):
        train_small("digits", tmp_path / "other", settings=[pinned])
    result = train_small(
        shapes, tmp_path / "run", settings=[pinned, "data.folds=3", "data.fold=2"], epochs=1
    )
    assert result.evaluation.images == 8
    assert result.seconds > 0


def test_a_resolved_recipe_runs_without_resolving_it_again(
    finished, shapes, deterministic_files, tmp_path
):
    recipe = from_toml((finished / "recipe.toml").read_text())
    images, problems = load_dataset(str(shapes), 1, lambda *_: None)
    result = run(recipe, images, tmp_path / "run", find_compute("cpu", 0), problems=problems)
    assert deterministic_files(tmp_path / "run") == deterministic_files(finished)
    assert result.path == tmp_path / "run"
    assert result.model.classes == images.classes


def test_the_weights_file_must_be_that_of_the_recipe(finished, weights, shapes, tmp_path):
    recipe = from_toml((finished / "recipe.toml").read_text())
    images, _ = load_dataset(str(shapes), 1, lambda *_: None)
    with pytest.raises(UserError, match="is not the weights file of this recipe"):
        run(recipe, images, tmp_path / "run", find_compute("cpu", 0), weights=weights)
    assert not (tmp_path / "run").exists()


def test_the_epoch_from_which_a_run_resumes_is_shown(
    shapes, train_small, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        "scs_supcon.training.checkpointing.SavePolicy", partial(SavePolicy, every=0.0, at_most=0.0)
    )

    def interrupt(self, position):
        os.kill(os.getpid(), signal.SIGTERM)
        self._save_or_stop(epoch_end=True)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(CheckpointManager, "after_epoch", interrupt)
        train_small(shapes, tmp_path / "run", epochs=3)
    train_small(shapes, tmp_path / "run", epochs=3, quiet=False)
    assert f"stage 1: resuming from epoch 2 of 3 ({tmp_path / 'run'})" in capsys.readouterr().err
