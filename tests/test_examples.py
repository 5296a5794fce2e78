"""Every script in examples/ runs and prints the expected result."""

import hashlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


def run_example(script: str, *arguments: str | Path, launcher: tuple[str, ...] = ()) -> str:
    """Run a script in a new process and return what it prints."""
    command = [sys.executable, *launcher, EXAMPLES / script, *arguments]
    completed = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


def test_the_loss_learns_to_separate_pairs_in_a_plain_loop() -> None:
    accuracies = percentages(run_example("loss_only.py"))
    assert accuracies[-1] > 98 > accuracies[0]


def test_a_custom_method_trains_through_the_pipeline() -> None:
    (accuracy,) = percentages(run_example("own_method.py"))
    assert accuracy > 60, "chance is 10%"


def test_own_loss_encoder_and_views_in_a_table_of_two_columns() -> None:
    text = run_example("own_code.py")
    assert "own encoder and views" in text.splitlines()[0]
    lines = re.findall(r"^Triplet, margin 0.1 on .*: code ([0-9a-f]{12}), accuracy", text, re.M)
    digest = hashlib.sha256((EXAMPLES / "own_code.py").read_bytes()).hexdigest()[:12]
    assert lines == [digest] * 2


def test_a_search_from_python() -> None:
    text = run_example("tune_recipe.py")
    margin = float(re.search(r"'method.options.margin': ([\d.]+)", text).group(1))
    assert 0.05 <= margin <= 0.5
    assert "validation accuracy" in text


def test_two_processes_reproduce_the_result_of_one() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    text = run_example("ddp.py", launcher=launcher)
    both, single = re.findall(r"(?:processes|one) (\d\.\d+)", text)
    assert float(both) == pytest.approx(float(single), abs=2e-6)


@pytest.mark.parametrize(
    ("script", "library"),
    [
        ("lightning_module.py", "lightning"),
        ("accelerate_loop.py", "accelerate"),
        ("hf_trainer.py", "transformers"),
        ("metric_learning.py", "pytorch_metric_learning"),
    ],
)
def test_the_loss_in_other_libraries(script: str, library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (correct,) = percentages(run_example(script))
    assert correct > 90, "chance is 50%"


def test_the_classifier_works_in_a_pipeline() -> None:
    text = run_example("sklearn_vectors.py")
    accuracies = [float(number) for number in re.findall(r"accuracy ([\d.]+)", text)]
    assert len(accuracies) == 3
    assert min(accuracies) > 0.85


def test_an_exported_model_predicts_without_this_package(finished, shapes, scs, tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    exported = tmp_path / "model.onnx"
    export = scs("export", finished, "--onnx", "-o", exported)
    assert export.code == 0, export.err
    images = sorted(shapes.rglob("*.png"))[:2]
    lines = run_example("onnx_predict.py", exported, *images).splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(image) for image in images]


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    shared = {"points.py"}  # imported by the others
    scripts = {file.name for file in EXAMPLES.glob("*.py")} - shared
    untested = [name for name in scripts if f'"{name}"' not in text]
    assert not untested
