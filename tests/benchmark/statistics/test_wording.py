import pytest

from scs_supcon.benchmark.statistics.wording import join, p_text, verdict


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.5, "p = 0.5"), (0.00261, "p = 0.0026"), (1.0, "p = 1"), (6.6e-6, "p < 0.0001")],
)
def test_p_text(p, text):
    assert p_text(p) == text


def test_join():
    assert join([]) == ""
    assert join(["a"]) == "a"
    assert join(["a", "b"]) == "a and b"
    assert join({"a": 1, "b": 2, "c": 3}) == "a, b and c"


def test_verdict_never_claims_equality():
    assert verdict(0.01, 0.05) == "more than chance explains"
    assert verdict(0.05, 0.05) == "chance alone could explain it"
