"""Evaluating a finished model on other images."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.data.builtin import shapes
from scs_supcon.errors import UserError
from scs_supcon.evaluation.evaluate import evaluate
from scs_supcon.evaluation.format import describe
from scs_supcon.evaluation.record import Evaluation, UnknownEvaluation
from scs_supcon.inference import load

QUICK = {"device": "cpu", "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    """A copy of the finished run that can be written to."""
    copy = tmp_path_factory.mktemp("evaluate") / "run"
    shutil.copytree(finished, copy)
    return copy


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Six classes of shapes, two of them unknown, and a file that is not an image."""
    root = tmp_path_factory.mktemp("others") / "more shapes"
    images = shapes(per_class=5, seed=7)
    for index, name in enumerate(images.names):
        folder = root / images.classes[images.labels[index]]
        folder.mkdir(parents=True, exist_ok=True)
        images.open(index).resize((16, 16)).save(folder / f"{name.split('/')[1]}.png")
    (root / "bar" / "broken.png").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def evaluation(run, others):
    return evaluate(run, others, **QUICK)


def test_without_data_the_stored_evaluation_is_returned(run):
    expected = Evaluation.read(run / "evaluation.json")
    assert evaluate(run) == expected
    assert evaluate(run / "model") == expected


def test_a_run_without_evaluation_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="finish the run, or give images"):
        evaluate(tmp_path)


def test_a_loaded_model_needs_data_and_writes_nothing(run, others, evaluation):
    model = load(run, "cpu")
    with pytest.raises(UserError, match="only be evaluated on data"):
        evaluate(model)
    dataset_from_arrays = evaluate(model, others, **QUICK)
    assert dataset_from_arrays.saved_to is None
    assert dataset_from_arrays.scores == evaluation.scores


def test_the_evaluation_agrees_with_the_predictions(evaluation, run, others):
    files = sorted(path for path in others.rglob("*.png") if path.name != "broken.png")
    predictions = load(run).predict(files).records
    labels = [path.parent.name for path in files]
    pairs = list(zip(labels, predictions, strict=True))
    known_classes = {"bar", "circle", "cross", "square"}
    known = [(label, p) for label, p in pairs if label in known_classes]
    unknown = [p for label, p in pairs if label not in known_classes]
    assert evaluation.images == len(known) == 20
    assert evaluation.accuracy == np.mean([label == p.label for label, p in known])
    rejection = evaluation.rejection
    assert rejection.known_rejected == np.mean([p.unknown for _, p in known])
    assert rejection.unknown_rejected == np.mean([p.unknown for p in unknown])
    assert rejection.unknown_images == 10
    assert rejection.unknown_classes == ("star", "triangle")
    assert evaluation.split == "all"
    assert evaluation.unreadable[0].image == "bar/broken.png"


def test_embeddings_are_evaluated(evaluation):
    assert evaluation.baselines.measured().keys() == {"knn_on_probe_input", "nearest_class_mean"}
    assert evaluation.leakage.style_dim == 64
    assert evaluation.leakage.view_agreement.style_same_image <= 1
    assert evaluation.training_images == 0


def test_evaluation_and_predictions_are_saved(evaluation, run, others):
    file = run / "evaluations" / "more shapes.json"
    assert evaluation.saved_to == str(file)
    assert Evaluation.read(file) == evaluation.model_copy(update={"saved_to": None})
    rows = pq.read_table(file.with_suffix(".parquet")).to_pylist()
    assert list(rows[0]) == [
        *(
            "name",
            "label",
            "prediction",
            "unknown",
            "similarity",
            "probabilities",
        )  # vocabulary: ok
    ]
    assert len(rows) == 30
    by_name = {row["name"]: row for row in rows}
    for prediction in load(run).predict(sorted((others / "star").iterdir())).records:
        row = by_name[f"star/{prediction.name.split('/')[-1]}"]
        assert (row["label"], row["prediction"]) == ("star", prediction.label)
        assert row["similarity"] == prediction.similarity
        assert max(row["probabilities"]) == np.float32(prediction.probability)


def test_only_the_same_data_replaces_an_evaluation(run, shapes, others, tmp_path):
    same_name = tmp_path / "more shapes"
    shutil.copytree(shapes, same_name)
    assert evaluate(run, others, **QUICK).saved_to.endswith("more shapes.json")
    assert evaluate(run, same_name, **QUICK).saved_to.endswith("more shapes-2.json")
    assert evaluate(run, same_name, **QUICK).saved_to.endswith("more shapes-2.json")


def test_data_of_the_same_name_in_two_folders(run, shapes, others, tmp_path, monkeypatch):
    files = []
    for folder, data in (("a", shapes), ("b", others), ("a", None)):
        if data is not None:
            shutil.copytree(data, tmp_path / folder / "test")
        monkeypatch.chdir(tmp_path / folder)
        evaluation = evaluate(run, "test", **QUICK)
        assert (evaluation.data, evaluation.path) == ("test", str(tmp_path / folder / "test"))
        files.append(evaluation.saved_to.rpartition("/")[2])
    assert files == ["test.json", "test-2.json", "test.json"]
    (run / "evaluations" / "test.json").write_text("{")
    assert evaluate(run, "test", **QUICK).saved_to.endswith("test-3.json")


def test_a_read_only_run_still_returns_the_evaluation(run, others, evaluation, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    (copy / "evaluations").write_text("a file instead of a directory")
    with pytest.warns(RuntimeWarning, match=r"the evaluation is not saved: cannot write"):
        unsaved = evaluate(copy, others, **QUICK)
    assert unsaved.saved_to is None
    assert unsaved.scores == evaluation.scores
    assert "saved to" not in describe(unsaved)


def test_training_images_are_counted(run, shapes):
    evaluation = evaluate(run, shapes, **QUICK)
    assert evaluation.images == 24
    assert evaluation.training_images == 16


def test_a_model_directory_without_its_run_measures_style_too(run, others, tmp_path):
    model = tmp_path / "copy"
    shutil.copytree(run / "model", model)
    evaluation = evaluate(model, others, **QUICK)
    assert evaluation.leakage == evaluate(run, others, **QUICK).leakage
    assert evaluation.leakage is not None
    assert (model / "evaluations" / "more shapes.json").exists()
    assert load(model).classes


def test_a_frozen_encoder_uses_the_feature_cache(shapes, weights, train_small, tmp_path, capsys):
    cache, run = tmp_path / "cache", tmp_path / "run"
    frozen = {"encoder": "tiny", "weights": weights, "frozen": True, "cache": cache}
    train_small(shapes, run, epochs=1, **frozen)
    before = set(cache.rglob("*"))
    evaluation = evaluate(run, shapes, device="cpu", workers=0, cache=cache)
    assert "features: 24 of 24" in capsys.readouterr().err
    assert evaluation.leakage.view_agreement is not None
    new = set(cache.rglob("*")) - before
    assert new
    assert all(path.is_file() for path in new), "shards in existing directories"


def test_an_added_class_is_evaluated(run, others, tmp_path):
    model = load(run)
    model.add_class("star", sorted((others / "star").iterdir())[:3])
    model.save(tmp_path / "extended")
    evaluation = evaluate(tmp_path / "extended", others, **QUICK)
    assert evaluation.images == 25
    assert evaluation.rejection.unknown_classes == ("triangle",)
    assert evaluation.classes[-1] == "star"
    assert evaluation.per_class[-1].images == 5
    assert evaluation.training_images == 3, "the images the class was added with"


def test_a_folder_of_unknown_classes_alone_is_evaluated(run, others, tmp_path):
    folder = tmp_path / "stars"
    shutil.copytree(others / "star", folder / "star")
    evaluation = evaluate(run, folder, **QUICK)
    assert isinstance(evaluation, UnknownEvaluation)
    records = load(run).predict(folder).records
    assert evaluation.images == len(records) == 5
    assert evaluation.rejected == np.mean([record.unknown for record in records])
    accepted = [record.label for record in records if not record.unknown]
    assert sum(evaluation.accepted_as.values()) == len(accepted)
    assert set(evaluation.accepted_as) == set(accepted)
    text = describe(evaluation)
    assert "5 images of unknown classes only" in text
    assert "the model has none of the classes star" in text
    stored = UnknownEvaluation.model_validate_json((run / "evaluations/stars.json").read_text())
    assert stored == evaluation.model_copy(update={"saved_to": None})
    (folder / "star").rename(folder / "Bar")
    assert "did you mean 'bar'?" in describe(evaluate(run, folder, **QUICK))


def test_the_threshold_can_be_chosen(run, others):
    rejected = [
        evaluate(run, others, threshold=threshold, **QUICK).rejection for threshold in (-1, 1)
    ]
    assert [r.known_rejected for r in rejected] == [0, 1]
    assert [r.unknown_rejected for r in rejected] == [0, 1]
    assert [r.threshold for r in rejected] == [-1, 1]
    some = evaluate(run, others, false_rejection=0.5, **QUICK).rejection
    assert some.known_rejected == np.mean(
        [r.unknown for r in load(run).predict(_known(others), false_rejection=0.5).records]
    )
    with pytest.raises(UserError, match="give images to evaluate"):
        evaluate(run, threshold=0.5)


def _known(others):
    names = ("bar", "circle", "cross", "square")
    return [p for name in names for p in (others / name).iterdir() if p.name != "broken.png"]
