"""`train` on small images: the run directory, resuming, options, and errors."""

import csv
import json
import shutil
import socket

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from scs_supcon.data.dataset import problem_title
from scs_supcon.data.load import load_images
from scs_supcon.errors import UserError
from scs_supcon.inference import load
from scs_supcon.inference.onnx import export_onnx
from scs_supcon.methods import available
from scs_supcon.recipe import from_toml, write_toml
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.train import resolved_recipe, train

PRESETS = ("scs_supcon@solved", "scs_supcon@paper", "scs_supcon@learned")


def rows_of(run, split):
    table = pq.read_table(run / "predictions.parquet").to_pylist()
    return [row for row in table if row["split"] == split]


# The run directory


def test_a_finished_run_directory_is_complete(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        *("recipe.toml", "environment.json", "classes.json", "splits.csv", "metrics.csv"),
        *("tensorboard", "checkpoints", "model", "predictions.parquet", "finished.json", ".lock"),
        *("embeddings.parquet", "thumbnails.parquet", "problems.json", "evaluation.json"),
        *("report.html", "figures", "label_scores.parquet"),
    }
    assert {path.name for path in (finished / "model").iterdir()} == {
        *("weights.safetensors", "model.json", "SHA256SUMS", "README.md")
    }
    assert json.loads((finished / "classes.json").read_text()) == [
        *("bar", "circle", "cross", "square")
    ]
    with (finished / "metrics.csv").open(newline="") as file:
        stages = [row["stage"] for row in csv.DictReader(file)]
    assert list(dict.fromkeys(stages)) == ["pretrain", "probe", "linear"]


def test_a_loaded_model_repeats_the_predictions_of_training(finished, shapes):
    model = load(finished)
    rows = rows_of(finished, "test") + rows_of(finished, "val")
    records, failures = model.predict([shapes / row["name"] for row in rows], topk=4)
    assert not failures
    for row, record in zip(rows, records, strict=True):
        probabilities = dict(record.top)
        again = np.array([probabilities[name] for name in model.classes], dtype=np.float32)
        assert np.array_equal(again, np.array(row["probabilities"], dtype=np.float32))
        assert record.label == row["prediction"]
        assert record.similarity == pytest.approx(row["similarity"], rel=1e-6)
        assert record.unknown == row["unknown"]


def test_the_printed_recipe_is_the_recipe_of_the_run(finished, shapes):
    settings = ("probe.epochs=2", "probe.views=1")
    recipe = resolved_recipe(shapes, epochs=2, batch_size=8, settings=settings, device="cpu")
    assert write_toml(recipe) == (finished / "recipe.toml").read_text()


def test_the_printed_recipe_does_not_count_unreadable_images(shapes, tmp_path):
    data = shutil.copytree(shapes, tmp_path / "data")
    for file in sorted((data / "bar").iterdir())[:2]:
        file.write_bytes(b"")
    assert resolved_recipe(data, device="cpu").pretrain.batch_size == 14, "4, 4, 4 and 2"


# Repeating and resuming


def test_the_same_seed_gives_the_same_files(
    finished, shapes, train_small, deterministic_files, tmp_path
):
    train_small(shapes, tmp_path / "same")
    assert deterministic_files(tmp_path / "same") == deterministic_files(finished)
    train_small(shapes, tmp_path / "other", seed=1)
    first, other = deterministic_files(finished), deterministic_files(tmp_path / "other")
    different = {name for name in first if first[name] != other[name]}
    assert different >= {"metrics.csv", "predictions.parquet", "model/weights.safetensors"}


def test_a_finished_run_is_not_trained_again(finished, shapes, train_small, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    result = train_small(shapes, finished, quiet=False)
    assert "is finished: " in capsys.readouterr().err
    assert result.summary.model_dump(mode="json") == json.loads(
        (finished / "finished.json").read_text()
    )
    after = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    assert after == before


def test_a_directory_with_another_recipe_is_an_error(finished, shapes, train_small):
    with pytest.raises(
        UserError, match=r"(?s)a different recipe:.*seed: 0 then, 1 now.*--overwrite"
    ):
        train_small(shapes, finished, seed=1)


def test_overwriting_starts_again_and_keeps_other_files(finished, shapes, train_small, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    train_small(shapes, run, seed=1, overwrite=True)
    assert from_toml((run / "recipe.toml").read_text()).seed == 1
    assert json.loads((run / "finished.json").read_text())["path"] == str(run)
    assert (run / "notes.txt").read_text() == "mine"


def test_a_directory_in_use_is_an_error(finished, shapes, train_small, tmp_path):
    recipe = (finished / "recipe.toml").read_text()
    with (
        RunDir.open(tmp_path / "run", recipe),
        pytest.raises(UserError, match="in use by process"),
    ):
        train_small(shapes, tmp_path / "run")


def test_a_recipe_file_repeats_a_run(shapes, train_small, tmp_path, finished, deterministic_files):
    again = tmp_path / "again"
    train(shapes, out=again, recipe=finished / "recipe.toml", workers=0, device="cpu", quiet=True)
    assert deterministic_files(again) == deterministic_files(finished)


def test_workers_do_not_change_the_result(
    shapes, train_small, finished, deterministic_files, tmp_path
):
    train_small(shapes, tmp_path / "run", workers=2)
    assert deterministic_files(tmp_path / "run") == deterministic_files(finished)


# A dry run, and starting from a run


def test_a_dry_run_leaves_no_files(shapes, train_small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    result = train_small(shapes, "", dry_run=True, quiet=False, epochs=500)
    assert "dry run passed" in capsys.readouterr().err
    assert 0 <= result.accuracy <= 1
    assert len(result.model.classes) == len(result.evaluation.classes) == 4
    assert [*tmp_path.rglob("*")] == [tmp_path / "temporary"]


def test_init_from_starts_from_the_weights_of_a_run(finished, shapes, train_small, tmp_path):
    train_small(shapes, tmp_path / "same", init_from=finished, epochs=0)
    old = load_file(finished / "model" / "weights.safetensors")
    new = load_file(tmp_path / "same" / "model" / "weights.safetensors")
    for name in old:
        if name.startswith(("encoder/", "head/")):
            assert torch.equal(new[name], old[name])
    train_small(shapes, tmp_path / "on", init_from=finished / "model", method="supcon")
    further = load_file(tmp_path / "on" / "model" / "weights.safetensors")
    assert not torch.equal(
        further["encoder/body.layers.0.0.weight"], old["encoder/body.layers.0.0.weight"]
    )


def test_init_from_needs_the_same_head(finished, shapes, train_small, tmp_path):
    with pytest.raises(UserError, match="the weights do not fit the head"):
        train_small(shapes, tmp_path / "run", init_from=finished, settings=["head.common_dim=10"])


# Methods and encoders


@pytest.mark.parametrize("frozen", [False, True], ids=["whole", "frozen"])
@pytest.mark.parametrize("method", [*available(), *PRESETS])
def test_every_method_trains_and_predicts(method, frozen, shapes, weights, train_small, tmp_path):
    options = {"encoder": "tiny", "weights": weights, "frozen": True} if frozen else {}
    result = train_small(shapes, tmp_path / "run", method=method, epochs=1, **options)
    assert result.evaluation.images == 4
    model = load(tmp_path / "run")
    image = next(shapes.rglob("*.png"))
    assert model.predict([image]).records[0].label in model.classes
    assert model.info.recipe.encoder.frozen == frozen
    if frozen:
        trained = load_file(tmp_path / "run" / "model" / "weights.safetensors")
        for name, tensor in load_file(weights).items():
            assert torch.equal(trained[f"encoder/body.{name}"], tensor), "unchanged"


@pytest.mark.parametrize("frozen", [True, False])
def test_style_is_fitted_to_features_without_the_class(
    frozen, shapes, weights, train_small, tmp_path, capsys
):
    options = {"weights": weights, "frozen": True} if frozen else {}
    options |= {"encoder": "tiny", "quiet": False, "method": "scs_supcon@solved"}
    train_small(shapes, tmp_path / "run", ["head.style=fitted"], **options)
    assert "from features without the class, fitted after stage 1" in capsys.readouterr().err
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        names = {row["metric"] for row in csv.DictReader(file)}
    assert "contrast" in names
    assert "style" not in names, "stage 1 does not see the style field"
    model = load(tmp_path / "run")
    trained = load_file(tmp_path / "run" / "model" / "weights.safetensors")
    features = model.features([shapes / name for name in model.info.image_names])
    style = features @ trained["head/style.weight"].T + trained["head/style.bias"]
    means = torch.stack([style[model.gallery.labels == label].mean(0) for label in range(4)])
    assert (means - means.mean(0)).abs().max() < 1e-3 * style.abs().max()
    images = sorted(shapes.rglob("*.png"))
    parity = export_onnx(model, tmp_path / "model.onnx", images)
    assert parity.embedding < 1e-4
    model.save(tmp_path / "copy")
    again = load(tmp_path / "copy")
    assert np.array_equal(again.embed(images).style, model.embed(images).style)


def test_a_constant_style_field_is_reported_at_the_end(shapes, train_small, tmp_path, capsys):
    settings = ["head.centre=false", "method.options.beta=0.0", "pretrain.weight_decay=5.0"]
    options = {"epochs": 4, "quiet": False, "report": True, "method": "scs_supcon@solved"}
    train_small(shapes, tmp_path / "run", settings, **options)
    assert "warning   The style field is constant" in capsys.readouterr().err
    assert "The style field is constant" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    "method", ["supcon", "cs_supcon", "oscs_supcon", "circle", "byol", "pcl", "cross_entropy_mlp"]
)
def test_a_fitted_style_field_can_be_used_with_any_method(
    method, shapes, weights, train_small, tmp_path
):
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "method": method}
    settings = ["head.style=fitted", "head.common_dim=24", "head.style_dim=8"]
    train_small(shapes, tmp_path / "run", settings, epochs=1, **options)
    embedded = load(tmp_path / "run").embed(sorted(shapes.rglob("*.png")))
    assert embedded.common.shape == (len(embedded.names), 24)
    assert embedded.style.shape == (len(embedded.names), 8)


def test_training_makes_no_network_connection(shapes, weights, train_small, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError(f"a connection: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    train_small(shapes, tmp_path / "whole", epochs=1)
    train_small(shapes, tmp_path / "frozen", epochs=1, encoder="tiny", weights=weights)
    load(tmp_path / "whole").predict([next(shapes.rglob("*.png"))])


def test_runs_share_the_features_of_a_frozen_encoder(
    shapes, weights, train_small, tmp_path, capsys
):
    options = {"encoder": "tiny", "weights": weights, "cache": tmp_path / "cache", "quiet": False}
    train_small(shapes, tmp_path / "one", **options)
    first = capsys.readouterr().err
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    train_small(shapes, tmp_path / "two", method="supcon", seed=0, **options)
    assert "frozen, with weights from" in first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == shards
    assert not (tmp_path / "one" / "features").exists()


def test_missing_pretrained_weights_are_an_error_with_advice(
    shapes, train_small, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    options = {"encoder": "resnet18", "settings": ["encoder.weights=pretrained"], "offline": True}
    with pytest.raises(UserError, match=r"Fetch model.safetensors .*\n.*resnet18.*\n.*--weights"):
        train_small(shapes, tmp_path / "run", **options)


def test_a_recipe_with_a_weights_digest_needs_the_file(shapes, weights, train_small, tmp_path):
    train_small(shapes, tmp_path / "run", encoder="tiny", weights=weights, epochs=1)
    recipe = tmp_path / "run" / "recipe.toml"
    with pytest.raises(UserError, match="needs its weights file: give it with --weights"):
        train(shapes, out=tmp_path / "again", recipe=recipe, workers=0, device="cpu", quiet=True)


# Unusual data


def test_unreadable_images_are_left_out_and_reported(shapes, train_small, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "data")
    whole = (data / "bar" / "00.png").read_bytes()
    (data / "bar" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (data / "circle" / "noise.jpg").write_bytes(b"no image at all")
    (data / "circle" / "empty.png").write_bytes(b"")
    (data / "notes.txt").write_text("hello")
    train_small(data, tmp_path / "run", quiet=False, epochs=1)
    output = capsys.readouterr().err
    left_out = [line for line in output.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == 3
    for name in ("cut.png", "noise.jpg", "empty.png"):
        assert sum(name in line for line in left_out) == 1
    assert "data      24 images of 4 classes" in output
    assert "problem   skipped file: 1, first notes.txt" in output
    assert "cut.png" not in (tmp_path / "run" / "splits.csv").read_text()


def test_a_class_with_one_image_is_reported_and_trained(shapes, train_small, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "data")
    for file in sorted((data / "bar").iterdir())[1:]:
        file.unlink()
    train_small(data, tmp_path / "run", quiet=False, epochs=1)
    assert (
        f"problem   {problem_title('single_image_class')}: 1, first bar" in capsys.readouterr().err
    )
    assert "bar" in load(tmp_path / "run").classes


def test_without_test_images_the_accuracy_is_that_of_validation(shapes, train_small, tmp_path):
    result = train_small(shapes, tmp_path / "run", epochs=1, settings=["data.test_share=0"])
    assert (result.summary.split, result.summary.images) == ("val", 4)
    assert rows_of(tmp_path / "run", "test") == []
    assert load(tmp_path / "run").info.counts["test"] == 0


def test_copies_of_an_image_stay_in_one_split(shapes, train_small, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "data")
    for file in sorted(data.rglob("*.png")):
        shutil.copy(file, file.with_name(f"copy of {file.name}"))
    train_small(data, tmp_path / "run", quiet=False, epochs=1)
    assert "problem   duplicate: 24, first " in capsys.readouterr().err
    with (tmp_path / "run" / "splits.csv").open(newline="") as file:
        splits = {row["name"]: row["split"] for row in csv.DictReader(file)}
    for name, split in splits.items():
        assert splits[name.replace("copy of ", "")] == split


def test_imbalanced_data_gets_balanced_batches(shapes, train_small, tmp_path, capsys):
    data = shutil.copytree(shapes, tmp_path / "data")
    for name in ("bar", "circle"):
        for file in sorted((data / name).iterdir())[4:]:
            file.unlink()
    train_small(data, tmp_path / "run", quiet=False, epochs=1, batch_size=6)
    assert "balanced, 2 per class" in capsys.readouterr().err


def test_the_splits_of_a_table_are_used(shapes, train_small, tmp_path):
    images = load_images(shapes)
    splits = ["train", "train", "train", "val", "test", "test"] * 4
    with (tmp_path / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image_path", "label", "split"])
        for name, label, split in zip(images.names, images.labels, splits, strict=True):
            rows.writerow([shapes / name, f"class {label}", split])
    result = train_small(tmp_path / "data.csv", tmp_path / "run", epochs=1)
    assert result.evaluation.images == 8
    assert load(tmp_path / "run").classes == ("class 0", "class 1", "class 2", "class 3")


def folder_with_one_class(tmp_path):
    (tmp_path / "data" / "only").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "data" / "only" / "a.png")
    return tmp_path / "data"


def folder_with_a_class_that_is_only_tested(tmp_path):
    for number, name in enumerate(("train/a", "train/b", "test/a", "test/c")):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for shade in range(4):
            Image.new("RGB", (16, 16), (number, shade, 0)).save(folder / f"{shade}.png")
    return tmp_path / "data"


def folder_without_a_readable_image(tmp_path):
    data = folder_with_one_class(tmp_path)
    for number in range(9):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(data / "only" / f"{number}.png")
    (data / "bad").mkdir()
    (data / "bad" / "a.png").write_bytes(b"?")
    return data


def table_with_a_bad_column(tmp_path):
    (tmp_path / "data.csv").write_text("image_path,lable\na.png,x\n")
    return tmp_path / "data.csv"


def table_with_a_missing_image(tmp_path):
    (tmp_path / "data.csv").write_text("image_path,label\ngone.png,x\n")
    return tmp_path / "data.csv"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "dtaa", r"dtaa' does not exist"),
        (folder_with_one_class, r"only one class \('only'\)"),
        (folder_with_a_class_that_is_only_tested, r"class 'c' is in test but has no training"),
        (folder_without_a_readable_image, r"class 'bad' has no usable image left"),
        (table_with_a_bad_column, r"no column 'label'.*rename 'lable' to 'label'"),
        (table_with_a_missing_image, r"lists .*gone.png, which does not exist"),
    ],
)
def test_bad_data_is_an_error_and_creates_no_directory(make, message, train_small, tmp_path):
    with pytest.raises(UserError, match=message):
        train_small(make(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "supcom"}, "unknown method 'supcom'; did you mean 'supcon'"),
        ({"method": "scs_supcon@papper"}, "preset must be .*, got 'papper'"),
        ({"method": "supcon@paper"}, "method supcon has no presets"),
        ({"encoder": "resnet19"}, "unknown encoder 'resnet19'"),
        ({"from_scratch": True, "weights": __file__}, "use one of them"),
        ({"settings": ["pretrain.lrr=1"]}, "unknown key 'lrr' in .pretrain.; did you mean 'lr'"),
        ({"settings": ["method.options.tt=1"]}, "method scs_supcon has no option 'tt'"),
        ({"settings": ["pretrain.precision=16-mixed"]}, "16-mixed needs a GPU"),
        ({"frozen": True}, "--frozen requires pretrained weights"),
        ({"device": "cuba"}, "device 'cuba' is not available"),
        ({"recipe": "gone.toml"}, "cannot read the recipe: gone.toml does not exist"),
        ({"init_from": "gone"}, "gone does not exist"),
        ({"weights": "gone.safetensors"}, "gone.safetensors does not exist"),
    ],
)
def test_bad_options_are_an_error_and_create_no_directory(
    options, message, shapes, train_small, tmp_path
):
    with pytest.raises(UserError, match=message):
        train_small(shapes, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_be_written_is_an_error(shapes, train_small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file.*choose another folder"):
        train_small(shapes, tmp_path / "file" / "run")


def test_weights_of_another_encoder_are_an_error(shapes, weights, train_small, tmp_path):
    options = {"encoder": "resnet18", "weights": weights}
    with pytest.raises(UserError, match=r"tiny\.safetensors does not fit the encoder resnet18"):
        train_small(shapes, tmp_path / "run", **options)


# The report


def test_a_finished_run_without_a_report_gets_one(shapes, train_small, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    result = train_small(shapes, tmp_path / "run", report=True)
    assert result.accuracy == json.loads((finished / "finished.json").read_text())["accuracy"]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_failed_report_does_not_affect_the_run(shapes, train_small, finished, tmp_path, capsys):
    run = tmp_path / "a run"
    shutil.copytree(finished, run)
    (run / "report.html").unlink()
    (run / "evaluation.json").write_text("{")
    result = train_small(shapes, run, report=True, quiet=False)
    assert result.accuracy == json.loads((finished / "finished.json").read_text())["accuracy"]
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("cannot write the report (")
    assert "evaluation.json is damaged" in line
    assert line.endswith(f"to try again, run `scs report '{run}'`")
