"""The file of an evaluation: every field, and damaged files."""

import json
from pathlib import Path

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.evaluation.compute import confusion_cells
from scs_supcon.evaluation.record import Evaluation

SCORE = {"value": 0.5, "low": 0.4, "high": 0.6}
RELIABILITY = {
    "ece": 0.1,
    "bins": [{"low": 0.0, "high": 1.0, "confidence": 0.6, "accuracy": 0.5, "count": 8}],
}
CONTENT = {
    "format_version": 3,
    "images": 8,
    "training_images": 3,
    "classes": ["ant", "bee"],
    "scores": {
        "accuracy": SCORE,
        "top5_accuracy": SCORE,
        "macro_f1": SCORE,
        "balanced_accuracy": SCORE,
    },
    "calibration": {"temperature": 1.5, "before": RELIABILITY, "after": RELIABILITY},
    "retrieval": {"precision_at_1": 0.7, "map_at_r": 0.6},
    "pairs": {
        "boundary": 0.3,
        "rule": "boundary",
        "threshold": 0.3,
        "auc": 0.9,
        "true_positive_rate": 0.8,
        "false_positive_rate": 0.1,
        "roc": [[0.0, 0.0], [1.0, 1.0]],
        "histogram": {"edges": [-1, 0, 1], "same": [1, 2], "different": [3, 4]},
        "images": 8,
    },
    "rejection": {
        "known_rejected": 0.25,
        "unknown_rejected": 0.75,
        "unknown_images": 4,
        "unknown_classes": ["yak"],
    },
    "per_class": [
        {
            "name": n,
            "images": 4,
            "precision": 0.5,
            "recall": 0.5,
            "f1": 0.5,
            "rejected": 0.1,
        }
        for n in ("ant", "bee")
    ],
    "confusion": [[0, 0, 2], [0, 1, 2], [1, 0, 2], [1, 1, 2]],
    "confused_pairs": [{"label": "ant", "prediction": "bee", "count": 2}],
    "leakage": {
        "chance": 0.5,
        "class_from_common": 0.9,
        "class_from_style": 0.6,
        "view_agreement": {
            "style_same_image": 0.7,
            "style_same_class": 0.1,
            "common_same_image": 0.9,
        },
        "style_rank": 3.5,
        "style_dim": 64,
        "sentence": "not read",
    },
    "data": "zoo",
    "path": "/data/zoo",
    "split": "all",
    "baselines": {
        "knn_on_probe_input": 0.1,
        "nearest_class_mean": 0.2,
        "linear_probe_of_encoder": 0.3,
        "knn_on_encoder": 0.4,
        "own_classifier": 0.5,
        "probe": 0.6,
    },
    "unreadable": [{"image": "x.png", "detail": "x.png is empty"}],
    "label_errors": [
        {
            "image": "ant/1.png",
            "label": "ant",
            "suggested": "bee",
            "label_probability": 0.05,
            "suggested_probability": 0.95,
        }
    ],
}


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    (tmp_path / "evaluation.json").write_text(json.dumps(CONTENT))
    return Evaluation.read(tmp_path / "evaluation.json")


def test_every_field_is_read(evaluation: Evaluation) -> None:
    assert evaluation.format_version == 3
    assert evaluation.confusion == ((0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2))
    assert evaluation.confusion_matrix().tolist() == [[2, 2], [2, 2]]
    assert (evaluation.images, evaluation.training_images, evaluation.pairs.images) == (8, 3, 8)
    assert evaluation.accuracy == evaluation.scores.top5_accuracy.value == 0.5
    assert evaluation.scores.balanced_accuracy.high == 0.6
    assert evaluation.calibration.after.bins[0].accuracy == 0.5
    assert evaluation.calibration.nll is None
    assert evaluation.retrieval.precision_at_1 == 0.7
    assert evaluation.rejection.known_rejected == 0.25
    assert evaluation.rejection.unknown_rejected == 0.75
    assert evaluation.rejection.unknown_images == 4
    assert evaluation.per_class[1].name == "bee"
    assert (evaluation.per_class[1].images, evaluation.per_class[1].rejected) == (4, 0.1)
    assert evaluation.confused_pairs[0].prediction == "bee"
    assert evaluation.leakage is not None
    assert evaluation.leakage.style_dim == 64
    assert evaluation.leakage.view_agreement is not None
    assert dict(evaluation.leakage.view_agreement) == {
        "style_same_image": 0.7,
        "style_same_class": 0.1,
        "common_same_image": 0.9,
    }
    assert evaluation.baselines.measured() == {
        "knn_on_probe_input": 0.1,
        "nearest_class_mean": 0.2,
        "linear_probe_of_encoder": 0.3,
        "knn_on_encoder": 0.4,
        "own_classifier": 0.5,
        "probe": 0.6,
    }
    assert evaluation.unreadable[0].image == "x.png"
    assert evaluation.label_errors[0].image == "ant/1.png"
    assert evaluation.label_errors[0].label_probability == 0.05


def test_writing_and_reading_changes_nothing(evaluation: Evaluation, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    evaluation.write(file)
    assert Evaluation.read(file) == evaluation
    assert len(file.read_text().splitlines()) == len(json.loads(file.read_text()))


def test_the_path_of_the_file_is_not_part_of_it(evaluation: Evaluation, tmp_path: Path) -> None:
    saved = evaluation.model_copy(update={"saved_to": "here"})
    assert saved.to_json() == evaluation.to_json()


def test_the_headline_has_the_main_numbers(evaluation: Evaluation) -> None:
    headline = evaluation.headline()
    assert (headline.accuracy, headline.interval) == (0.5, (0.4, 0.6))
    assert (headline.split, headline.images, headline.rejected) == ("all", 8, 0.25)
    assert headline.baselines == evaluation.baselines


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"evaluation\.json is damaged: "),
        ("[]", r"evaluation\.json is damaged: "),
        ("{}", r"evaluation\.json is damaged: "),
        (json.dumps(CONTENT | {"scores": 3}), r"evaluation\.json is damaged: "),
        (json.dumps(CONTENT | {"format_version": 9}), "evaluation.json has format 9, "),
        (json.dumps(CONTENT | {"format_version": 2}), "evaluation.json has format 2, "),
    ],
)
def test_other_files_are_rejected(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "evaluation.json"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        Evaluation.read(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json does not exist"):
        Evaluation.read(tmp_path / "gone.json")


def test_a_cell_of_a_class_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(CONTENT | {"format_version": 3, "confusion": [[0, 7, 1]]}))
    with pytest.raises(UserError, match=r"evaluation.json.*cell of the classes 0 and 7.*2 classes"):
        Evaluation.read(path)


def test_the_matrix_of_many_classes_takes_as_much_space_as_there_are_images() -> None:
    labels = torch.arange(20_000)
    cells = confusion_cells(labels.roll(1), labels)
    assert len(cells) == 20_000
    assert cells[:2] == ((0, 19_999, 1), (1, 0, 1))
