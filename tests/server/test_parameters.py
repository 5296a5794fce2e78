"""Parameters: what they accept, and how the OpenAPI document describes them."""

import pytest

from scs_supcon.server.parameters import Parameter

K = Parameter("k", "Number of neighbours.", 10, range(1, 101))
FIELD = Parameter("field", "A field.", "common", ("common", "style"))
NAME = Parameter("name", "Any text.")


@pytest.mark.parametrize("text", ["0", "101", "-1", "+1", "1.0", "", " 1", "٣", "²", "1" * 5000])
def test_other_numbers_are_rejected(text):
    assert K.value(text) is None


def test_values():
    assert [K.value("1"), K.value("100"), K.value("007")] == [1, 100, 7]
    assert [FIELD.value("style"), FIELD.value("other"), FIELD.value("")] == ["style", None, None]
    assert [NAME.value("x"), NAME.value("")] == ["x", ""]


def test_descriptions():
    schema = {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    assert K.describe()["schema"] == schema
    assert FIELD.describe()["schema"]["enum"] == ["common", "style"]
    assert NAME.describe("path") == {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "Any text.",
        "schema": {"type": "string"},
    }
