"""Methods outside this package are imported only if the user names them."""

import hashlib
import re
import subprocess
import sys

import pytest

from scs_supcon.benchmark.table import read_table_file
from scs_supcon.data.builtin import shapes
from scs_supcon.errors import UserError
from scs_supcon.methods import build_method, method_class, parse
from scs_supcon.recipe import make_recipe, write_toml
from scs_supcon.recipe.resolve import DatasetFacts, TrainOptions, resolve_recipe
from scs_supcon.training.input_files import read_input_files

LOSS = '''"""SoftCircle: pull the rows of a class to one point.

    L = (1/n) Σ_i |z_i − mean of its class|²
"""

import torch

from my_lab.helpers import SCALE
from scs_supcon.nn.head import unit
from scs_supcon.methods import Method
from scs_supcon.methods.shared.base import flatten


class SoftCircle(Method):
    """Squared distances to the class means.

    Args:
        weight: of the loss.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def loss_terms(self, embeddings, labels):
        rows, labels = flatten(embeddings, labels)
        z = unit(rows)
        same = (labels[:, None] == labels[None, :]).to(z.dtype)
        means = same @ z / same.sum(1, keepdim=True)
        return {"pull": SCALE * self.weight * (z - means).square().sum(1).mean()}
'''

ITS_TEST = """
import torch

from my_lab.losses import SoftCircle


def test_equal_rows_of_a_class_cost_nothing():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert SoftCircle()(z, torch.tensor([0, 0, 1])).item() == 0
    assert SoftCircle()(z, torch.tensor([0, 1, 1])).item() > 0
"""

NAME = "my_lab.losses:SoftCircle"
QUICK = (
    *("--epochs", "2", "--batch-size", "8", "--workers", "0", "--device", "cpu", "--quiet"),
    *("--set", "probe.epochs=2", "--set", "probe.views=1"),
)


def resolved(options):
    facts = DatasetFacts.of(shapes(per_class=10))
    return resolve_recipe(options, facts, read_input_files(options))


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The current folder, which contains the package my_lab."""
    package = tmp_path / "my_lab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("SCALE = 1.0\n")
    (package / "losses.py").write_text(LOSS)
    (tmp_path / "test_losses.py").write_text(ITS_TEST)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget()


def forget():
    """Remove the imported modules, as if in a new process."""
    for name in [name for name in sys.modules if name.startswith(("my_lab", "losses_"))]:
        del sys.modules[name]


@pytest.mark.slow
def test_a_method_of_two_files_trains_predicts_and_is_reported(lab, shapes, scs):
    checked = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_losses.py"],
        cwd=lab,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    line = ("train", shapes, "--out", "run", "--method", NAME, *QUICK)
    result = scs(*line)
    assert result.code == 0, result.err
    assert f'name = "{NAME}"' in (lab / "run" / "recipe.toml").read_text()
    assert scs(*line).out == result.out, "the run is already finished"

    (lab / "my_lab" / "losses.py").unlink()  # the method's code is no longer needed
    forget()
    predicted = scs("predict", "run", next(shapes.rglob("*.png")), "--format", "csv", "--quiet")
    assert predicted.code == 0
    assert predicted.out.count("\n") == 2
    assert NAME in scs("runs", ".").out
    (lab / "run" / "report.html").unlink(missing_ok=True)
    reported = scs("report", "run")
    assert reported.code == 0, reported.err
    assert "SoftCircle" in (lab / "run" / "report.html").read_text()


def test_a_method_may_be_given_by_the_path_of_its_file(lab, scs):
    (lab / "my lab@home.py").write_text(LOSS)
    name = "./my lab@home.py:SoftCircle"
    assert parse(f"{name}@fast") == (name, "fast")
    method = build_method(name, weight=2.0)
    assert method.weight == 2.0
    assert type(method) is method_class(name), "a file is imported once"
    result = scs("show", name)
    assert result.code == 0
    for text in ("L = (1/n)", "SoftCircle(weight: float = 1.0)", "weight: of the loss."):
        assert text in result.out
    with pytest.raises(UserError, match=r"has no option 'wait'; did you mean 'weight'"):
        build_method(name, wait=1)


@pytest.mark.parametrize(
    ("name", "path"),
    [(NAME, "my_lab/losses.py"), ("./losses.py:SoftCircle", "losses.py")],
)
def test_a_recipe_holds_the_digest_of_the_code_and_rejects_other_code(lab, name, path):
    file = lab / path
    file.write_text(LOSS)

    def resolve(**more):
        return resolved(TrainOptions(source="drawn", method=name, **more))

    first = resolve()
    assert first.method.code == hashlib.sha256(LOSS.encode()).hexdigest()
    (lab / "r.toml").write_text(write_toml(first))
    assert resolve(recipe=lab / "r.toml").method == first.method
    file.write_text(LOSS.replace(".mean()", ".sum()"))
    assert resolve().method == first.method, "the imported code is still the old one"
    forget()
    assert resolve().method.code == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(UserError, match=r"has changed since .*method\.code"):
        resolve(recipe=lab / "r.toml")
    assert resolved(TrainOptions(source="drawn", method="supcon")).method.code is None


def test_the_import_path_is_restored(lab):
    before = list(sys.path)
    method_class(NAME)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_lab.loses:SoftCircle", "no module 'my_lab.loses' in this folder or among"),
        ("your_lab:SoftCircle", "no module 'your_lab'"),
        ("my_lab.losses:SoftCircel", "no method 'SoftCircel'; did you mean 'SoftCircle'"),
        ("my_lab.losses:flatten", "no method 'flatten'.*Available: SoftCircle"),
        ("my_lab.helpers:SCALE", "Available: none .a method must derive from"),
        ("./gone.py:SoftCircle", "no file gone.py"),
    ],
)
def test_errors_name_what_is_missing(lab, name, message):
    with pytest.raises(UserError, match=message):
        method_class(name)


def test_errors_in_the_code_of_a_method_are_shown_unchanged(lab):
    (lab / "my_lab" / "losses.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        method_class(NAME)
    (lab / "broken.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            method_class("broken.py:SoftCircle")


def test_a_file_alone_never_imports_code(lab):
    """A recipe, a setting or a table cannot import a method; the user must name it."""
    (lab / "trap.py").write_text("raise SystemExit('imported')\n")
    (lab / "r.toml").write_text('[method]\nname = "./trap.py:Trap"\n')
    option = re.escape("--method ./trap.py:Trap")
    for options in (
        TrainOptions(source="drawn", recipe=lab / "r.toml"),
        TrainOptions(source="drawn", settings=["method.name=./trap.py:Trap"]),
    ):
        with pytest.raises(UserError, match=f"if you trust it, add {option}"):
            resolved(options)
    table = '[[columns]]\ndata = "drawn"\n'
    for row in ('"./trap.py:Trap"', '{ method = "./trap.py:Trap" }'):
        (lab / "table.toml").write_text(f"methods = [{row}]\n{table}")
        with pytest.raises(UserError, match=r"table.toml: the method ./trap.py:Trap is code"):
            read_table_file(lab / "table.toml")
    elsewhere = TrainOptions(source="drawn", recipe=lab / "r.toml", method="supcon")
    assert resolved(elsewhere).method.name == "supcon"
    named = TrainOptions(source="drawn", recipe=lab / "r.toml", method="./trap.py:Trap")
    with pytest.raises(SystemExit, match="imported"):
        resolved(named)


@pytest.mark.parametrize("name", [NAME, "./x y/å.py:A", "C:\\labs\\loss.py:A", "../a@b/c.py:A_1"])
def test_a_recipe_accepts_the_name_of_a_plug_in(name):
    assert make_recipe({"data": {"source": "x"}, "method": {"name": name}}).method.name == name


@pytest.mark.parametrize(
    "name",
    ["Upper", "ab:c:C", "<b>:C", "a\nb:C", "x.py:1", "x.py:", ":C", "a'b:C", "`x`:C", "a:C d"],
)
def test_a_recipe_rejects_other_names(name):
    with pytest.raises(UserError, match=r"method\.name"):
        make_recipe({"data": {"source": "x"}, "method": {"name": name}})
