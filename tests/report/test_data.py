"""What the scripts are told: safe inside HTML, and in a useful order."""

import json

import numpy as np

from scs_supcon.report.data import embedded, page_data, together
from scs_supcon.report.gallery import hang
from scs_supcon.report.inputs import read_inputs


def test_no_name_can_end_the_script():
    value = {"a": "</script><!-- <script>", "b": "x & y", "c": "\u2028"}
    text = str(embedded(value))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_the_page_is_told_of_every_image(written):
    inputs = read_inputs(written())
    gallery = hang(inputs)
    places = {
        "common": np.zeros((len(gallery.names), 2), np.float32),
        "style": np.ones((len(gallery.names), 2), np.float32),
    }
    told = json.loads(str(page_data(inputs.evaluation, gallery, places)))
    assert told["names"] == gallery.names
    assert told["classes"] == inputs.evaluation["classes"]
    assert [len(field["near"]) for field in told["fields"]] == [len(gallery.names)] * 2
    cells = told["confusion"]["cells"]
    assert sum(count for *_, count in cells) == inputs.evaluation["images"]
    for row, column, count in cells:
        assert inputs.evaluation["confusion"][row][column] == count


def test_confused_classes_come_together():
    matrix = np.diag([10] * 6)
    for first, second in ((0, 3), (1, 4), (2, 5)):
        matrix[first, second] = matrix[second, first] = 5
    order = list(together(matrix))
    assert sorted(order) == list(range(6))
    for first, second in ((0, 3), (1, 4), (2, 5)):
        assert abs(order.index(first) - order.index(second)) == 1


def test_few_and_very_many_classes_stay_as_they_are():
    assert list(together(np.eye(2, dtype=np.int64))) == [0, 1]
    assert list(together(np.eye(401, dtype=np.int64))) == list(range(401))
    empty = np.zeros((4, 4), np.int64)
    assert sorted(together(empty)) == [0, 1, 2, 3]
