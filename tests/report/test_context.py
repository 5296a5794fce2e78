"""The variables of the template and the data of the scripts."""

import json

import numpy as np
import pytest

from scs_supcon.report.context import report_context
from scs_supcon.report.data import class_order, confusion_order, page_data, safe_json
from scs_supcon.report.gallery import build_gallery
from scs_supcon.report.inputs import read_records


def context_of(run):
    records = read_records(run)
    return report_context(records, build_gallery(records)), records


def test_the_accuracy_comes_first_then_the_baselines_best_first(written):
    context, records = context_of(written())
    assert context["accuracy"] == f"{records.evaluation.accuracy:.1%}"
    assert [row.title for row in context["accuracy_rows"]] == [
        "this model",
        "linear probe of the encoder",
        "kNN on the encoder",
    ]
    assert [row.main for row in context["accuracy_rows"]] == [True, False, False]
    assert dict(context["facts"])["Images"] == "16 train, 32 test"
    assert dict(context["facts"])["Time"] == "83 s"
    assert dict(context["facts"])["Encoder"] == "tiny, trained"


def test_confusions_have_the_cell_of_the_matrix(written):
    context, records = context_of(written())
    assert context["confused"]
    for pair in context["confused"]:
        assert records.evaluation.confusion_matrix()[pair.row, pair.column] == pair.count


def test_suspects_have_an_image_if_the_page_shows_it(written):
    run = written()
    content = json.loads((run / "evaluation.json").read_text())
    content["label_errors"].append(content["label_errors"][0] | {"image": "gone.jpg"})
    (run / "evaluation.json").write_text(json.dumps(content))
    context, records = context_of(run)
    names = build_gallery(records).names
    *shown, gone = context["suspects"]
    assert shown
    assert all(names[suspect.index] == suspect.name for suspect in shown)
    assert gone.index is None


def test_a_method_without_style_has_one_field(written):
    context, _ = context_of(written(style=False))
    assert [name for name, *_ in context["fields"]] == ["common"]
    assert context["leakage"] is None


def test_commands_quote_the_run_directory(written):
    context, records = context_of(written())
    assert f"scs predict '{records.path}' photo.jpg" in context["commands"][0][1]


def test_no_name_can_end_the_script():
    value = {"a": "</script><!-- <script>", "b": "x & y", "c": "\u2028"}
    text = str(safe_json(value))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_the_data_covers_every_image_and_every_confusion(written):
    records = read_records(written())
    gallery = build_gallery(records)
    points = np.zeros((len(gallery.names), 2), np.float32)
    maps = {"common": points, "style": points + 1}
    data = json.loads(str(page_data(records.evaluation, gallery, maps)))
    assert data["names"] == gallery.names
    assert data["classes"] == list(records.evaluation.classes)
    assert [len(field["neighbours"]) for field in data["fields"]] == [len(gallery.names)] * 2
    cells = data["confusion"]["cells"]
    assert sum(count for *_, count in cells) == records.evaluation.images
    for row, column, count in cells:
        assert records.evaluation.confusion_matrix()[row, column] == count


def test_confused_classes_are_adjacent():
    matrix = np.diag([10] * 6)
    for first, second in ((0, 3), (1, 4), (2, 5)):
        matrix[first, second] = matrix[second, first] = 5
    order = list(confusion_order(matrix))
    assert sorted(order) == list(range(6))
    for first, second in ((0, 3), (1, 4), (2, 5)):
        assert abs(order.index(first) - order.index(second)) == 1


@pytest.mark.parametrize("count", [2, 401])
def test_few_and_very_many_classes_keep_their_order(count, written):
    evaluation = read_records(written()).evaluation
    names = tuple(str(number) for number in range(count))
    other = evaluation.model_copy(update={"classes": names, "confusion": ((0, 1, 5), (1, 1, 5))})
    assert list(class_order(other)) == list(range(count))


def test_classes_without_images_have_an_order():
    assert sorted(confusion_order(np.zeros((4, 4), np.int64))) == [0, 1, 2, 3]
