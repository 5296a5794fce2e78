"""The parameters t and b of SCS-SupCon: presets, options, bounds and state."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import scs_supcon
from scs_supcon import SCSSupCon
from scs_supcon.errors import UserError


def batch(n: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 8, generator=source, dtype=torch.float64)
    return z.requires_grad_(), torch.arange(n) % 3


@pytest.mark.parametrize(
    ("preset", "t", "b", "pairs", "bias"),
    [
        ("solved", 10, 0, "positives", "solve"),
        ("paper", 0.1, 0, "all", "learn"),
        ("learned", 10, 10, "all", "learn"),
    ],
)
def test_presets_set_t_and_b(preset: str, t: float, b: float, pairs: str, bias: str) -> None:
    loss = SCSSupCon(preset=preset)
    assert loss.t.item() == pytest.approx(t, rel=1e-15)
    assert loss.b.item() == b
    assert (loss.pairs, loss.bias) == (pairs, bias)
    assert (loss.include_self, loss.normalize, loss.beta) == (True, "separate", 1e-3)
    assert loss.log_t.requires_grad == loss.b.requires_grad == (bias == "learn")


def test_the_default_is_solved() -> None:
    z, labels = batch()
    assert torch.equal(SCSSupCon()(z, labels), SCSSupCon(preset="solved")(z, labels))


def test_the_former_name_of_a_preset() -> None:
    with pytest.warns(DeprecationWarning, match='preset="siglip" is now called "learned"'):
        loss = SCSSupCon(preset="siglip")
    assert torch.equal(loss(*batch()), SCSSupCon(preset="learned")(*batch()))


def test_arguments_override_the_preset() -> None:
    loss = SCSSupCon(preset="paper", t0=2.0, b0=-1.0, pairs="balanced", bias="fixed")
    assert loss.t.item() == pytest.approx(2.0, rel=1e-15)
    assert loss.b.item() == -1
    assert (loss.pairs, loss.bias) == ("balanced", "fixed")
    assert not loss.log_t.requires_grad
    learned = SCSSupCon(bias="learn", b0=3.0)
    assert learned.log_t.requires_grad and learned.b.requires_grad
    assert not SCSSupCon(preset="paper", bias="solve").log_t.requires_grad


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temperature", "t0 = 1/temperature"),
        ("learn", 'bias="learn"'),
        ("memory", r"MemoryBank\(SCSSupCon\(\), size\)"),
        ("lr_t", "param_groups"),
        ("gradient_reduction", "Gather"),
        ("style_weight", "the arguments are common_dim, .*beta"),
    ],
)
def test_an_unknown_argument_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"SCSSupCon has no argument '{name}': .*{hint}"):
        SCSSupCon(**{name: 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "papper"}, "preset must be .*'paper'.*, got 'papper'"),
        ({"bias": "solved"}, "bias must be .*'solve'.*, got 'solved'"),
        ({"pairs": "some"}, "pairs must be .*'balanced'.*, got 'some'"),
        ({"normalize": "l2"}, "normalize must be .*'joint'.*, got 'l2'"),
        ({"t0": 0.0}, "t0 must be .*, got 0.0"),
        ({"t0": -1.0}, "t0 must be .*, got -1.0"),
        ({"t0": math.nan}, "t0 must be .*, got nan"),
        ({"t0": math.inf}, "t0 must be .*, got inf"),
        ({"t0": "10"}, "t0 must be .*, got '10'"),
        ({"t0": 101.0}, "t0 must be at most 100, got 101.0"),
        ({"beta": math.nan}, "beta must be .*, got nan"),
        ({"beta": -0.1}, "beta must be .*, got -0.1"),
        ({"bias": "fixed", "b0": math.nan}, "b0 must be finite, got nan"),
        ({"b0": 1.0}, "b0 = 1.0 has no effect, because b is solved at every step"),
    ],
)
def test_contradictory_or_unknown_arguments_are_errors(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        SCSSupCon(**options)


def test_the_boundary_is_b_divided_by_t() -> None:
    loss = SCSSupCon(preset="paper", t0=4.0, b0=3.0)
    assert loss.boundary.item() == pytest.approx(0.75)
    t, b = loss.pair_parameters()
    assert b / t == pytest.approx(0.75)


def test_a_solved_bias_is_that_of_the_training_images_and_not_of_the_last_batch() -> None:
    torch.manual_seed(0)
    labels = torch.arange(60) % 4
    rows = torch.nn.functional.normalize(torch.eye(4)[labels] + 0.4 * torch.randn(60, 4), dim=1)
    loss = SCSSupCon(4, preset="solved")
    loss(rows[:8], labels[:8])
    last_batch = loss.pair_parameters()
    t, b = loss.pair_parameters((rows, labels)) or (0.0, 0.0)
    pairs = [(i, j) for i in range(60) for j in range(60) if i != j]
    mean = sum(1 / (1 + math.exp(b - t * float(rows[i] @ rows[j]))) for i, j in pairs) / len(pairs)
    positive = sum(int(labels[i] == labels[j]) for i, j in pairs) / len(pairs)
    assert mean == pytest.approx(positive, abs=1e-5)
    assert last_batch is not None and last_batch[1] != pytest.approx(b, abs=1e-2)
    learned = SCSSupCon(4, preset="learned")
    assert learned.pair_parameters((rows, labels)) == learned.pair_parameters()


def test_raising_b_by_t_delta_raises_the_boundary_by_delta() -> None:
    low, high = (SCSSupCon(preset="paper", t0=7.0, b0=b) for b in (1.0, 1.0 + 7.0 * 0.3))
    assert (high.boundary - low.boundary).item() == pytest.approx(0.3)


def test_at_the_boundary_positive_and_negative_pairs_cost_the_same() -> None:
    loss = SCSSupCon(2, preset="paper", t0=5.0, b0=3.0)
    r = loss.boundary.item()
    z = torch.tensor([[1.0, 0.0], [r, math.sqrt(1 - r * r)]], dtype=torch.float64)
    terms = [
        loss(z[:1], torch.tensor([0]), references=z[1:], reference_labels=torch.tensor([y]))
        for y in (0, 1)
    ]
    assert [p.item() for p in terms] == pytest.approx([math.log(2)] * 2, rel=1e-12)


@pytest.mark.parametrize("preset", ["paper", "learned"])
def test_param_groups_contain_t_and_b_without_weight_decay(preset: str) -> None:
    loss = SCSSupCon(preset=preset)
    (group,) = loss.param_groups(lr=0.5, weight_decay=0.1)
    assert {id(p) for p in group["params"]} == {id(loss.log_t), id(loss.b)}
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.0)
    optimiser = torch.optim.SGD(loss.param_groups(lr=0.5))
    before = loss.t.item(), loss.b.item()
    loss(*batch()).backward()
    optimiser.step()
    assert loss.t.item() != before[0] and loss.b.item() != before[1]


def test_the_solved_preset_has_no_parameters() -> None:
    assert SCSSupCon().param_groups(lr=0.5) == []


def test_t_and_b_have_their_own_factors_of_the_learning_rate() -> None:
    loss = SCSSupCon(preset="paper")
    groups = loss.param_groups(lr=0.5, weight_decay=0.1, lr_t=0.1, lr_b=3.0)
    rates = {group["params"][0]: group["lr"] for group in groups}
    assert rates == {loss.log_t: pytest.approx(0.05), loss.b: pytest.approx(1.5)}
    assert all(group["weight_decay"] == 0 for group in groups)
    with pytest.raises(UserError, match="lr_b must be finite and at least 0, got -1"):
        loss.param_groups(0.5, lr_b=-1.0)


def test_t_stays_within_100_and_keeps_its_gradient() -> None:
    """t' is moved back to the bound instead of clamped, so it keeps its gradient."""
    loss = SCSSupCon(preset="paper", b0=50.0)
    torch.nn.init.constant_(loss.log_t, math.log(1e4))  # as after a step of an optimiser
    evaluated = copy.deepcopy(loss).eval()
    value = loss(*batch())
    assert evaluated(*batch()).item() == value.item(), (
        "the loss is the same in training and evaluation"
    )
    value.backward()
    assert loss.t.item() == pytest.approx(100, rel=1e-12)
    assert loss.log_t.grad is not None and loss.log_t.grad.item() != 0


def mean_cosine(z: Tensor, pairs: list[tuple[int, int]]) -> float:
    """Return the mean cosine of the common fields, by loops."""
    total = 0.0
    for u, v in pairs:
        x, y = z[u, :6].tolist(), z[v, :6].tolist()
        inner = math.fsum(a * b for a, b in zip(x, y, strict=True))
        total += inner / math.hypot(*x) / math.hypot(*y)
    return total / len(pairs)


def test_scalars_describe_the_last_batch() -> None:
    loss = SCSSupCon(preset="paper", t0=4.0, b0=3.0)
    assert loss.scalars() == pytest.approx({"t": 4.0, "b": 3.0, "boundary": 0.75})
    z, _ = batch(6)
    loss(z, torch.tensor([5, 5, 5, 1, 1, 9]))
    expected = {
        "t": 4.0,
        "b": 3.0,
        "boundary": 0.75,
        "positive_share": (9 + 4 + 1) / 36,
        "anchors_without_positives": 1.0,
        "positive_cosine": mean_cosine(z, [(0, 1), (0, 2), (1, 2), (3, 4)]),
        "negative_cosine": mean_cosine(z, [(u, v) for u in (0, 1, 2, 5) for v in (3, 4)]) * (8 / 11)
        + mean_cosine(z, [(u, 5) for u in (0, 1, 2)]) * (3 / 11),
    }
    assert loss.scalars() == pytest.approx(expected)
    assert all(type(v) is float for v in loss.scalars().values())
    loss.include_self = False
    loss(z, torch.tensor([5, 5, 5, 1, 1, 9]))
    assert loss.scalars()["positive_share"] == pytest.approx((6 + 2) / 30)
    others = {"references": z[:2], "reference_labels": torch.tensor([5, 7])}
    loss(z, torch.tensor([5, 5, 5, 1, 1, 9]), **others)
    scalars = loss.scalars()
    assert scalars["positive_share"] == pytest.approx(3 / 12)
    assert scalars["anchors_without_positives"] == 3


@pytest.mark.parametrize("preset", ["solved", "paper", "learned"])
def test_state_dict_round_trip_and_deepcopy(preset: str) -> None:
    loss = SCSSupCon(preset=preset)
    optimiser = torch.optim.SGD([*loss.param_groups(lr=0.5), {"params": [torch.zeros(1)]}])
    loss(*batch()).backward()
    optimiser.step()
    state = {name: value.clone() for name, value in loss.state_dict().items()}
    assert set(state) == {"bias_log_t", "bias_b"}
    other = SCSSupCon(preset=preset)
    other.load_state_dict(state)
    copied_loss = copy.deepcopy(loss)
    for copied in (other, copied_loss):
        assert torch.equal(copied.t, loss.t) and torch.equal(copied.b, loss.b)
        assert torch.equal(copied.eval()(*batch(9, 1)), loss.eval()(*batch(9, 1)))
    if preset != "solved":
        copied_loss(*batch()).backward()
        assert loss.log_t.grad is not copied_loss.log_t.grad


def test_a_module_moved_to_another_type_still_works() -> None:
    z, labels = batch()
    loss = SCSSupCon(preset="learned")
    expected = loss(z, labels)
    loss = loss.float()
    loss(z, labels).backward()
    torch.testing.assert_close(loss(z, labels), expected, rtol=1e-5, atol=0)
    assert loss.log_t.grad is not None and loss.log_t.grad.dtype == torch.float32


@pytest.mark.parametrize("convert", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_t_and_b_keep_their_digits_in_half_precision(convert: Any) -> None:
    """In bfloat16 a step of 0.01 from 10 would be rounded away."""
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), SCSSupCon(preset="learned", b0=math.pi))
    loss = convert(network)[1]
    assert loss.log_t.dtype == loss.b.dtype == torch.float32
    assert loss.t.item() == pytest.approx(10, rel=1e-6)
    assert loss.b.item() == pytest.approx(math.pi, rel=1e-6)
    solved = convert(SCSSupCon())
    solved(*batch())
    assert solved.b.dtype == torch.float32
    before = loss.b.item()
    z, labels = batch()
    loss(z.to(network[0].weight.dtype), labels).backward()
    torch.optim.SGD(loss.parameters(), lr=1e-3).step()
    assert loss.b.item() != before


def test_a_device_without_float64_gets_float32() -> None:
    """Moving float64 to Apple's mps is a TypeError; here a function stands for the move."""

    def move(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("the device has no float64")
        return x.clone()

    loss = SCSSupCon(preset="learned")._apply(move)
    assert loss.log_t.dtype == loss.b.dtype == torch.float32
    assert loss.t.item() == pytest.approx(10, rel=1e-6)


def test_optimisers_of_other_libraries_do_not_decay_t_and_b() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), SCSSupCon(preset="learned"))
    expected = {id(model[0].bias), id(model[1].log_t), id(model[1].b)}
    groups = scs_supcon.weight_decay_groups(model, weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [id(p) for p in groups[0]["params"]] == [id(model[0].weight)]
    assert {id(p) for p in groups[1]["params"]} == expected
    assert model[1].no_weight_decay() == {"bias_log_t", "bias_b"}
    optim = pytest.importorskip("timm.optim")
    kept, decayed = optim.param_groups_weight_decay(model, 0.1)
    assert {id(p) for p in kept["params"]} == expected and len(decayed["params"]) == 1


def test_the_hugging_face_trainer_does_not_decay_t_and_b_because_of_their_names() -> None:
    trainer = pytest.importorskip("transformers").Trainer
    inside = torch.nn.ModuleDict(
        {"net": torch.nn.Linear(8, 8), "loss": SCSSupCon(preset="learned")}
    )
    for model in (inside, torch.nn.Sequential(SCSSupCon(preset="learned"))):
        decayed = trainer.get_decay_parameter_names(None, model)
        assert [name for name in decayed if not name.startswith("net.")] == []


def test_repr_shows_the_arguments() -> None:
    assert repr(SCSSupCon(192, beta=0.2)) == (
        "SCSSupCon(common_dim=192, bias='solve', beta=0.2, pairs='positives', t=10, b=0)"
    )
    assert repr(scs_supcon.SupCon(0.07, ignore_index=-1)) == (
        "SupCon(temperature=0.07, ignore_index=-1)"
    )
