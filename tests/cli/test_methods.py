"""`scs methods` and `scs show`."""

import json

import pytest

from scs_supcon.methods import available


def test_methods_are_listed_with_a_line_each(scs):
    found = json.loads(scs("methods", "--json").out)
    assert list(found) == available()
    assert all(found.values()), "each has something to say"
    lines = scs("methods").out.splitlines()
    assert [line.split()[0] for line in lines] == available()


@pytest.mark.parametrize("name", [*available(), "scs_supcon@paper"])
def test_every_method_shows_its_formula_and_arguments(name, scs):
    said = scs("show", name)
    assert said.code == 0
    assert said.out.count("\n") > 5
    assert "(self" not in said.out
