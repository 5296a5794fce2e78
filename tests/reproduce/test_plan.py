"""From an experiment and a scale to a table."""

import pytest

from scs_supcon.errors import UserError
from scs_supcon.reproduce.markdown import command
from scs_supcon.reproduce.plan import ReproduceOptions, make_plan, parse_data, ranked_plan


def test_without_data_smoke_uses_built_in_images(monkeypatch):
    monkeypatch.delenv("SCS_DATA", raising=False)
    plan = make_plan("table3_main", ReproduceOptions())
    assert [column.name for column in plan.columns] == [
        "digits, tiny, 12 per class",
        "shapes, tiny, 12 per class",
    ]
    assert len(plan.notes) == 4  # columns that share runs
    assert "the same runs as CIFAR10, ResNet-50" in plan.notes[0]


def test_every_table_has_cross_entropy_joint_training_and_a_linear_probe():
    for name in ("table3_main", "table5_folds", "table8_ablation"):
        table = make_plan(name, ReproduceOptions()).table()
        rows = {row.name: row for row in table.methods}
        assert rows["Joint cross-entropy"].method == "scs_joint"
        assert "pretrain.epochs=0" in rows["Linear probe"].settings
        assert "pretrain.epochs=2" in rows["Baseline"].settings
        assert len(rows) == len(table.methods)


def test_other_scales_need_data():
    with pytest.raises(UserError, match="needs images at the scale small: give --data NAME=PATH"):
        make_plan("figure_tsne", ReproduceOptions("small"))


def test_columns_without_data_are_left_out(shapes):
    plan = make_plan("table4_resnet18", ReproduceOptions("small", {"cub200": str(shapes)}))
    (column,) = plan.columns
    assert column.paper.name == "CUB200-2011, ResNet-18"
    assert column.column.encoder == "tf_efficientnet_lite0"
    assert column.column.frozen
    assert plan.notes == (
        "Not run, because there is no data: cifar10, cifar100, tiny_imagenet, stanford_dogs.",
    )


def test_the_encoder_for_large_images_can_be_fine_tuned(shapes):
    data = {"cub200": str(shapes), "cifar100": str(shapes)}
    plan = make_plan("table3_main", ReproduceOptions("small", data, unfreeze=True))
    small, large = (column.column for column in plan.columns)
    assert (small.unfreeze, small.frozen, small.from_scratch) == (False, False, True)
    assert (large.unfreeze, large.frozen) == (True, None)
    assert large.name == "shapes, tf_efficientnet_lite0, fine-tuned, 50 per class"
    assert "--unfreeze" in command(plan)


def test_the_command_of_the_ranks_names_the_data_of_their_table(shapes):
    plan = make_plan("figure_cd", ReproduceOptions("small", {"cub200": str(shapes)}, seeds=2))
    expected = "scs reproduce figure_cd --scale small --data cub200=shapes --seeds 2"
    assert command(plan) == expected


def test_the_ranks_are_of_the_runs_with_the_same_epochs(shapes):
    options = ReproduceOptions("small", {"cub200": str(shapes)}, settings=("pretrain.epochs=7",))
    table, ranked = make_plan("table3_main", options), ranked_plan(make_plan("figure_cd", options))
    assert ranked.table() == table.table()
    assert "pretrain.epochs=7" in ranked.table().methods[0].settings


def test_the_paper_scale_has_the_papers_encoder_and_hyper_parameters(shapes):
    plan = make_plan("table3_main", ReproduceOptions("paper", {"cub200": str(shapes)}))
    table = plan.table()
    (column,) = table.columns
    assert column.encoder == "tiny_vit_21m_224.dist_in22k_ft_in1k"
    assert column.frozen is False
    assert {"pretrain.lr=0.1", "pretrain.batch_size=96", "probe.plain_lr=0.1"} <= set(
        column.settings
    )
    assert "pretrain.epochs=1000" in table.methods[0].settings
    assert column.recipe == "paper"
    assert table.seeds == 3
    assert "SCS-SupCon, recommended" not in table.rows


def test_images_per_class_are_columns(shapes):
    options = ReproduceOptions("small", {"cifar100": str(shapes)}, images_per_class=(5, 10, None))
    columns = make_plan("table8_ablation", options).columns
    assert [column.name for column in columns] == [
        "shapes, tiny, 5 per class",
        "shapes, tiny, 10 per class",
        "shapes, tiny",
    ]


def test_rows_multiply_the_epochs_of_the_scale_or_of_the_settings(shapes):
    options = ReproduceOptions("small", {"cifar10": str(shapes)}, settings=("pretrain.epochs=7",))
    plan = make_plan("figure_boundary", options)
    assert [row.settings[0] for row in plan.table().methods[:2]] == [
        "pretrain.epochs=7",
        "pretrain.epochs=35",
    ]
    rows = make_plan("figure_boundary", ReproduceOptions("paper", {"cifar10": str(shapes)})).rows
    assert [row.name for row in rows] == ["Eq. 4", "start at t = 10, b = 10", "Baseline"]


def test_trials_of_a_search_keep_their_share_of_the_epochs(shapes):
    data = {"cifar100": str(shapes)}
    plan = make_plan("table7_bayesopt", ReproduceOptions("small", data))
    assert (plan.scale.epochs, plan.scale.search_epochs) == (40, 10)
    options = ReproduceOptions("small", data, settings=("pretrain.epochs=12",))
    assert make_plan("table7_bayesopt", options).scale.search_epochs == 3


def test_rows_can_be_chosen():
    plan = make_plan("table3_main", ReproduceOptions(rows=("SupCon", "BYOL")))
    assert [row.name for row in plan.rows] == ["BYOL", "SupCon", "Baseline"]


def test_folds_are_of_the_training_images():
    table = make_plan("table5_folds", ReproduceOptions()).table()
    assert (table.folds, table.seeds) == (2, 1)
    assert "data.fold_from=train" in table.settings


def test_locations_of_the_data(tmp_path, monkeypatch, shapes):
    monkeypatch.delenv("SCS_DATA", raising=False)
    assert parse_data([f"cub200={shapes}", "cifar10=digits"]) == {
        "cub200": str(shapes),
        "cifar10": "digits",
    }
    (tmp_path / "voc2005").mkdir()
    monkeypatch.setenv("SCS_DATA", str(tmp_path))
    assert parse_data([f"cub200={shapes}"]) == {
        "cub200": str(shapes),
        "voc2005": str(tmp_path / "voc2005"),
    }
    for text, message in (
        ("cub200", "has no path"),
        ("cub=x", "the paper has no dataset 'cub', but .*did you mean 'cub200'"),
        (f"cub200={tmp_path / 'gone'}", "gone does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            parse_data([text])
