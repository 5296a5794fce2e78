"""Training with the protocol of the paper, and with another input of stage 2."""

import json

import pytest

from scs_supcon import load


@pytest.fixture(scope="module")
def paper_run(shapes, tmp_path_factory):
    from scs_supcon.training.train import train

    return train(
        shapes,
        out=tmp_path_factory.mktemp("paper") / "run",
        recipe="paper",
        encoder="tiny",
        epochs=2,
        settings=["probe.epochs=2", "probe.views=1"],
        workers=0,
        device="cpu",
        quiet=True,
        report=False,
    )


def test_stage_2_has_one_classifier_on_the_common_field(paper_run):
    (head,) = paper_run.summary.probe_heads
    assert (head.lr, head.weight_decay, head.plain, head.chosen) == (3.0, 1e-4, True, True)
    assert paper_run.model.info.probe_input == "common"
    assert paper_run.model.info.omega is None
    assert paper_run.recipe.probe.dropout == 0.5
    assert paper_run.evaluation.baselines.linear_probe_of_encoder is not None
    assert load(paper_run.path).classes == paper_run.model.classes


@pytest.mark.parametrize("probe_input", ["features", "embeddings"])
def test_the_input_of_stage_2_can_be_chosen(probe_input, shapes, train_small, tmp_path):
    result = train_small(
        shapes, tmp_path, method="scs_supcon@paper", settings=[f"probe.input={probe_input}"]
    )
    info = json.loads((tmp_path / "model" / "model.json").read_text())
    assert info["probe_input"] == probe_input
    assert 0 <= result.accuracy <= 1
