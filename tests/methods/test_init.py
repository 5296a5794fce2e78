import pytest

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import available, build_method, method_class, parse

PAIR_LOSSES = {"scs_supcon", "supcon", "simclr", "cs_supcon", "cs_supcon_overlap"}


def test_methods_are_found_by_the_name_of_their_file() -> None:
    assert set(available()) >= PAIR_LOSSES
    assert available() == sorted(available())
    assert not {"base", "fields", "watch", "joint", "parts"} & set(available())
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
def test_parse(text: str, expected: tuple[str, str | None]) -> None:
    assert parse(text) == expected


def test_options_and_preset_reach_the_method() -> None:
    made = build_method("scs_supcon", preset="paper", beta=0.25, common_dim=7)
    assert isinstance(made, SCSSupCon)
    assert (made.beta, made.common_dim, made.pairs, made.bias) == (0.25, 7, "all", "learn")
    assert isinstance(build_method("scs_supcon"), SCSSupCon)


def test_an_unknown_method() -> None:
    with pytest.raises(
        UserError, match=r"unknown method 'supcom'; did you mean 'supcon'\?.*simclr"
    ):
        build_method("supcom")


def test_an_unknown_option() -> None:
    with pytest.raises(
        UserError, match=r"'temprature' of method supcon; did you mean 'temperature'"
    ):
        build_method("supcon", temprature=0.1)
    with pytest.raises(UserError, match=r"It takes: .*beta"):
        build_method("cs_supcon_overlap", gamma=1)


def test_presets_where_there_are_none() -> None:
    with pytest.raises(UserError, match=r"supcon has no presets.*without @paper"):
        build_method("supcon", preset="paper")
    with pytest.raises(UserError, match="preset is 'papper'"):
        build_method("scs_supcon", preset="papper")
