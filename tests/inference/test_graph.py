"""The graph for export answers as the model does, by torch alone."""

import numpy as np
import pytest
import torch
from torch import nn

from scs_supcon.data.transforms import eval_view
from scs_supcon.inference import Model, Network, build_model
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.graph import OUTPUTS, _unit
from scs_supcon.nn.head import Projection


def answers(model: Model, images: list) -> dict[str, torch.Tensor]:
    place = eval_view(model.facts.recipe.data).place
    pixels = torch.from_numpy(np.stack([np.asarray(place(image)) for image in images]))
    graph = model.graph()
    return dict(zip(graph.outputs, graph(pixels), strict=True))


def check(model: Model, images: list) -> dict[str, torch.Tensor]:
    out = answers(model, images)
    features = model.features(images)
    judgement, (common, style) = model.judge(features), model.fields(features)
    expected = judgement._asdict() | {"common": common}
    if style.shape[1]:
        expected["style"] = style
    assert set(out) == set(expected)
    for name, value in expected.items():
        assert out[name].dtype == (value.dtype if value.dtype != torch.double else torch.float)
        np.testing.assert_allclose(out[name].numpy(), value.numpy(), atol=2e-5, err_msg=name)
    return out


@pytest.mark.parametrize("readout", ["common", "features"])
def test_it_answers_as_the_model_does(trained, readout) -> None:
    got = trained(readout=readout)
    model = got.model()
    out = check(model, got.test[:40])
    assert model.graph().outputs == (OUTPUTS if readout == "common" else OUTPUTS[:-1])
    assert out["probabilities"].shape == (40, 10)
    assert float(out["probabilities"].sum(1).sub(1).abs().max()) < 1e-6


def test_whole_embeddings(trained) -> None:
    got = trained()
    network = Network(got.network.encoder, got.network.head, "embeddings")
    width = got.recipe.head.dim
    weight = torch.randn(10, width, dtype=torch.float64)
    classifier = LinearClassifier(weight, weight[:, 0], 0.5)
    model = build_model(got.recipe, got.classes, network, classifier, got.evidence, 0.4)
    assert "style" not in check(model, got.test[:8])


@pytest.mark.parametrize("readout", ["common", "features"])
def test_added_classes_are_known(trained, readout) -> None:
    got = trained(known=8, readout=readout)
    model = got.model()
    model.add_class("eight", got.left_out[:5])
    model.add_class("lone", got.left_out[5:6])
    out = check(model, [*got.test[:20], *got.left_out[6:26]])
    assert out["probabilities"].shape == (40, 10)
    assert 8 in out["nearest"].tolist()


def test_the_model_is_left_as_it_was(trained) -> None:
    model = trained().model()
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    graph = model.graph()
    with torch.no_grad():
        for value in graph.state_dict().values():
            value.zero_()
    for name, value in model.encoder.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_a_zero_row_stays_zero() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert _unit(rows).tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8])]


def test_an_encoder_that_keeps_what_it_computed_begins_anew(trained) -> None:
    class Keeping(nn.Module):
        num_features = 3

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.kept: dict[str, torch.Tensor] = {}

        def train(self, mode: bool = True) -> "Keeping":
            if mode:
                self.kept = {}
            return super().train(mode)

        def forward(self, views: torch.Tensor) -> torch.Tensor:
            if "scale" not in self.kept:
                self.kept["scale"] = self.scale * 2
            return views.mean((2, 3)) * self.kept["scale"]

    got = trained()
    encoder = Keeping().eval()
    head = Projection(3, got.recipe.head.dim).eval()
    evidence = got.evidence
    few = type(evidence)(
        evidence.names, *((part[0][:, :3], part[1]) for part in (evidence.train, evidence.val))
    )
    network = Network(encoder, head, "common")
    model = build_model(got.recipe, got.classes, network, got.classifier, few, 0.4)
    model.features(got.test[:2])  # keeps a tensor of inference mode
    kept = model.graph().encoder.kept["scale"]
    assert not kept.is_inference()
