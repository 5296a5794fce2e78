"""The tests and categories that SECURITY.md and docs/reliability.md name exist."""

import re
from pathlib import Path

from torture.__main__ import CATEGORIES

ROOT = Path(__file__).parent.parent
PROMISES = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_named_test_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PROMISES + RESULTS)
    assert len(named) > 50
    for file, test in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not test or re.search(rf"def {test}\(", text), f"{file}::{test}"


def test_every_promise_is_linked_to_tests():
    numbers = re.findall(r"^\| (\d+) \| ", PROMISES, re.MULTILINE)
    assert numbers == [str(number + 1) for number in range(len(numbers))]
    assert re.findall(r"^\| (\d+) \| .*`tests/", RESULTS, re.MULTILINE) == numbers


def test_every_category_of_the_torture_test_is_explained():
    assert re.findall(r"^- \*\*(\w+)\*\*", RESULTS, re.MULTILINE) == list(CATEGORIES)
    for names in re.findall(r"`make torture` \(([\w, ]+)\)", PROMISES):
        assert set(names.split(", ")) <= CATEGORIES.keys()
