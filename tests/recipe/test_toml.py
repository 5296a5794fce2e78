"""Recipes as TOML: round trips, assignments by type, and errors."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scs_supcon.errors import UserError
from scs_supcon.recipe import (
    SECTIONS,
    from_toml,
    make_recipe,
    merge,
    override,
    read_recipe,
    recipe_hash,
    write_toml,
)

BIRDS = {"data": {"source": "birds"}}

numbers = st.floats(allow_nan=False, allow_infinity=False)
options = st.dictionaries(
    st.text(),
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), numbers, st.text())
    | st.lists(st.one_of(st.booleans(), numbers, st.text())),
)
lrs = st.lists(st.floats(1e-300, 1e300), min_size=1)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(options=options, lrs=lrs, source=st.text(min_size=1), mean=st.tuples(*[numbers] * 3))
def test_a_recipe_survives_a_round_trip_through_toml(
    options: dict[str, Any], lrs: list[float], source: str, mean: tuple[float, ...]
) -> None:
    values = {
        "data": {"source": source, "mean": mean},
        "method": {"options": options},
        "probe": {"lrs": lrs},
    }
    recipe = make_recipe(values)
    again = from_toml(write_toml(recipe))
    assert again == recipe
    assert recipe_hash(again) == recipe_hash(recipe)
    assert [type(value) for value in again.method.options.values()] == [
        type(value) for value in options.values()
    ]


def test_every_key_is_written_with_a_comment() -> None:
    optional = {"folds": 5, "fold": 4, "images_per_class": 9, "split_seed": 1, "fold_from": "train"}
    optional |= {"content": "0" * 64, "imbalance": 10.0}
    optional |= {"transform": "views.py:build", "transform_code": "0" * 64}
    data = {"data": BIRDS["data"] | optional}
    method = {"preset": "paper", "code": "0" * 64}
    recipe = make_recipe({**data, "method": method, "pretrain": {"views": 1}})
    lines = write_toml(recipe).splitlines()
    for section in SECTIONS.values():
        for key, info in section.model_fields.items():
            number = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
            assert info.description
            assert lines[number - 1].startswith("# ")


def test_the_hash_depends_on_the_values_only() -> None:
    plain = make_recipe(BIRDS)
    spelt_out = make_recipe({"pretrain": {"epochs": 100, "lr": 0.1}, "seed": 0, **BIRDS})
    assert recipe_hash(plain) == recipe_hash(spelt_out)
    assert recipe_hash(plain) != recipe_hash(make_recipe({**BIRDS, "seed": 1}))
    assert len(recipe_hash(plain)) == 64


def test_a_file_may_contain_part_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[pretrain]\nepochs = 7\n")
    assert read_recipe(file) == {"pretrain": {"epochs": 7}}
    assert make_recipe(merge(BIRDS, read_recipe(file))).pretrain.epochs == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pretrain]\nepoch = 3", "unknown key 'epoch' in [pretrain]; did you mean 'epochs'?"),
        ("[pretrian]\nepochs = 3", "unknown key 'pretrian'; did you mean 'pretrain'?"),
        ("epochs = 3", "unknown key 'epochs'; it belongs in [pretrain]"),
        ("[pretrain\n", "not valid TOML"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_recipe(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the recipe: .*none\.toml"):
        read_recipe(tmp_path / "none.toml")


def test_later_layers_override_earlier_ones() -> None:
    merged = merge({"data": {"source": "a", "flip": True}}, {"seed": 1}, {"data": {"flip": False}})
    assert merged == {"data": {"source": "a", "flip": False}, "seed": 1}


@pytest.mark.parametrize(
    ("assignment", "values"),
    [
        ("pretrain.lr=0.1", {"pretrain": {"lr": 0.1}}),
        ("pretrain.lr = 1", {"pretrain": {"lr": 1.0}}),
        ("pretrain.epochs=3", {"pretrain": {"epochs": 3}}),
        ("data.flip=false", {"data": {"flip": False}}),
        ("data.source=7", {"data": {"source": "7"}}),
        ("data.source=a=b", {"data": {"source": "a=b"}}),
        ("probe.lrs=1, 2.5", {"probe": {"lrs": (1.0, 2.5)}}),
        ("probe.lrs=[3]", {"probe": {"lrs": (3.0,)}}),
        ("method.preset=paper", {"method": {"preset": "paper"}}),
        ("method.options.t0=3.5", {"method": {"options": {"t0": 3.5}}}),
        ("method.options.bias=solve", {"method": {"options": {"bias": "solve"}}}),
        ("method.options.granularities=[1, 2]", {"method": {"options": {"granularities": [1, 2]}}}),
        ("seed=4", {"seed": 4}),
    ],
)
def test_assignments_are_parsed_by_field_type(assignment: str, values: dict[str, Any]) -> None:
    assigned = override({}, [assignment])
    assert assigned == values
    assert repr(assigned) == repr(values)


def test_assignments_do_not_change_their_input() -> None:
    values = {"pretrain": {"lr": 1.0, "epochs": 2}}
    assigned = override(values, ["pretrain.lr=0.5", "pretrain.lr=0.25"])
    assert assigned == {"pretrain": {"lr": 0.25, "epochs": 2}}
    assert values == {"pretrain": {"lr": 1.0, "epochs": 2}}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("pretrain.lr", "not key=value"),
        ("pretrain.lr=-1", "pretrain.lr = -1: it should be greater than 0"),
        ("pretrain.lr=inf", "finite number"),
        ("pretrain.lr=abc", "valid number"),
        ("probe.epochs=1.5", "valid integer"),
        ("data.mean=1,2", "too few values"),
        ("pretrain.temprature=3", "unknown key 'temprature' in [pretrain]"),
        ("lr=3", "it belongs in [pretrain]"),
        ("pretrian.lr=3", "did you mean 'pretrain'?"),
        ("pretrain=3", "section.key=value"),
        ("pretrain.lr.x=3", "section.key=value"),
    ],
)
def test_invalid_assignments_are_errors(assignment: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        override({}, [assignment])
    assert message in str(caught.value)
