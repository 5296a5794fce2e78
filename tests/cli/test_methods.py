"""`scs methods`, `scs show` and docs/methods.md."""

import inspect
import json
from pathlib import Path

import pytest

from scs_supcon.cli.method_page import method_page
from scs_supcon.methods import available, method_class

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_every_method_is_listed_in_one_line(scs):
    listed = json.loads(scs("methods", "--json").out)
    assert list(listed) == available()
    assert all(listed.values()), "every method has a description"
    lines = scs("methods").out.splitlines()
    assert [line.split()[0] for line in lines] == available()


@pytest.mark.parametrize("name", [*available(), "scs_supcon@paper"])
def test_show_prints_the_formula_and_the_arguments(name, scs):
    result = scs("show", name)
    assert result.code == 0
    assert result.out.count("\n") > 5
    assert "(self" not in result.out


def test_the_committed_page_is_up_to_date(scs):
    result = scs("methods", "--markdown")
    assert (result.code, result.out) == (0, method_page())
    assert PAGE.read_text(encoding="utf-8") == result.out, "run `make docs`"


@pytest.mark.parametrize("name", available())
def test_the_page_has_the_formula_and_all_arguments_of_a_method(name):
    section = method_page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    method = method_class(name)
    assert "    L = " in section or "The loss of `" in section
    for argument in inspect.signature(method).parameters.values():
        if argument.kind is not argument.VAR_KEYWORD:
            assert f"`{argument.name} = {argument.default!r}`" in section
    row = next(line for line in method_page().splitlines() if f"(#{name})" in line)
    assert row.endswith("| adapted |") == method.adapted
