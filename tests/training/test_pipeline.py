"""What one run makes of its data and its recipe, before and between the stages."""

import shutil

import pytest

from scs_supcon.data.dataset import content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.errors import UserError
from scs_supcon.methods import available
from scs_supcon.recipe import from_toml
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.pipeline import make_method


def test_images_that_changed_since_the_run_began_are_refused(shapes, train_small, tmp_path):
    data, run = shutil.copytree(shapes, tmp_path / "data"), tmp_path / "run"
    train_small(data, run)
    (run / "finished.json").unlink()
    (data / "bar" / "00.png").rename(data / "bar" / "renamed.png")
    with pytest.raises(UserError, match=r"00\.png.*no longer in the data"):
        train_small(data, run)


@pytest.mark.parametrize("lost", ["classes.json", "splits.csv"])
def test_a_run_killed_between_its_first_files_writes_what_is_missing(
    shapes, train_small, tmp_path, monkeypatch, lost
):
    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scs_supcon.training.pipeline.build_initial_encoder", killed)
        with pytest.raises(Stopped):
            train_small(shapes, tmp_path / "run")
        before = (tmp_path / "run" / lost).read_bytes()
        (tmp_path / "run" / lost).unlink()
        with pytest.raises(Stopped):
            train_small(shapes, tmp_path / "run")
    assert (tmp_path / "run" / lost).read_bytes() == before


@pytest.mark.parametrize("settings", [["pretrain.batches=long_tail"], ["pretrain.batch_size=4"]])
def test_a_dry_run_takes_a_few_images_of_each_class(train_small, settings, capsys):
    train_small("digits", "", dry_run=True, quiet=False, settings=settings)
    said = capsys.readouterr().err
    assert "images of 10 classes: 40 train, 10 val, 10 test" in said
    assert "1 epochs of" in said


def test_ctrl_c_between_the_loops_is_a_stop_too(shapes, train_small, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("scs_supcon.training.features.frozen_features", interrupt)
    with pytest.raises(Stopped, match="run the same command again") as stop:
        train_small(shapes, tmp_path / "run", epochs=1)
    assert stop.value.exit_code == 130


def test_the_heads_numbers_say_where_the_fields_lie(finished):
    recipe = from_toml((finished / "recipe.toml").read_text())
    head = recipe.head.model_copy(update={"common_dim": 10, "overlap": 3})
    method = make_method(recipe.model_copy(update={"head": head}))
    assert (method.common_dim, method.overlap) == (10, 3)


@pytest.mark.parametrize("name", available())
def test_several_processes_judge_their_rows_together(finished, name):
    recipe = from_toml((finished / "recipe.toml").read_text())
    method = recipe.method.model_copy(update={"name": name, "preset": None, "options": {}})
    for world in (1, 2):
        made = make_method(recipe.model_copy(update={"method": method}), world)
        assert made.gather_across_devices == (world > 1)


def test_a_recipe_that_names_its_data_refuses_other_data(shapes, train_small, tmp_path):
    pinned = f"data.content={content_digest(load_dataset(str(shapes), 1, lambda *_: None)[0])}"
    with pytest.raises(UserError, match="drawn is not the data this recipe was made for"):
        train_small("drawn", tmp_path / "other", settings=[pinned])
    summary = train_small(
        shapes, tmp_path / "run", settings=[pinned, "data.folds=3", "data.fold=2"], epochs=1
    )
    assert summary["images"] == 8
    assert summary["seconds"] > 0
