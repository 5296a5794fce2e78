"""The training loop: equal to a plain loop, resumable at any step, safe against NaN."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from scs_supcon.errors import NonFiniteError, UserError
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.loop import (
    Hooks,
    NonFiniteLossError,
    Stage,
    TrainPosition,
    cosine_lr,
    make_optimizer,
    parameter_groups,
    train_loop,
)

EPOCHS, STEPS, LR = 3, 4, 0.1


@dataclass(frozen=True)
class Batch:
    images: Tensor
    labels: Tensor
    indices: Tensor


class Scale(nn.Module):
    """A minimal method: one scalar with ten times the learning rate and no weight decay."""

    def __init__(self):
        super().__init__()
        self.log_t = nn.Parameter(torch.zeros(()))

    def param_groups(self, lr, weight_decay=0.0):
        return [{"params": [self.log_t], "lr": 10 * lr, "weight_decay": 0.0}]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def batch(epoch, step):
    generator = torch.Generator().manual_seed(100 * epoch + step)
    images = torch.randn(8, 6, generator=generator)
    return Batch(images, torch.randint(3, (8,), generator=generator), torch.arange(8) + 10 * step)


def batches(epoch, skip):
    return [batch(epoch, step) for step in range(skip, STEPS)]


def schedule(step):
    return cosine_lr(step, EPOCHS * STEPS, 2, LR)


def make_stage(fabric, optimizer="sgd", **changes):
    net, method = network(), Scale()
    groups = parameter_groups([net, method], LR, 0.01)
    net, optimiser = fabric.setup(net, make_optimizer(optimizer, groups, LR))

    def losses(batch):
        logits = method.log_t.exp() * net(batch.images)
        return {"fit": F.cross_entropy(logits, batch.labels), "size": 1e-3 * logits.square().mean()}

    stage = Stage(
        name="pretrain",
        modules={"network": net, "method": method},
        losses=losses,
        optimizer=optimiser,
        schedule=schedule,
        batches=batches,
        epochs=EPOCHS,
        clip_norm=0.5,
    )
    return replace(stage, **changes)


def weights(stage):
    modules = stage.modules.values()
    return [value.clone() for module in modules for value in module.state_dict().values()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def fabric():
    return make_fabric("cpu")


def test_the_learning_rate_warms_up_linearly_and_decays_as_a_cosine():
    rates = [cosine_lr(step, 10, 4, 2.0, 0.5) for step in range(12)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[7] == pytest.approx(0.5 + 1.5 * 0.5)
    assert rates[9] == pytest.approx(0.5 + 1.5 * (1 + math.cos(math.pi * 5 / 6)) / 2)
    assert rates[10] == rates[11] == 0.5
    assert cosine_lr(0, 10, 0, 2.0) == 2.0


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm((3, 4))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def no_weight_decay(self):
        return {"pos_embed", "dist_token"}


def test_only_matrices_get_weight_decay():
    module, method = Transformer(), Scale()
    decayed, undecayed, scalar = parameter_groups([module, method], 0.1, 0.5)
    assert decayed["params"] == [module.linear.weight]
    assert decayed["weight_decay"] == 0.5
    expected = [module.pos_embed, module.linear.bias, module.norm.weight, module.norm.bias]
    assert {id(p) for p in undecayed["params"]} == {id(p) for p in expected}
    assert undecayed["weight_decay"] == scalar["weight_decay"] == 0.0
    assert scalar["params"] == [method.log_t]


def test_a_shared_parameter_is_listed_once():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    assert parameter_groups([first, second], 0.1, 0.5)[0]["params"] == [first.weight]


def test_a_group_keeps_the_ratio_of_its_learning_rate(fabric):
    stage = make_stage(fabric)
    train_loop(fabric, stage, TrainPosition(epoch=EPOCHS - 1, global_step=8), Hooks())
    *plain, method = [group["lr"] for group in stage.optimizer.param_groups]
    assert set(plain) == {schedule(11)}
    assert method == pytest.approx(10 * schedule(11))


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(UserError, match="unknown optimizer 'adam'"):
        make_optimizer("adam", [{"params": [nn.Parameter(torch.zeros(1))]}], 0.1)


def test_momentum_is_the_first_beta_of_adamw():
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}]
    assert make_optimizer("sgd", groups, 0.1, 0.8).defaults["momentum"] == 0.8
    assert make_optimizer("adamw", groups, 0.1, 0.8).defaults["betas"] == (0.8, 0.999)


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_loop_equals_a_plain_pytorch_loop(fabric, name, clip_norm):
    """Bit for bit, dropout included."""
    net, method = network(), Scale()
    groups = [
        {"params": [net[0].weight, net[3].weight], "weight_decay": 0.01},
        {"params": [net[0].bias, net[3].bias], "weight_decay": 0.0},
        {"params": [method.log_t], "weight_decay": 0.0},
    ]
    kinds = {"sgd": lambda g: torch.optim.SGD(g, momentum=0.9), "adamw": torch.optim.AdamW}
    plain = kinds[name](groups)
    torch.manual_seed(1)
    for step in range(EPOCHS * STEPS):
        for group, ratio in zip(plain.param_groups, (1, 1, 10), strict=True):
            group["lr"] = ratio * schedule(step)
        part = batch(*divmod(step, STEPS))
        logits = method.log_t.exp() * net(part.images)
        loss = F.cross_entropy(logits, part.labels) + 1e-3 * logits.square().mean()
        plain.zero_grad()
        loss.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_([p for g in groups for p in g["params"]], clip_norm)
        plain.step()
    expected = [*net.state_dict().values(), method.log_t]

    stage = make_stage(fabric, name, clip_norm=clip_norm)
    torch.manual_seed(1)
    train_loop(fabric, stage, TrainPosition(), Hooks())
    assert same(weights(stage), expected)


def test_hooks_get_the_position_to_resume_from(fabric):
    calls = []
    hooks = Hooks(
        before_epoch=lambda p: calls.append(("before", p.epoch, p.step, p.global_step)),
        after_step=lambda p, terms: calls.append((sorted(terms), p.epoch, p.step, p.global_step)),
        after_epoch=lambda p: calls.append(("after", p.epoch, p.step, p.global_step)),
    )
    position = TrainPosition(epoch=1, step=2, global_step=6)
    train_loop(fabric, make_stage(fabric), position, hooks)
    names = ["fit", "size"]
    assert calls == [
        (names, 1, 3, 7),
        (names, 1, 4, 8),
        ("after", 2, 0, 8),
        ("before", 2, 0, 8),
        *((names, 2, step, 8 + step) for step in (1, 2, 3, 4)),
        ("after", 3, 0, 12),
    ]
    assert position == TrainPosition(3, 0, 12)


@pytest.mark.parametrize("stop_at", range(1, EPOCHS * STEPS))
def test_training_can_stop_and_resume_at_any_step(fabric, stop_at):
    whole = make_stage(fabric)
    torch.manual_seed(1)
    train_loop(fabric, whole, TrainPosition(), Hooks())

    class StopHere(Exception):
        pass

    def stop(position, _):
        if position.global_step == stop_at:
            raise StopHere

    stage, position = make_stage(fabric), TrainPosition()
    torch.manual_seed(1)
    with pytest.raises(StopHere):
        train_loop(fabric, stage, position, Hooks(after_step=stop))
    train_loop(fabric, stage, position, Hooks())
    assert same(weights(stage), weights(whole))


def test_data_loading_does_not_change_the_random_state_of_training(fabric):
    """A DataLoader draws a seed from torch's generator when it starts."""

    def loader(epoch, skip):
        return DataLoader(batches(epoch, skip), batch_size=None)

    results = []
    for source in (batches, loader):
        stage = make_stage(fabric, batches=source)
        torch.manual_seed(1)
        train_loop(fabric, stage, TrainPosition(), Hooks())
        results.append(weights(stage))
    assert same(*results)


def poison(stage, losses):
    """Change the losses of the third step of the second epoch."""

    def poisoned(batch_):
        terms = stage.losses(batch_)
        if torch.equal(batch_.images, batch(1, 2).images):
            return losses(terms)
        return terms

    return replace(stage, losses=poisoned)


def report_nan(_):
    raise NonFiniteError("embeddings hold NaN")


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda terms: {**terms, "style": terms["fit"] * math.nan}, "style = nan"),
        (lambda terms: {**terms, "style": terms["fit"] * math.inf}, "style = inf"),
        # The value is 0; the slope of the root at 0 is not a number.
        (lambda terms: {**terms, "root": (terms["fit"] * 0).sqrt()}, "gradient = nan"),
        (report_nan, "embeddings hold NaN"),
    ],
)
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_a_non_finite_loss_stops_before_the_weights_change(fabric, losses, message, clip_norm):
    stage = poison(make_stage(fabric, clip_norm=clip_norm), losses)
    before = []

    def copy_weights(position, _):
        before[:] = weights(stage)

    position = TrainPosition()
    with pytest.raises(NonFiniteLossError, match=r"epoch 2, step 3: .*" + message) as caught:
        train_loop(fabric, stage, position, Hooks(after_step=copy_weights))
    assert same(weights(stage), before)
    assert isinstance(caught.value, UserError)
    assert caught.value.indices == list(range(20, 28))
    assert "20, 21, 22" in str(caught.value)
    assert position == TrainPosition(1, 2, 6)


def test_other_errors_of_a_loss_are_not_reported_as_non_finite(fabric):
    def raise_error(_):
        raise UserError("labels are missing")

    with pytest.raises(UserError, match=r"^labels are missing$") as caught:
        train_loop(fabric, poison(make_stage(fabric), raise_error), TrainPosition(), Hooks())
    assert not isinstance(caught.value, NonFiniteError)


def test_mixed_precision_keeps_the_loss_in_float32():
    fabric = make_fabric("cpu", "bf16-mixed")
    inner, outer = [], []
    stage = make_stage(fabric)
    stage.modules["network"].module[0].register_forward_hook(
        lambda module, args, output: inner.append(output.dtype)
    )
    original = stage.losses

    def losses(batch):
        terms = original(batch)
        outer.extend(term.dtype for term in terms.values())
        return terms

    train_loop(fabric, replace(stage, losses=losses), TrainPosition(), Hooks())
    assert set(inner) == {torch.bfloat16}
    assert set(outer) == {torch.float32}


def test_the_gradient_scaler_may_skip_steps():
    """float16 starts with a large scale; steps that overflow are skipped without an error."""
    precision = MixedPrecision("16-mixed", "cpu")
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[precision])
    fabric.launch()
    stage = make_stage(fabric)
    original = stage.losses
    stage = replace(stage, losses=lambda b: {k: v * 1e34 for k, v in original(b).items()})
    before = weights(stage)
    train_loop(fabric, replace(stage, epochs=1), TrainPosition(), Hooks())
    assert same(weights(stage), before)
    assert precision.scaler.get_scale() == 65536 / 2**STEPS

    hopeless = replace(stage, losses=lambda b: {k: v * 1e38 for k, v in original(b).items()})
    with pytest.raises(NonFiniteLossError, match=r"gradient = (inf|nan)"):
        train_loop(fabric, replace(hopeless, epochs=20), TrainPosition(), Hooks())
    assert same(weights(stage), before)


def test_evaluation_in_a_hook_does_not_leave_the_network_in_eval_mode(fabric):
    stage = make_stage(fabric)
    modes = []
    hooks = Hooks(
        after_step=lambda *_: modes.append(stage.modules["network"].training),
        after_epoch=lambda _: stage.modules["network"].eval(),
    )
    train_loop(fabric, stage, TrainPosition(), hooks)
    assert all(modes)
