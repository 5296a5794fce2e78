import tomllib
from typing import Any

import pytest
import tomli_w
import torch

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import available, build_method, method_class, method_defaults, parse

PAIR_LOSSES = {"scs_supcon", "supcon", "simclr", "cs_supcon", "cs_supcon_overlap"}


def test_the_name_of_a_file_is_the_name_of_its_method() -> None:
    assert set(available()) >= PAIR_LOSSES
    assert available() == sorted(available())
    assert not {"base", "joint", "momentum", "shared"} & set(available())
    assert method_class("scs_supcon") is SCSSupCon
    for name in available():
        assert method_class(name).__module__ == f"scs_supcon.methods.{name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("supcon", ("supcon", None)),
        ("scs_supcon@paper", ("scs_supcon", "paper")),
        ("scs_supcon@", ("scs_supcon", None)),
    ],
)
def test_a_method_and_its_preset_are_parsed(text: str, expected: tuple[str, str | None]) -> None:
    assert parse(text) == expected


def test_options_and_preset_reach_the_method() -> None:
    method = build_method("scs_supcon", preset="paper", beta=0.25, common_dim=7)
    assert isinstance(method, SCSSupCon)
    assert (method.beta, method.common_dim, method.pairs, method.bias) == (0.25, 7, "all", "learn")
    assert isinstance(build_method("scs_supcon"), SCSSupCon)


def test_the_error_for_an_unknown_method_suggests_another() -> None:
    with pytest.raises(
        UserError, match=r"unknown method 'supcom'; did you mean 'supcon'\?.*simclr"
    ):
        build_method("supcom")


def test_the_error_for_an_unknown_option_suggests_another() -> None:
    with pytest.raises(
        UserError, match=r"method supcon has no option 'temprature'; did you mean 'temperature'"
    ):
        build_method("supcon", temprature=0.1)
    with pytest.raises(UserError, match=r"Available: .*beta"):
        build_method("cs_supcon_overlap", gamma=1)


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(UserError, match=r"supcon has no presets.*without @paper"):
        build_method("supcon", preset="paper")
    with pytest.raises(UserError, match=r"preset must be .*, got 'papper'"):
        build_method("scs_supcon", preset="papper")


def variants() -> list[tuple[str, str | None]]:
    presets = [(name, preset) for name in available() for preset in method_class(name).presets]
    presets = [(name, preset) for name, preset in presets if preset != "siglip"]  # deprecated
    return [(name, None) for name in available()] + presets


@pytest.mark.parametrize(("name", "preset"), variants())
def test_the_defaults_of_a_method_build_the_same_method(name: str, preset: str | None) -> None:
    defaults = method_defaults(name, preset)
    assert not {"preset", "gather_across_devices", "common_dim", "overlap"} & defaults.keys()
    assert tomllib.loads(tomli_w.dumps(defaults)) == defaults
    plain, explicit = build_method(name, preset), build_method(name, preset, **defaults)
    assert {key: value for key, value in vars(plain).items() if is_option(value)} == {
        key: value for key, value in vars(explicit).items() if is_option(value)
    }
    states = plain.state_dict(), explicit.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def is_option(value: object) -> bool:
    return isinstance(value, bool | int | float | str | list | tuple)


def test_defaults_contain_the_values_of_the_preset() -> None:
    assert method_defaults("supcon") == {
        "temperature": 0.1,
        "loss_scale": 1.0,
        "anchors": "all",
    }
    assert method_defaults("simclr")["temperature"] == 0.5
    solved, paper = method_defaults("scs_supcon"), method_defaults("oscs_supcon", "paper")
    assert (solved["t0"], solved["pairs"], solved["bias"]) == (10.0, "positives", "solve")
    assert "b0" not in solved
    assert (paper["t0"], paper["b0"], paper["pairs"], paper["bias"]) == (0.1, 0.0, "all", "learn")
    assert paper["weight"] == 0.01
    with pytest.raises(UserError, match=r"preset must be .*, got 'papper'"):
        method_defaults("scs_supcon", "papper")


@pytest.mark.parametrize(
    "options", [{"bias": "learn"}, {"bias": "solve"}, {"bias": "fixed"}], ids=str
)
@pytest.mark.parametrize("preset", ["solved", "paper"])
def test_defaults_follow_the_given_options(preset: str, options: dict[str, Any]) -> None:
    full = method_defaults("scs_supcon", preset, **options)
    expected, completed = (build_method("scs_supcon", preset, **o) for o in (options, full))
    assert isinstance(expected, SCSSupCon) and isinstance(completed, SCSSupCon)
    assert (completed.bias, completed.b.item()) == (expected.bias, expected.b.item())
    assert method_defaults("scs_supcon", preset, **full) == full
