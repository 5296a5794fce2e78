"""--unfreeze: the head is trained on cached features before the whole network."""

import csv

import pytest
import torch
from safetensors.torch import load_file

from scs_supcon.errors import UserError
from scs_supcon.methods import TaskInfo, available, build_method
from scs_supcon.nn.build import build_network, split_frozen
from scs_supcon.recipe import make_recipe
from scs_supcon.training.train import resolved_recipe
from scs_supcon.training.unfreeze import head_phase, take_over


@pytest.fixture
def options(weights):
    return {"encoder": "tiny", "weights": weights, "unfreeze": True}


HEAD = ["pretrain.head_epochs=3"]


def stages(run):
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "lr"]
    return {stage: [r for r in rows if r["stage"] == stage] for stage in ("head", "pretrain")}


def encoder_weights(run):
    tensors = load_file(next((run / "model").glob("*.safetensors")))
    return {name: value for name, value in tensors.items() if name.startswith("encoder")}


def test_both_phases_are_trained_logged_and_described(
    options, shapes, train_small, tmp_path, capsys
):
    run = train_small(shapes, tmp_path / "run", HEAD, quiet=False, **options)
    logged = stages(run.path)
    assert [len(logged["head"]), len(logged["pretrain"])] == [3, 2]
    err = capsys.readouterr().err
    assert "stage 1   first 3 epochs of scs_supcon, head on cached features" in err
    assert "stage 1   then 2 epochs of scs_supcon, whole network" in err
    assert err.count("weights   0.5 × initial + 0.5 × trained, averaged") == 1, "not in the head"
    assert run.recipe.pretrain.encoder_lr == 0.3
    assert run.recipe.encoder.fixed_norm
    assert not run.recipe.encoder.frozen


def test_the_encoder_changes_in_the_second_phase_only(options, shapes, train_small, tmp_path):
    first = train_small(shapes, tmp_path / "first", HEAD, epochs=0, **options)
    both = train_small(shapes, tmp_path / "both", HEAD, **options)
    stuck = train_small(shapes, tmp_path / "stuck", [*HEAD, "pretrain.encoder_lr=0"], **options)
    initial, trained, kept = (encoder_weights(run.path) for run in (first, both, stuck))
    assert initial.keys() == trained.keys()
    assert all(torch.equal(initial[name], kept[name]) for name in initial)
    assert any(not torch.equal(initial[name], trained[name]) for name in initial)


def test_final_weights_are_halfway_between_the_initial_and_the_trained_ones(
    options, shapes, train_small, tmp_path
):
    first, half, last = (
        encoder_weights(
            train_small(
                shapes,
                tmp_path / f"{share} {epochs}",
                [*HEAD, f"pretrain.initial_share={share}"],
                epochs=epochs,
                **options,
            ).path
        )
        for share, epochs in ((0.5, 0), (0.5, 2), (0, 2))
    )
    changed = 0
    for name, value in half.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, 0.5 * first[name] + 0.5 * last[name])
            changed += int(not torch.equal(first[name], last[name]))
    assert changed


@pytest.mark.parametrize("options_of_start", [{}, {"frozen": True}])
def test_an_initial_share_needs_a_head_that_was_trained_first(
    options_of_start, weights, shapes, train_small, tmp_path
):
    options = {"encoder": "tiny", "weights": weights, "frozen": False} | options_of_start
    with pytest.raises(UserError, match=r"^pretrain.initial_share .* use --unfreeze"):
        train_small(shapes, tmp_path / "run", ["pretrain.initial_share=0.5"], **options)


@pytest.mark.parametrize("stage", ["head", "pretrain"])
@pytest.mark.parametrize("method", ["scs_supcon", "paco", "baseline"])
def test_a_run_stopped_in_either_phase_ends_with_the_same_bytes(
    method, stage, options, shapes, train_small, tmp_path, train_stopped, deterministic_files
):
    options |= {"method": method, "settings": [*HEAD, "pretrain.layer_decay=0.7"]}
    whole = train_small(shapes, tmp_path / "whole", **options)
    train_stopped(shapes, tmp_path / "run", step=4, stage=stage, **options)
    train_small(shapes, tmp_path / "run", **options)
    assert deterministic_files(tmp_path / "run") == deterministic_files(whole.path)


@pytest.mark.parametrize("name", available())
def test_every_method_continues_with_the_state_of_the_first_phase(name):
    recipe = make_recipe(
        {"data": {"source": "shapes", "image_size": 16}, "encoder": {"name": "tiny"}}
    )
    network = build_network(recipe)
    before, after = build_method(name), build_method(name)
    _, head = split_frozen(network, before.uses_taps)
    for method, trained in ((before, head), (after, network)):
        method.setup(TaskInfo(trained, torch.arange(12) % 3, 3, 128, recipe.head.dim, 2))
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.add_(1)
    take_over(before, after)
    own = after.state_dict()
    for key, value in before.state_dict().items():
        assert torch.equal(own[key], value), key


def test_the_first_phase_has_its_own_schedule_and_the_batches_of_the_run():
    recipe = make_recipe(
        {
            "data": {"source": "x"},
            "pretrain": {
                **{"epochs": 9, "head_epochs": 30, "warmup_epochs": 5, "ema": 0.9},
                "initial_share": 0.5,
                **{"patience": 3, "cutmix": 1.0, "mixup": 0.2, "batch_size": 32, "lr": 0.3},
            },
        }
    )
    first = head_phase(recipe)
    assert first.encoder.frozen
    settings = first.pretrain
    assert (settings.epochs, settings.head_epochs, settings.warmup_epochs) == (30, 0, 3)
    assert (settings.ema, settings.patience, settings.cutmix, settings.mixup) == (0, 0, 0, 0.2)
    assert settings.initial_share == 0
    assert first.fusion.folds == 0
    assert (settings.batch_size, settings.lr) == (32, 0.3)
    assert recipe.pretrain.head_epochs == 30


def test_a_dry_run_trains_both_phases(options, shapes, train_small, capsys):
    train_small(shapes, "", dry_run=True, quiet=False, **options)
    err = capsys.readouterr().err
    assert "first 1 epoch of" in err
    assert "then 1 epoch of" in err


def test_the_number_of_head_epochs_alone_unfreezes(shapes, weights):
    recipe = resolved_recipe(
        shapes, encoder="tiny", weights=weights, settings=["pretrain.head_epochs=7"], device="cpu"
    )
    assert not recipe.encoder.frozen
    assert recipe.pretrain.encoder_lr == 0.3


def test_unfreeze_keeps_the_head_epochs_of_a_recipe_but_not_zero(shapes, weights, tmp_path):
    for given, expected in ((7, 7), (0, 20)):
        file = tmp_path / "recipe.toml"
        file.write_text(f"[pretrain]\nhead_epochs = {given}\n")
        options = {"encoder": "tiny", "weights": weights, "recipe": file, "device": "cpu"}
        recipe = resolved_recipe(shapes, unfreeze=True, **options)
        assert recipe.pretrain.head_epochs == expected


def test_contradictions_are_errors(shapes, weights):
    both = {"encoder": "tiny", "weights": weights, "frozen": True, "device": "cpu"}
    with pytest.raises(UserError, match="--frozen and --unfreeze exclude each other"):
        resolved_recipe(shapes, unfreeze=True, **both)
    with pytest.raises(UserError, match=r"encoder\.frozen is true"):
        resolved_recipe(shapes, settings=["pretrain.head_epochs=3"], **both)
    with pytest.raises(UserError, match="--unfreeze requires pretrained weights"):
        resolved_recipe(shapes, unfreeze=True, device="cpu")
