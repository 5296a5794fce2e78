"""The style terms of SCS-SupCon: instance loss, scatter ratio, floor and decorrelation."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError
from scs_supcon.kernels.style import (
    field_correlation,
    instance_loss,
    scatter_ratio,
    variance_floor,
)
from scs_supcon.methods import Batch
from scs_supcon.methods.oscs_supcon import OSCSSupCon
from scs_supcon.nn.head import Projection
from scs_supcon.nn.network import Network


def views(images: int = 9, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(B, 2, 8) embeddings and their labels."""
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(images, 2, 8, generator=source, dtype=torch.float64)
    return z, torch.arange(images) % classes


def flat(z: Tensor) -> Tensor:
    return z.transpose(0, 1).flatten(0, 1)


def share(labels: Tensor, pairs: str) -> float:
    """The weight of all positive pairs in the contrast, by counting."""
    rows = labels.repeat(2).tolist()
    positive = sum(a == b for a in rows for b in rows)
    return {"all": positive / len(rows) ** 2, "balanced": 0.5, "positives": 1.0}[pairs]


@pytest.mark.parametrize("pairs", ["all", "balanced", "positives"])
def test_the_instance_term_is_relative_to_the_positive_pairs(pairs: Any) -> None:
    z, labels = views()
    loss = SCSSupCon(style="instance", style_weight=0.3, style_t=7.0, pairs=pairs)
    terms = loss.loss_terms(z, labels)
    _, style = loss.fields(flat(z))
    result = instance_loss(style, labels.repeat(2), torch.arange(9).repeat(2), 7.0)
    expected = 0.3 * share(labels, pairs) * float(result.loss)
    assert float(terms["style"]) == pytest.approx(expected, rel=1e-10)
    plain = SCSSupCon(pairs=pairs).loss_terms(z, labels)
    assert float(terms["contrast"]) == pytest.approx(float(plain["contrast"]), rel=1e-12)
    assert loss.scalars()["style_pairs"] == 18
    assert loss.scalars()["style_b"] == result.b


def test_image_ids_and_views_give_the_same_loss() -> None:
    z, labels = views()
    loss = SCSSupCon(style="instance")
    ids = torch.randperm(9) + 100
    expected = float(loss(z, labels))
    assert float(loss(z, labels, ids)) == pytest.approx(expected, rel=1e-12)
    by_ids = loss(flat(z), labels.repeat(2), image_ids=ids.repeat(2))
    assert float(by_ids) == pytest.approx(expected, rel=1e-12)


def test_without_image_ids_the_instance_term_is_off_and_scalars_say_so() -> None:
    z, labels = views()
    loss = SCSSupCon(style="instance")
    loss(z, labels)
    terms = loss.loss_terms(flat(z), labels.repeat(2))
    assert terms.keys() == {"contrast"}
    assert loss.scalars()["style_pairs"] == 0


def test_references_and_listed_pairs_have_no_instance_term() -> None:
    z, labels = views()
    rows, loss = flat(z), SCSSupCon(style="instance")
    assert loss.loss_with_references(rows, labels.repeat(2), rows, labels.repeat(2)).keys() == {
        "contrast"
    }
    pairs = torch.tensor([0, 1]), torch.tensor([2, 3])
    same = torch.tensor([True, False])
    assert loss.loss_on_pairs(rows, pairs, same, rows).keys() == {"contrast"}


def test_the_default_is_the_printed_distance() -> None:
    z, labels = views()
    for preset in ("solved", "paper", "siglip"):
        loss = SCSSupCon(preset=preset)
        assert loss.style == "distance"
        assert loss.loss_terms(z, labels).keys() == {"contrast", "style"}
        assert "style_pairs" not in loss.scalars()
        assert float(loss.loss_terms(z, labels)["style"]) < 0


def test_a_batch_without_negatives_gives_0_and_one_warning() -> None:
    z, _ = views()
    loss = SCSSupCon(style="instance")
    with pytest.warns(RuntimeWarning, match="the style term of a batch is 0"):
        terms = loss.loss_terms(z, torch.arange(9))
    assert float(terms["style"]) == 0
    assert loss.scalars()["style_pairs"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.loss_terms(z, torch.arange(9))


def test_a_batch_of_single_views_gives_0_and_a_warning() -> None:
    z, labels = views()
    with pytest.warns(RuntimeWarning, match="the style term of a batch is 0"):
        terms = SCSSupCon(style="instance").loss_terms(z[:, :1], labels)
    assert float(terms["style"]) == 0


def test_no_warning_outside_training() -> None:
    z, _ = views()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SCSSupCon(style="instance").eval().loss_terms(z, torch.arange(9))


def test_an_embedding_without_style_has_no_style_terms() -> None:
    z, labels = views()
    loss = SCSSupCon(8, style="instance", style_scatter=1.0, style_floor=1.0)
    assert loss.loss_terms(z, labels).keys() == {"contrast"}


@pytest.mark.parametrize("pairs", ["all", "positives"])
def test_scatter_floor_and_decorrelation_are_weighted_terms(pairs: Any) -> None:
    z, labels = views()
    weights = {"style_scatter": 2.0, "style_floor": 3.0, "style_decorrelation": 4.0}
    loss = SCSSupCon(beta=0.0, pairs=pairs, **weights)  # type: ignore[arg-type]
    terms = loss.loss_terms(z, labels)
    common, style = loss.fields(flat(z))
    expected = {
        "style_scatter": scatter_ratio(style, labels.repeat(2)),
        "style_floor": variance_floor(style),
        "style_decorrelation": field_correlation(common, style),
    }
    assert terms.keys() == {"contrast", *expected}
    for name, value in expected.items():
        weighted = weights[name] * share(labels, pairs) * float(value)
        assert float(terms[name]) == pytest.approx(weighted, rel=1e-10)


def test_the_style_terms_do_not_change_the_common_field() -> None:
    z, labels = views()
    gradients = []
    for options in ({"beta": 0.0}, {"style": "instance", "style_decorrelation": 1.0}):
        x = z.clone().requires_grad_()
        SCSSupCon(**options)(x, labels).backward()  # type: ignore[arg-type]
        assert x.grad is not None
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0][..., :6], gradients[1][..., :6])
    assert gradients[1][..., 6:].any()


def test_gradcheck_of_the_regularisers() -> None:
    z, labels = views(6)
    loss = SCSSupCon(
        preset="siglip", beta=0.0, style_scatter=1.0, style_floor=1.0, style_decorrelation=1.0
    )
    x = z.clone().requires_grad_()

    def style_terms(rows: Tensor) -> Tensor:
        terms = loss.loss_terms(rows, labels)
        # Without the decorrelation, which has no gradient for the common field.
        return terms["style_scatter"] + terms["style_floor"]

    assert torch.autograd.gradcheck(style_terms, (x,))


def test_the_training_step_knows_which_views_are_of_one_image() -> None:
    z, labels = views()
    network = Network(nn.Identity(), nn.Identity())
    loss = SCSSupCon(style="instance")
    indices = torch.randperm(9)
    terms = loss.training_step(Batch(flat(z), labels, indices), network)
    expected = loss.loss_terms(z, labels)
    assert float(terms["style"]) == pytest.approx(float(expected["style"]), rel=1e-12)
    assert loss.scalars()["style_pairs"] == 18


def test_repeated_images_of_a_batch_are_views_of_one_image() -> None:
    z, labels = views(4, 1)
    loss = SCSSupCon(style="instance")
    loss.training_step(
        Batch(flat(z), labels, torch.tensor([5, 5, 6, 7])), Network(nn.Identity(), nn.Identity())
    )
    assert loss.scalars()["style_pairs"] == 4 * 3 + 2 + 2


def test_micro_batches_do_not_change_the_instance_loss() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(18, 5), torch.arange(9) % 3
    values = []
    for micro_batch in (0, 4):
        torch.manual_seed(1)
        network = Network(nn.Linear(5, 6), Projection(6, 8), micro_batch)
        loss = SCSSupCon(style="instance", style_scatter=1.0)
        terms = loss.training_step(Batch(images, labels, torch.arange(9)), network)
        torch.stack(tuple(terms.values())).sum().backward()
        weight = next(network.parameters())
        assert weight.grad is not None
        values.append((float(terms["style"].detach()), weight.grad))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-6)
    torch.testing.assert_close(values[0][1], values[1][1])


def test_orthogonal_fields_may_have_an_instance_style() -> None:
    z, labels = views()
    terms = OSCSSupCon(style="instance").loss_terms(z, labels)
    assert terms.keys() == {"contrast", "orthogonality", "style"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "spread"}, "style must be one of 'distance', 'instance', got 'spread'"),
        ({"style_t": 0.0}, "style_t must be positive"),
        ({"style_weight": -1.0}, "style_weight must be finite and at least 0"),
        ({"style_scatter": math.nan}, "style_scatter must be finite"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SCSSupCon(**options)


@pytest.mark.parametrize("ids", [torch.arange(3), torch.zeros(9)], ids=["too few", "floats"])
def test_invalid_image_ids_are_errors(ids: Tensor) -> None:
    z, labels = views()
    with pytest.raises(UserError, match="image_ids must be 9 integers, one per row of embeddings"):
        SCSSupCon(style="instance")(z, labels, ids)
