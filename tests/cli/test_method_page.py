"""docs/methods.md says what the docstrings say."""

import inspect
from pathlib import Path

import pytest

from scs_supcon.cli.method_page import method_page
from scs_supcon.methods import available, method_class

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_committed_page_is_the_one_that_is_made(scs):
    said = scs("methods", "--markdown")
    assert (said.code, said.out) == (0, method_page())
    assert PAGE.read_text(encoding="utf-8") == said.out, "run `make docs`"


@pytest.mark.parametrize("name", available())
def test_every_method_has_its_formula_and_all_its_arguments(name):
    section = method_page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    made = method_class(name)
    assert "    L = " in section or "The loss of `" in section
    for argument in inspect.signature(made).parameters.values():
        if argument.name != "options":
            assert f"`{argument.name} = {argument.default!r}`" in section
    row = next(line for line in method_page().splitlines() if f"(#{name})" in line)
    assert row.endswith("| adapted |") == made.adapted
