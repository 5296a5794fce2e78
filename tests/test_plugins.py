"""Losses, encoders and transforms of the user: in runs, tables and models, and only if allowed."""

import hashlib
import json

import numpy as np
import pytest
import torch
from torch import nn

import scs_supcon
from scs_supcon import LossMethod, plugins
from scs_supcon.benchmark.table import make_table, read_table_file, write_table_file
from scs_supcon.data.builtin import shapes as drawn_shapes
from scs_supcon.data.feature_cache import keyed_views
from scs_supcon.data.transforms import train_view
from scs_supcon.errors import UserError
from scs_supcon.methods import TaskInfo, build_method, method_defaults
from scs_supcon.nn.encoder import build_encoder, encoder_key
from scs_supcon.recipe import from_toml, make_recipe
from scs_supcon.recipe.own_code import check_code
from scs_supcon.recipe.resolve import DatasetFacts, TrainOptions, resolve_recipe
from scs_supcon.training.input_files import read_input_files

CODE = """
import torch
from torch import nn

from scs_supcon import LossMethod

class Pull(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, embeddings, labels):
        same = (labels[:, None] == labels).float()
        z = nn.functional.normalize(embeddings, dim=1)
        return self.weight * ((2 * same - 1) * (1 - z @ z.T)).mean()

class PullMethod(LossMethod):
    loss_class = Pull

def build():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    net.data_config = {"image_size": 16}
    return net

def views(image_size):
    def view(image):
        pixels = torch.tensor(list(image.resize((image_size, image_size)).tobytes())) / 255
        return pixels.view(image_size, image_size, 3).permute(2, 0, 1) * (0.5 + torch.rand(()) / 2)
    return view

def wrong_size(image_size):
    return lambda image: image.resize((image_size + 1, image_size))

def no_module():
    return 3

VALUE = 1
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The current folder with `mine.py`, which nobody has allowed yet."""
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_allowed", set())
    return tmp_path


@pytest.fixture
def trap(lab):
    (lab / "mine.py").write_text("raise SystemExit('imported')\n")
    return lab


def resolved(**options):
    chosen = TrainOptions(source="drawn", **options)
    return resolve_recipe(
        chosen, DatasetFacts.of(drawn_shapes(per_class=10)), read_input_files(chosen)
    )


# --- losses


class Scaled(nn.Module):
    """A loss with a vector for each class."""

    def __init__(self, num_classes, embedding_size, scale=2.0, **more):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_classes, embedding_size))
        self.scale = scale

    def forward(self, embeddings, labels):
        return nn.functional.cross_entropy(self.scale * embeddings @ self.weight.T, labels)


class ScaledMethod(LossMethod):
    loss_class = Scaled


def test_a_loss_becomes_a_method_with_its_arguments_as_options(lab):
    plugins.allow_code("mine.py")
    method = build_method("mine.py:PullMethod", weight=3.0)
    rows, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    assert method(rows, labels) == 3 * build_method("mine.py:PullMethod")(rows, labels)
    assert method_defaults("mine.py:PullMethod") == {"weight": 1.0}
    with pytest.raises(UserError, match="no option 'wait'"):
        build_method("mine.py:PullMethod", wait=1)


def test_the_loss_of_another_library_is_unchanged():
    losses = pytest.importorskip("pytorch_metric_learning.losses")

    class Contrastive(LossMethod):
        loss_class = losses.ContrastiveLoss

    rows, labels = torch.randn(8, 4, requires_grad=True), torch.arange(8) // 2
    ours, theirs = Contrastive(neg_margin=0.7), losses.ContrastiveLoss(neg_margin=0.7)
    assert torch.equal(ours(rows, labels), theirs(rows, labels))
    two_views = rows.view(4, 2, 4)  # (images, views, columns) become rows, view by view
    expected = theirs(two_views.transpose(0, 1).flatten(0, 1), torch.arange(4).repeat(2))
    assert torch.equal(ours(two_views, torch.arange(4)), expected)


def test_a_loss_with_a_vector_per_class_is_created_for_the_task():
    method = ScaledMethod(scale=0.5)
    with pytest.raises(UserError, match="needs num_classes, embedding_size"):
        method(torch.randn(2, 4), torch.tensor([0, 1]))
    method.setup(TaskInfo(None, torch.tensor([0, 1, 2]), 3, 9, 4, 1))
    assert method.loss.weight.shape == (3, 4)
    assert method.loss.scale == 0.5
    value = method(torch.randn(2, 4), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(np.log(3))
    assert [p.shape for g in method.param_groups(0.1) for p in g["params"]] == [(3, 4)]


def test_what_is_not_a_loss_is_explained():
    with pytest.raises(UserError, match=r"loss_class is .*expected a class of torch.nn.Module"):
        type("Wrong", (LossMethod,), {"loss_class": len})
    with pytest.raises(UserError, match="Wrong has no loss_class: set it to the class"):
        type("Wrong", (LossMethod,), {"loss": nn.Module})()

    class Rows(nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.sum(1)

    with pytest.raises(UserError, match=r"Rows returned \(2,\), expected one number"):
        type("Wrong", (LossMethod,), {"loss_class": Rows})()(torch.ones(2, 3), torch.tensor([0, 1]))


# --- encoders and transforms


def test_a_run_with_own_encoder_transform_and_loss(lab, shapes, train_small):
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    result = train_small(
        shapes, lab / "run", method="mine.py:PullMethod", encoder="./mine.py:build",
        transform="mine.py:views",
    )  # fmt: skip
    stored = from_toml((lab / "run" / "recipe.toml").read_text())
    assert (stored.method.code, stored.encoder.code, stored.data.transform_code) == (digest,) * 3
    assert stored.data.image_size == 16
    assert stored.encoder.weights == "scratch"
    image = next(shapes.rglob("*.png"))
    plugins._allowed.clear()  # as in a new process
    with pytest.raises(UserError, match=r"the encoder ./mine.py:build is code.*--allow-code"):
        scs_supcon.load(lab / "run")
    scs_supcon.allow_code(lab / "mine.py")
    again, first = scs_supcon.load(lab / "run").embed([image]), result.model.embed([image])
    assert np.array_equal(again.common, first.common)


def test_commands_load_a_model_of_own_code_only_if_it_is_allowed(lab, shapes, train_small, scs):
    train_small(shapes, lab / "run", encoder="mine.py:build")
    plugins._allowed.clear()
    image = next(shapes.rglob("*.png"))
    rejected = scs("predict", "run", image)
    assert rejected.code == 2
    assert "--allow-code mine.py" in rejected.err
    assert scs("predict", "run", image, "--allow-code", "mine.py").code == 0
    missing = scs("predict", "run", image, "--allow-code", "gone.py")
    assert missing.code == 2
    assert "there is no such file" in missing.err


def test_a_changed_file_is_noticed_by_recipes_runs_and_models(lab, shapes, train_small):
    recipe = resolved(method="mine.py:PullMethod", encoder="mine.py:build")
    check_code(recipe)
    train_small(shapes, lab / "run", encoder="mine.py:build")
    (lab / "mine.py").write_text(CODE + "\n# changed\n")
    forget_modules()
    with pytest.raises(UserError, match=r"mine.py:PullMethod has changed since this recipe"):
        check_code(recipe)
    with pytest.raises(UserError, match="has changed since the model was trained"):
        scs_supcon.load(lab / "run")


def forget_modules():
    import sys

    from scs_supcon.nn.own_encoder import own_data_config

    own_data_config.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mine_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "values",
    [
        {"encoder": {"name": "mine.py:build"}},
        {"data": {"transform": "mine.py:views"}},
        {"method": {"name": "mine.py:PullMethod"}},
    ],
)
def test_a_recipe_file_alone_imports_nothing(trap, values):
    import tomli_w

    (trap / "r.toml").write_text(tomli_w.dumps(values))
    settings = [f"{s}.{k}={v}" for s, keys in values.items() for k, v in keys.items()]
    for options in ({"recipe": trap / "r.toml"}, {"settings": settings}):
        with pytest.raises(UserError, match=r"never imported because a file names it.*mine\.py"):
            resolved(**options)
    plugins.allow_code(trap / "mine.py")
    with pytest.raises(SystemExit, match="imported"):
        resolved(recipe=trap / "r.toml")


def test_features_of_other_code_are_not_taken_from_the_cache(lab):
    plugins.allow_code("mine.py")
    torch.manual_seed(0)
    first = build_encoder("mine.py:build", small_stem=False, in_size=16)
    changed = CODE.replace("nn.ReLU()", "nn.GELU()")  # the same weights, other features
    (lab / "mine.py").write_text(changed)
    forget_modules()
    torch.manual_seed(0)
    second = build_encoder("mine.py:build", small_stem=False, in_size=16)
    assert torch.equal(first.body[0].weight, second.body[0].weight)
    assert encoder_key(first) != encoder_key(second)
    values = {"source": "x", "image_size": 16, "transform": "mine.py:views"}
    keys = []
    for digest in ("a" * 64, "b" * 64):
        data = make_recipe({"data": values | {"transform_code": digest}}).data
        keys.append(keyed_views("train", data)[0][0])
    assert keys[0] != keys[1]


def test_own_views_are_standardised_and_reproducible(lab):
    plugins.allow_code("mine.py")
    data = make_recipe(
        {"data": {"source": "x", "image_size": 16, "transform": "mine.py:views", "mean": [0.5] * 3,
                  "std": [0.25] * 3}}
    ).data  # fmt: skip
    image = drawn_shapes(per_class=1).open(0)
    view = train_view(data)
    torch.manual_seed(3)
    first = view(image)
    torch.manual_seed(3)
    assert torch.equal(view(image), first)
    torch.manual_seed(3)
    factor = 0.5 + torch.rand(()) / 2
    pixels = torch.from_numpy(np.array(image.resize((16, 16)))).permute(2, 0, 1) / 255
    torch.testing.assert_close(first, (pixels * factor - 0.5) / 0.25)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("encoder", "mine.py:no_module", "returned int, expected a torch.nn.Module"),
        ("encoder", "mine.py:VALUE", "is 1, expected a function or a class"),
        ("encoder", "mine.py:bild", "has no 'bild'; did you mean 'build'"),
        ("transform", "mine.py:no_module", "no_module"),
    ],
)
def test_wrong_code_is_explained(lab, kind, name, message):
    plugins.allow_code("mine.py")
    with pytest.raises((UserError, TypeError), match=message):
        if kind == "encoder":
            build_encoder(name, small_stem=False, in_size=16)
        else:
            train_view(make_recipe({"data": {"source": "x", "transform": name}}).data)


def test_a_view_of_a_wrong_size_is_explained(lab):
    plugins.allow_code("mine.py")
    data = make_recipe(
        {"data": {"source": "x", "image_size": 16, "transform": "mine.py:wrong_size"}}
    ).data
    with pytest.raises(UserError, match="an image of 17 x 16 pixels, expected 16 x 16"):
        train_view(data)(drawn_shapes(per_class=1).open(0))


# --- tables


def table_text(data):
    return f"""
methods = [
  "supcon",
  {{ method = "mine.py:PullMethod", name = "Pull, 2", settings = ["method.options.weight=2"] }},
]
settings = ["pretrain.epochs=1", "pretrain.batch_size=8", "probe.epochs=2", "probe.views=1",
            "data.test_share=0.34", "data.val_share=0.2"]
[[columns]]
data = "{data}"
[[columns]]
data = "{data}"
name = "own encoder"
encoder = "mine.py:build"
transform = "mine.py:views"
"""


def test_a_table_of_several_columns_with_own_code_and_the_table_that_it_writes(lab, shapes, scs):
    (lab / "table.toml").write_text(table_text(shapes))
    command = ("--out", "out", "--runs", "runs", "--device", "cpu", "--quiet")
    rejected = scs("compare", "table.toml", *command)
    assert rejected.code == 2
    assert "the method mine.py:PullMethod is code from outside this package" in rejected.err
    assert not (lab / "runs").exists()
    result = scs("compare", "table.toml", *command, "--allow-code", "mine.py")
    assert result.code == 0, result.err
    assert "Pull, 2" in result.out
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    recipes = [from_toml(path.read_text()) for path in (lab / "runs").glob("*/recipe.toml")]
    assert {r.method.code for r in recipes if r.method.name == "mine.py:PullMethod"} == {digest}
    assert {r.encoder.code for r in recipes} == {digest, None}
    written = lab / "out" / "comparison.toml"
    assert f'"mine.py:PullMethod" = "{digest}"' in written.read_text()

    plugins._allowed.clear()
    assert scs("compare", written, *command).code == 2
    again = scs("compare", written, *command, "--allow-code", "mine.py", "--no-train")
    assert again.code == 0, again.err
    assert again.out == result.out

    (lab / "mine.py").write_text(CODE + "\n# changed\n")
    forget_modules()
    changed = scs("compare", written, *command, "--allow-code", "mine.py", "--no-train")
    assert changed.code == 2
    assert "has changed since this table was written" in changed.err


@pytest.mark.parametrize("kind", ["encoder", "transform"])
def test_a_table_file_alone_imports_nothing(trap, kind):
    (trap / "t.toml").write_text(
        f'methods = ["supcon"]\n[[columns]]\ndata = "shapes"\n{kind} = "mine.py:build"\n'
    )
    with pytest.raises(UserError, match=rf"t.toml: the {kind} mine.py:build is code"):
        read_table_file(trap / "t.toml")


def test_a_table_without_own_code_has_no_digests():
    table = make_table(methods=["supcon"], columns=[{"data": "shapes"}])
    assert "code" not in write_table_file(table)


def test_a_model_folder_cannot_name_code(trap):
    from scs_supcon.nn.model_folder import read_model_folder

    (trap / "config.json").write_text(json.dumps({"architecture": "mine.py:build"}))
    with pytest.raises(UserError, match="has no timm architecture"):
        read_model_folder(trap)
