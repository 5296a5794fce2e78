"""Runs that are forced to fail say so: each warning, on a real run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scs_supcon.evaluation.format import pair_warnings, style_warnings

UNSTABLE = ("pretrain.lr=20", "pretrain.clip_norm=0")

FAILURES = {
    "t has run towards 0": ("scs_supcon@learned", UNSTABLE),
    "t has run to its limit": (
        "scs_supcon@learned",
        ("method.options.t0=99.9", "pretrain.lr=1e-6"),
    ),
    "outside of all similarities": ("scs_supcon@paper", UNSTABLE),
    "common field has collapsed": ("scs_supcon@solved", ("head.centre=false",)),
    "style field is constant": ("scs_supcon@solved", ("head.centre=false",)),
}


@pytest.mark.parametrize("phrase", FAILURES)
def test_a_failed_run_is_explained(
    phrase: str, shapes: Path, train_small: Callable, tmp_path: Path
) -> None:
    method, settings = FAILURES[phrase]
    out = tmp_path / "run"
    result = train_small(shapes, out, settings, method=method, epochs=6, report=True)
    sentences = pair_warnings(result.evaluation.pairs) + style_warnings(result.evaluation.leakage)
    (sentence,) = (sentence for sentence in sentences if phrase in sentence)
    assert sentence.split(":")[0] in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phrase", "settings"),
    [
        ("full of class", ()),
        ("almost empty", ("head.hidden=1",)),
    ],
)
def test_a_useless_style_field_is_explained(
    phrase: str, settings: tuple[str, ...], train_small: Callable, tmp_path: Path
) -> None:
    result = train_small(
        "digits",
        tmp_path / "run",
        ("data.images_per_class=20", *settings),
        method="scs_supcon@solved",
        epochs=15,
        batch_size=32,
    )
    assert any(phrase in sentence for sentence in style_warnings(result.evaluation.leakage))
