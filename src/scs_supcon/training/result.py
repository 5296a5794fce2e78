"""The result of a run, its file `finished.json`, and the text that `scs train` prints."""

import shlex
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from scs_supcon.data.splits import NO_TEST_SPLIT, SPLIT_TITLES
from scs_supcon.errors import UserError
from scs_supcon.evaluation.format import BASELINE_TITLES, linear_probe_command
from scs_supcon.evaluation.record import Evaluation, EvaluationRecord, Headline
from scs_supcon.inference import Model, load
from scs_supcon.io.records import read_json_object, read_text
from scs_supcon.io.typed import validate
from scs_supcon.nn.network import ProbeInput
from scs_supcon.progress import format_duration
from scs_supcon.recipe import Recipe, from_toml
from scs_supcon.runs.layout import FINISHED, RECIPE
from scs_supcon.training.probe import Probe


class ProbeHeadScore(EvaluationRecord):
    """Validation scores of one head of the probe; see `training.probe.ProbeHead`."""

    lr: float
    weight_decay: float
    plain: bool
    own: bool = False
    val_accuracy: float
    val_nll: float
    chosen: bool


class ResultSummary(Headline):
    """Headline numbers of a finished run: the content of `finished.json`."""

    path: str
    """The run directory."""
    seconds: float = 0.0
    """Duration of the last call; earlier, interrupted calls are not included."""
    extraction_seconds: float | None = None
    """Part of the duration that a frozen encoder took, near 0 if all features were cached; None for
    trained encoders and in old files."""
    readout: str | None = None
    """What predicts the class, such as "linear, embeddings"; None in old files."""
    latency: float | None = None
    """Seconds to classify one image, without reading it, on the machine that trained the model."""
    threshold: float
    """Similarity below which an image is rejected as unknown."""
    probe_heads: tuple[ProbeHeadScore, ...]
    """Heads of stage 2, one of which was chosen."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        path: the run directory.
        recipe: every setting of the run.
        summary: the headline numbers.
    """

    path: Path
    recipe: Recipe
    summary: ResultSummary
    _evaluation: Evaluation | None = field(default=None, repr=False, compare=False)
    _model: Model | None = field(default=None, repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test images, or on the validation images if there are none."""
        return self.summary.accuracy

    @property
    def seconds(self) -> float:
        """Duration of the call that finished the run."""
        return self.summary.seconds

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation on the test images, or on the validation images if there are none."""
        return self._evaluation or Evaluation.read(self.path / "evaluation.json")

    @cached_property
    def model(self) -> Model:
        """The trained model, loaded when it is first used."""
        return self._model or load(self.path)

    @classmethod
    def read(cls, path: str | Path) -> "RunResult":
        """Read the result of a finished run.

        Raises:
            UserError: the run is not finished, or a file is damaged.
        """
        path = Path(path)
        if not (path / FINISHED).exists():
            raise UserError(f"{path} is not a finished run: it has no {FINISHED}")
        try:
            return cls(path, from_toml(read_text(path / RECIPE)), read_summary(path))
        except UserError as error:
            raise UserError(f"the result of the run in {path} cannot be read: {error}") from error


def read_summary(run: Path) -> ResultSummary:
    """Read the headline numbers of a finished run.

    Raises:
        RecordError: the file is missing or damaged.
    """
    return validate(ResultSummary, read_json_object(run / FINISHED), run / FINISHED)


def describe_readout(recipe: Recipe, probe_input: ProbeInput, probe: Probe) -> str:
    """Return what predicts the class: the kind of classifier, and its input."""
    if recipe.fusion.whitened:
        means = recipe.fusion.classifier == "means"
        return f"{'class means' if means else 'linear'}, fused field"
    if any(head.own and head.chosen for head in probe.heads):
        return "classifier of stage 1"
    return f"linear, {'common field' if probe_input == 'common' else probe_input}"


def summarise(
    path: Path,
    evaluation: Evaluation,
    probe: Probe,
    seconds: float,
    latency: float | None = None,
    extraction_seconds: float | None = None,
    readout: str | None = None,
) -> ResultSummary:
    """Return the headline numbers of a run."""
    threshold = evaluation.rejection.threshold
    return ResultSummary(
        **dict(evaluation.headline()),
        path=str(path),
        seconds=seconds,
        extraction_seconds=extraction_seconds,
        readout=readout,
        latency=latency,
        threshold=evaluation.pairs.threshold if threshold is None else threshold,
        probe_heads=tuple(ProbeHeadScore(**asdict(head)) for head in probe.heads),
    )


def headline(summary: ResultSummary) -> str:
    """Return one line: the accuracy, the images it was measured on, and its interval."""
    low, high = summary.interval
    return (
        f"{summary.accuracy:.1%} {SPLIT_TITLES[summary.split]} accuracy on "
        f"{summary.images:,} images (95% confidence interval {low:.1%} to {high:.1%})"
    )


def describe(summary: ResultSummary, recipe: Recipe | None = None) -> str:
    """Return the result as text: accuracy, baselines, rejection, and the next commands.

    Args:
        summary: the headline numbers.
        recipe: of the run; with it, a better baseline is named with the command that trains it.
    """
    lines = [headline(summary)]
    if summary.split == "val":
        lines.append(f"caution: {NO_TEST_SPLIT}")
    measured = summary.baselines.measured()
    lines += [
        "",
        f"{'classifier':<32} {'accuracy':>8}",
        f"{'this model':<32} {summary.accuracy:>8.2%}",
    ]
    for name, value in sorted(measured.items(), key=lambda item: -item[1]):
        lines.append(f"{BASELINE_TITLES[name]:<32} {value:>8.2%}")
    better = measured.get("linear_probe_of_encoder", 0.0) - summary.accuracy
    if better > 0 and recipe is not None:
        chance = "" if summary.interval[1] < summary.accuracy + better else " (may be chance)"
        encoder = recipe.encoder
        command = linear_probe_command(
            recipe.data.source,
            summary.path,
            encoder=encoder.name,
            weights=encoder.weights,
            frozen=encoder.frozen,
        )
        lines.append(f"the linear probe is {100 * better:.1f} points better{chance}; to train it:")
        lines.append(f"  {command}")
    accuracies = [head.val_accuracy for head in summary.probe_heads]
    heads = f"probe heads: {min(accuracies):.2%} to {max(accuracies):.2%}"
    if len(accuracies) == 1:  # class means
        heads = f"classifier: {accuracies[0]:.2%}"
    path, quoted = Path(summary.path), shlex.quote(summary.path)
    lines += [
        "",
        f"validation accuracy of the {heads}",
        f"{summary.rejected:.1%} of the {SPLIT_TITLES[summary.split]} images are rejected as "
        f"unknown (similarity below {summary.threshold:.3f}; change it with --false-rejection)",
        "",
        f"time      {format_duration(summary.seconds)}",
        f"model     {path / 'model'}{_model_facts(summary)}",
        *(f"report    {page}" for page in path.glob("report.html")),
        f"predict   scs predict {quoted} image.jpg",
        f"evaluate  scs evaluate {quoted}",
    ]
    return "\n".join(lines)


def _model_facts(summary: ResultSummary) -> str:
    """Return the size of the model and the time of a prediction, as far as they are known."""
    file = Path(summary.path) / "model" / "weights.safetensors"
    facts = [f"{file.stat().st_size / 1e6:.1f} MB"] if file.exists() else []
    if summary.latency is not None:
        facts.append(f"{1000 * summary.latency:.0f} ms per image")
    return f" ({', '.join(facts)})" if facts else ""
