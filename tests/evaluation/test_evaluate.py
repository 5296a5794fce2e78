"""Judging a finished model on other images."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.data.shapes import drawn
from scs_supcon.errors import UserError
from scs_supcon.evaluation.evaluate import evaluate
from scs_supcon.evaluation.format import describe
from scs_supcon.inference import load


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory):
    """A copy of the finished run, to write into."""
    copy = tmp_path_factory.mktemp("evaluating") / "run"
    shutil.copytree(finished, copy)
    return copy


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Six drawn classes, two of which the run does not know, and a file that is no image."""
    root = tmp_path_factory.mktemp("others") / "more shapes"
    images = drawn(per_class=5, seed=7)
    for index, name in enumerate(images.names):
        folder = root / images.classes[images.labels[index]]
        folder.mkdir(parents=True, exist_ok=True)
        images.open(index).resize((16, 16)).save(folder / f"{name.split('/')[1]}.png")
    (root / "bar" / "broken.png").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def record(run, others):
    return evaluate(run, others, device="cpu", workers=0, quiet=True)


def test_without_data_the_runs_own_record_is_returned(run):
    expected = json.loads((run / "evaluation.json").read_text())
    assert evaluate(run) == expected
    assert evaluate(run / "model") == expected


def test_a_run_without_a_record_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="finish the run, or name the images"):
        evaluate(tmp_path)


def test_the_record_agrees_with_what_the_model_predicts(record, run, others):
    files = sorted(path for path in others.rglob("*.png") if path.name != "broken.png")
    predictions = load(run).predict(files).records
    truth = [path.parent.name for path in files]
    known = {"bar", "circle", "cross", "square"}
    ours = [(t, p) for t, p in zip(truth, predictions, strict=True) if t in known]
    assert record["images"] == len(ours) == 20
    assert record["scores"]["acc1"]["value"] == np.mean([t == p.label for t, p in ours])
    assert record["refused"] == {
        "known": np.mean([p.none_of_these for _, p in ours]),
        "unknown": np.mean(
            [p.none_of_these for t, p in zip(truth, predictions, strict=True) if t not in known]
        ),
        "unknown_images": 10,
        "unknown_classes": ["star", "triangle"],
    }
    assert record["split"] == "all"
    assert record["unreadable"][0]["name"] == "bar/broken.png"


def test_the_vectors_are_judged_too(record):
    assert set(record["baselines"]) == {"kNN on the readout", "nearest class mean"}
    assert record["leakage"]["style_columns"] == 64
    assert record["leakage"]["view_agreement"]["same_image"] <= 1
    assert record["trained_on"] == 0


def test_record_and_predictions_are_kept(record, run, others):
    file = run / "evaluations" / "more shapes.json"
    assert record["kept"] == str(file)
    kept = json.loads(file.read_text())
    assert kept == {name: value for name, value in record.items() if name != "kept"}
    rows = pq.read_table(file.with_suffix(".parquet")).to_pylist()
    assert list(rows[0]) == [
        *("name", "label", "prediction", "none_of_these", "similarity", "probabilities")
    ]
    assert len(rows) == 30
    by_name = {row["name"]: row for row in rows}
    for answer in load(run).predict(sorted((others / "star").iterdir())).records:
        row = by_name[f"star/{answer.name.split('/')[-1]}"]
        assert (row["label"], row["prediction"]) == ("star", answer.label)
        assert row["similarity"] == answer.similarity
        assert max(row["probabilities"]) == np.float32(answer.probability)


def test_the_same_data_replaces_its_record_and_other_data_does_not(run, shapes, others, tmp_path):
    quick = {"device": "cpu", "workers": 0, "quiet": True}
    other = tmp_path / "more shapes"
    shutil.copytree(shapes, other)
    again = evaluate(run, others, **quick)
    assert again["kept"].endswith("more shapes.json")
    assert evaluate(run, other, **quick)["kept"].endswith("more shapes-2.json")
    assert evaluate(run, other, **quick)["kept"].endswith("more shapes-2.json")


def test_data_of_one_name_in_two_places_is_kept_apart(run, shapes, others, tmp_path, monkeypatch):
    quick = {"device": "cpu", "workers": 0, "quiet": True}
    kept = []
    for place, data in (("a", shapes), ("b", others), ("a", None)):
        if data is not None:
            shutil.copytree(data, tmp_path / place / "test")
        monkeypatch.chdir(tmp_path / place)
        record = evaluate(run, "test", **quick)
        assert (record["data"], record["path"]) == ("test", str(tmp_path / place / "test"))
        kept.append(record["kept"].rpartition("/")[2])
    assert kept == ["test.json", "test-2.json", "test.json"]
    (run / "evaluations" / "test.json").write_text("{")
    assert evaluate(run, "test", **quick)["kept"].endswith("test-3.json")


def test_where_nothing_can_be_written_the_numbers_are_returned(run, others, record, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    (copy / "evaluations").write_text("in the way")
    with pytest.warns(RuntimeWarning, match=r"the evaluation is not kept: cannot write"):
        found = evaluate(copy, others, device="cpu", workers=0, quiet=True)
    assert "kept" not in found
    assert found["scores"] == record["scores"]
    describe(found)


def test_images_that_were_trained_on_are_counted(run, shapes):
    record = evaluate(run, shapes, device="cpu", workers=0, quiet=True)
    assert record["images"] == 24
    assert record["trained_on"] == 16


def test_a_model_folder_alone_can_be_judged(run, others, tmp_path):
    alone = tmp_path / "taken"
    shutil.copytree(run / "model", alone)
    record = evaluate(alone, others, device="cpu", workers=0, quiet=True)
    assert record["leakage"] is None, "the style of the training images stayed with the run"
    assert record["scores"]["acc1"]["value"] >= 0
    assert (alone / "evaluations" / "more shapes.json").exists()
    assert load(alone).classes


def test_a_frozen_encoder_finds_its_features_in_the_cache(
    shapes, weights, train_small, tmp_path, capsys
):
    cache, run = tmp_path / "cache", tmp_path / "run"
    frozen = {"encoder": "tiny", "weights": weights, "frozen": True, "cache": cache}
    train_small(shapes, run, epochs=1, **frozen)
    before = sorted(cache.rglob("*"))
    found = evaluate(run, shapes, device="cpu", workers=0, cache=cache)
    assert "features: 24 of 24" in capsys.readouterr().err
    assert found["leakage"]["view_agreement"] is not None
    new = set(cache.rglob("*")) - set(before)
    assert all(path.is_file() for path in new), "views of images that were not trained on"


def test_an_added_class_is_judged_like_the_others(run, others, tmp_path):
    made = load(run)
    made.add_class("star", sorted((others / "star").iterdir())[:3])
    made.save(tmp_path / "grown")
    record = evaluate(tmp_path / "grown", others, device="cpu", workers=0, quiet=True)
    assert record["images"] == 25
    assert record["refused"]["unknown_classes"] == ["triangle"]
    assert record["classes"][-1] == "star"
    assert record["per_class"][-1]["images"] == 5
    assert record["trained_on"] == 3, "those that it was taught by"
