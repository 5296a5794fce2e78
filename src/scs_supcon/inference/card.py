"""The model card: what a person should know before using a model."""

from scs_supcon.evaluation.splits import PARTS, UNTESTED
from scs_supcon.inference.facts import Facts
from scs_supcon.recipe import write_toml

TITLES = {
    "acc1": "accuracy",
    "acc5": "right class among the first five",
    "macro_f1": "macro-F1",
    "balanced_acc": "balanced accuracy",
    "ece": "expected calibration error",
    "nll": "negative log-likelihood",
    "knn_acc1": "accuracy of the nearest neighbours",
    "linear_acc1": "accuracy of a linear probe of the encoder",
}
PERCENT = frozenset(TITLES) - {"nll"}


def write_card(facts: Facts) -> str:
    """Return the card as Markdown; equal facts give an equal card."""
    sections = {
        f"Classifier of {len(facts.classes)} classes": _summary(facts),
        "Use": _use(facts),
        "How well it does": _metrics(facts),
        "None of these": _none_of_these(facts),
        "Data": _data(facts),
        "Licence": _licence(facts),
        "Recipe": f"```toml\n{write_toml(facts.recipe)}```",
    }
    parts = [
        f"{'#' if number == 0 else '##'} {title}\n\n{text}\n"
        for number, (title, text) in enumerate(sections.items())
    ]
    return "\n".join(parts)


def _summary(facts: Facts) -> str:
    recipe = facts.recipe
    method = recipe.method.name + (f"@{recipe.method.preset}" if recipe.method.preset else "")
    names = {"common": "common field", "embeddings": "embeddings"}
    sees = names.get(facts.readout, "encoder's features")
    kept = "kept as it came" if recipe.encoder.frozen else "trained as well"
    return (
        f"Trained with scs-supcon: encoder `{recipe.encoder.name}` ({kept}), method `{method}`, "
        f"then a linear classifier on the {sees}, with temperature-scaled probabilities."
    )


def _use(facts: Facts) -> str:
    return (
        "```python\n"
        "import scs_supcon\n\n"
        'model = scs_supcon.load("path/of/this/folder")\n'
        'records, failures = model.predict(["photo.jpg"])\n'
        "```\n\n"
        f"Images are resized and cropped to {facts.recipe.data.image_size} pixels by the model."
    )


def _metrics(facts: Facts) -> str:
    if not facts.metrics:
        return "Not measured."
    judged_on = "val" if facts.counts.get("test") == 0 else "test"
    rows = [f"| on the {PARTS[judged_on]} images | |", "|---|---|"]
    for name, value in facts.metrics.items():
        shown = f"{value:.2%}" if name in PERCENT else f"{value:.4f}"
        rows.append(f"| {TITLES.get(name, _escaped(name))} | {shown} |")
    return "\n".join([*rows, "", UNTESTED] if judged_on == "val" else rows)


def _none_of_these(facts: Facts) -> str:
    boundary = facts.boundary
    origin = {
        "boundary": "the boundary that training found between same and different",
        "quantile": "the similarity that all but 5 % of the validation images reach",
    }[boundary.rule]
    return (
        "An image whose mean similarity to the members of every class stays below "
        f"{boundary.threshold:.3f} is reported as none of these. That is {origin}. "
        f"It turns away {boundary.val_rejected:.1%} of the validation images."
    )


def _data(facts: Facts) -> str:
    counts = ", ".join(f"{count} {part}" for part, count in facts.counts.items())
    names = ", ".join(_escaped(name) for name in facts.classes[: facts.trained])
    lines = [f"Images: {counts}." if counts else "", f"Classes: {names}."]
    if added := facts.classes[facts.trained :]:
        lines.append(f"Added later by their mean: {', '.join(map(_escaped, added))}.")
    return "\n\n".join(line for line in lines if line)


def _licence(facts: Facts) -> str:
    return (
        f"Licence of the weights that the encoder started from: {_escaped(facts.weights_licence)}. "
        "The licence of the training images is not known to scs-supcon; ask whoever trained it."
    )


def _escaped(text: str) -> str:
    """Keep names from files from becoming markup."""
    plain = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in plain)
