"""The files of the experiments are valid and agree with each other."""

import pytest

from scs_supcon.data.named.registry import NAMED
from scs_supcon.errors import UserError
from scs_supcon.methods import method_class, parse
from scs_supcon.recipe import override
from scs_supcon.recipe.paper import RATES, paper_values
from scs_supcon.reproduce.experiment import (
    experiment_names,
    find_experiment,
    published_columns,
    published_numbers,
    read_defaults,
    read_experiment,
    read_scale,
)
from scs_supcon.tuning.space import read_space

NAMES = experiment_names()


def test_there_is_one_experiment_per_table_and_figure():
    assert (
        *("table3_main", "table4_resnet18", "table5_folds", "table6_efficiency"),
        *("table7_bayesopt", "table8_ablation", "figure_beta", "figure_boundary", "figure_cd"),
        *("figure_sigmoid", "figure_tsne"),
    ) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_methods_datasets_and_settings_exist(name):
    experiment = read_experiment(name)
    for row in (*experiment.rows, *read_defaults().rows):
        assert method_class(parse(row.method)[0])
        override({}, list(row.settings))
    assert {column.dataset for column in experiment.columns} <= read_defaults().datasets.keys()
    if experiment.over:
        assert len(read_space(experiment.over, experiment.rows[0].method)) == 2
    assert experiment.control in ("", *(row.name for row in experiment.rows))


@pytest.mark.parametrize(
    "name", ["table3_main", "table4_resnet18", "table5_folds", "table8_ablation"]
)
def test_published_numbers_belong_to_rows_and_columns(name):
    experiment = read_experiment(name)
    published = published_numbers(experiment)
    columns = {column.name for column in experiment.columns}
    assert {row for row, _ in published} == {row.name for row in experiment.rows}
    assert columns <= {column for _, column in published}
    assert {c for _, c in published} - columns <= {f"fold {number}" for number in range(1, 6)}


def test_published_numbers_of_the_other_tables():
    efficiency, search = (read_experiment(n) for n in ("table6_efficiency", "table7_bayesopt"))
    assert published_columns(efficiency).keys() == {row.name for row in efficiency.rows}
    assert published_columns(search).keys() == {column.name for column in search.columns}
    assert published_columns(search)["CIFAR100, ResNet-18"] == {
        "t0": 0.119,
        "b0": 0.038,
        "accuracy": 75.7,
    }


def test_the_ablation_repeats_numbers_of_the_main_table():
    main, ablation = (
        published_numbers(read_experiment(n)) for n in ("table3_main", "table8_ablation")
    )
    shared = main.keys() & ablation.keys()
    assert len(shared) == 4 * 6
    assert all(main[key] == ablation[key] for key in shared)


def test_an_experiment_can_be_named_by_its_beginning():
    assert find_experiment("table8") == "table8_ablation"
    assert find_experiment("figure_cd") == "figure_cd"
    with pytest.raises(UserError, match="'figure_b' is the beginning of figure_beta and figure_bo"):
        find_experiment("figure_b")
    with pytest.raises(UserError, match=r"no experiment 'tabel8_ablation': .* mean 'table8_"):
        find_experiment("tabel8_ablation")


def test_scales():
    assert [read_scale(name).seeds for name in ("smoke", "small", "paper")] == [1, 3, 3]
    assert read_scale("paper").encoder is None
    with pytest.raises(UserError, match=r"unknown scale 'tiny'.*use smoke, small, paper"):
        read_scale("tiny")


def test_the_hyper_parameters_are_those_of_the_recipe_paper():
    datasets = read_defaults().datasets
    assert datasets.keys() == RATES.keys() == NAMED.keys()
    for name, dataset in datasets.items():
        rates, values = RATES[name], override({}, list(dataset.settings))
        assert values["pretrain"] == {"lr": rates.stage_1_lr, "batch_size": rates.stage_1_batch}
        assert values["probe"] == {
            "batch_size": rates.stage_2_batch,
            "plain_lr": rates.stage_2_lr,
        }
        assert dataset.classes == NAMED[name].classes
    assert read_scale("paper").epochs == paper_values("cifar10", 32, True)["pretrain"]["epochs"]
