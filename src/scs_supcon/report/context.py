"""The variables of the report's template, computed from the records of a run."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from markupsafe import Markup

from scs_supcon.errors import UserError
from scs_supcon.evaluation.format import (
    BASELINE_TITLES,
    SCORE_TITLES,
    leakage_sentence,
    linear_probe_command,
    pair_warnings,
    style_warnings,
)
from scs_supcon.evaluation.record import Evaluation, LabelError
from scs_supcon.progress import format_duration
from scs_supcon.recipe.toml import section
from scs_supcon.report import charts, text
from scs_supcon.report.gallery import HardPair, ImageGallery, IntArray, hardest_pairs
from scs_supcon.report.inputs import Curves, RunRecords
from scs_supcon.report.render import PageVariables
from scs_supcon.report.style_axes import style_axes
from scs_supcon.report.text import percent
from scs_supcon.runs.relabel import suspected_labels_csv

SECTIONS = {
    "result": "Result",
    "boundary": "Boundary",
    "explore": "Neighbours",
    "confusion": "Confusion",
    "classes": "Classes",
    "pairs": "Hardest pairs",
    "calibration": "Calibration",
    "leakage": "Style",
    "curves": "Training",
    "labels": "Labels",
    "data": "Data",
    "use": "Use it",
    "recipe": "Recipe",
}
FIELD_TITLES = {
    "common": ("Common field", "what images of a class share"),
    "style": ("Style field", "what varies within a class"),
}
MOST_CONFUSED = 12


@dataclass(frozen=True)
class ScoreRow:
    """A score with its interval, or a baseline with its bar."""

    title: str
    value: str
    interval: str = ""
    mark: str = ""
    main: bool = False


@dataclass(frozen=True)
class ConfusedRow:
    """A confusion and its cell in the matrix."""

    label: str
    prediction: str
    count: int
    row: int
    column: int


@dataclass(frozen=True)
class TableCell:
    """A number in a sortable table."""

    value: float
    text: str
    bar: str = ""


@dataclass(frozen=True)
class PairImage:
    """One image of a hard pair."""

    index: int
    label: str
    alt: str


@dataclass(frozen=True)
class PairRow:
    """A hard pair."""

    images: tuple[PairImage, PairImage]
    similarity: str


@dataclass(frozen=True)
class AxisRow:
    """A main direction of the style field, with images from its two ends."""

    title: str
    ends: tuple[list[PairImage], list[PairImage]]


@dataclass(frozen=True)
class Suspect:
    """A suspected label error; `index` is None if the page does not show the image."""

    index: int | None
    name: str
    label: str
    label_probability: str
    suggested: str
    suggested_probability: str


def report_context(records: RunRecords, gallery: ImageGallery) -> PageVariables:
    """Return all variables of the template except scripts and data."""
    evaluation, curves = records.evaluation, records.curves
    pairs, leakage, score = evaluation.pairs, evaluation.leakage, evaluation.scores.accuracy
    baselines = {BASELINE_TITLES[k]: v for k, v in evaluation.baselines.measured().items()}
    split = {"test": "test image", "val": "validation image"}.get(evaluation.split, "image")
    ends = charts.axis_ends([score.low, score.high, score.value, *baselines.values()])
    return {
        "title": records.path.resolve().name,
        "version": version("scs-supcon"),
        "sections": SECTIONS.items(),
        "facts": facts(records),
        "accuracy": percent(score.value),
        "evaluated_images": text.plural(evaluation.images, split),
        "interval": f"{percent(score.low)} to {percent(score.high)}",
        "about_baselines": text.about_baselines(score, baselines),
        "baseline_command": _baseline_command(records),
        "about_retrieval": text.about_retrieval(evaluation.retrieval),
        "about_rejection": text.about_rejection(evaluation.rejection),
        "accuracy_rows": accuracy_rows(evaluation, baselines, ends),
        "axis_ends": [percent(end, 0) for end in ends],
        "scores": score_rows(evaluation),
        "about_pairs": text.about_pairs(pairs),
        "similarity_chart": charts.similarity_chart(pairs),
        "roc_chart": charts.roc_chart(pairs) if pairs.roc else None,
        "auc": None if pairs.auc is None else f"{pairs.auc:.3f}",
        "has_images": bool(gallery.names),
        "has_training_images": "train" in gallery.splits,
        "about_images": text.about_shown_images(gallery.splits) if gallery.names else "",
        "fields": [(name, *FIELD_TITLES[name]) for name in gallery.fields],
        "class_count": len(evaluation.classes),
        "confused": confused_rows(evaluation),
        "per_class": class_rows(evaluation),
        "hard_pairs": hard_pair_lists(gallery, evaluation.classes),
        "about_calibration": text.about_calibration(evaluation.calibration),
        "calibration_chart": charts.calibration_chart(evaluation.calibration),
        "leakage": leakage,
        "about_leakage": leakage_sentence(leakage) if leakage else "",
        "about_style": text.about_style(leakage) if leakage else "",
        "leakage_rows": leakage_rows(evaluation),
        "pair_warnings": pair_warnings(evaluation.pairs),
        "style_warnings": style_warnings(leakage) if leakage else (),
        "factors": factor_rows(evaluation),
        "style_axes": axis_rows(gallery, evaluation.classes),
        "curves": curve_drawings(curves),
        "suspects": suspects(evaluation.label_errors, gallery),
        "suspect_count": suspect_count(records),
        "serve_command": f"scs serve {shlex.quote(str(records.path))}",
        "problems": text.problem_groups(records.problems),
        "problem_count": text.plural(len(records.problems), "problem"),
        "commands": commands(records),
        "recipe": records.recipe,
        "environment": records.environment,
    }


def curve_drawings(curves: Curves) -> dict[str, list[Markup]]:
    """Return the training curves by topic."""
    groups = {
        title: [charts.curve_chart(curves, key) for key in keys]
        for title, keys in charts.curve_groups(curves).items()
    }
    if cosines := charts.cosine_chart(curves):
        groups["Decision boundary"].insert(0, cosines)
    return groups


def facts(records: RunRecords) -> list[tuple[str, str]]:
    """Return the data, method, encoder and duration of the run as titles and values."""
    settings = records.settings
    method, encoder = section(settings, "method"), section(settings, "encoder")
    preset = method.get("preset")
    fused = ", fused" if section(settings, "fusion").get("whitened") else ""
    splits = records.embeddings["split"]
    counts = {split: splits.count(split) for split in ("train", "val", "test")}
    values = {
        "Data": str(section(settings, "data")["source"]),
        "Classes": f"{len(records.evaluation.classes):,}",
        "Images": ", ".join(f"{count:,} {split}" for split, count in counts.items() if count),
        "Method": f"{method['name']}@{preset}{fused}" if preset else f"{method['name']}{fused}",
        "Encoder": f"{encoder['name']}, {'frozen' if encoder['frozen'] else 'trained'}",
        "Seed": str(settings["seed"]),
    }
    if records.seconds is not None:
        values["Time"] = format_duration(records.seconds)
    if records.model_bytes is not None:
        values["Model size"] = f"{records.model_bytes / 1e6:.1f} MB"
    if records.latency is not None:
        values["Prediction"] = f"{1000 * records.latency:.0f} ms per image, after reading it"
    return list(values.items())


def _baseline_command(records: RunRecords) -> str:
    """Return the command that trains the linear probe, if it is better than the model."""
    evaluation = records.evaluation
    accuracy = evaluation.baselines.linear_probe_of_encoder
    if accuracy is None or accuracy <= evaluation.accuracy:
        return ""
    settings = records.settings
    encoder = section(settings, "encoder")
    return linear_probe_command(
        str(section(settings, "data").get("source", "DATA")),
        str(records.path),
        encoder=str(encoder.get("name", "?")),
        weights=str(encoder.get("weights", "pretrained")),
        frozen=bool(encoder.get("frozen", True)),
    )


def accuracy_rows(
    evaluation: Evaluation, baselines: dict[str, float], ends: tuple[float, float]
) -> list[ScoreRow]:
    """Return the accuracy of the model and of the baselines, the best baseline first."""
    score = evaluation.scores.accuracy
    rows = [("this model", score.value, True)]
    rows += sorted(((title, v, False) for title, v in baselines.items()), key=lambda row: -row[1])
    return [
        ScoreRow(
            title,
            percent(value),
            mark=charts.score_mark(value, ends, (score.low, score.high), main=main),
            main=main,
        )
        for title, value, main in rows
    ]


def score_rows(evaluation: Evaluation) -> list[ScoreRow]:
    """Return the scores with their intervals."""
    scores = {title: getattr(evaluation.scores, name) for name, title in SCORE_TITLES.items()}
    return [
        ScoreRow(title, percent(score.value), f"{percent(score.low)} to {percent(score.high)}")
        for title, score in scores.items()
    ]


def confused_rows(evaluation: Evaluation) -> list[ConfusedRow]:
    """Return the most frequent confusions."""
    index = {name: number for number, name in enumerate(evaluation.classes)}
    return [
        ConfusedRow(p.label, p.prediction, p.count, index[p.label], index[p.prediction])
        for p in evaluation.confused_pairs[:MOST_CONFUSED]
    ]


def class_rows(evaluation: Evaluation) -> list[tuple[str, list[TableCell]]]:
    """Return the scores of each class; dashes for a class without images."""
    rows = []
    for row in evaluation.per_class:
        shares = [row.precision, row.recall, row.f1, row.rejected]
        texts = [percent(share, 0) if row.images else "–" for share in shares]
        cells = [
            TableCell(share if row.images else -1.0, text)
            for share, text in zip(shares, texts, strict=True)
        ]
        if row.images:
            cells[1] = TableCell(row.recall, texts[1], charts.share_bar(row.recall))
        rows.append((row.name, [TableCell(row.images, f"{row.images:,}"), *cells]))
    return rows


def hard_pair_lists(
    gallery: ImageGallery, classes: Sequence[str]
) -> list[tuple[str, str, list[PairRow]]]:
    """Return title, explanation and pairs of both kinds of hard pairs."""

    def image(index: int) -> PairImage:
        label = classes[gallery.labels[index]]
        return PairImage(index, label, f"{label}: {gallery.names[index]}")

    def rows(pairs: Sequence[HardPair]) -> list[PairRow]:
        return [
            PairRow(
                (image(pair.first), image(pair.second)),
                f"{pair.similarity:.2f}".replace("-", "−"),
            )
            for pair in pairs
        ]

    different, same = hardest_pairs(gallery)
    return [
        (
            "Most similar images of different classes",
            "A label may be wrong, or the classes differ only in details.",
            rows(different),
        ),
        (
            "Least similar images of one class",
            "Outliers, unusual views, or two classes under one label.",
            rows(same),
        ),
    ]


def leakage_rows(evaluation: Evaluation) -> list[ScoreRow]:
    """Return the accuracy of predicting the class from each field."""
    leakage = evaluation.leakage
    if leakage is None:
        return []
    values = {
        "from the common field": leakage.class_from_common,
        "from the style field": leakage.class_from_style,
        "from style by kNN": leakage.class_from_style_knn,
        "from style by a neural network": leakage.class_from_style_mlp,
        "by chance": leakage.chance,
    }
    return [
        ScoreRow(title, percent(value), mark=charts.share_bar(value))
        for title, value in values.items()
        if value is not None
    ]


def factor_rows(evaluation: Evaluation) -> list[tuple[str, list[TableCell]]]:
    """Return how well each known factor of synthetic images can be read."""
    factors = evaluation.leakage.factors if evaluation.leakage else ()
    return [
        (
            factor.name,
            [
                TableCell(value, f"{value:.2f}", charts.share_bar(value))
                for value in (factor.from_style, factor.from_common, factor.from_features)
            ],
        )
        for factor in factors
    ]


def axis_rows(gallery: ImageGallery, classes: Sequence[str]) -> list[AxisRow]:
    """Return the main directions of the style field with their names and examples."""

    def images(indices: IntArray) -> list[PairImage]:
        labels = [classes[gallery.labels[index]] for index in indices]
        return [
            PairImage(int(index), label, f"{label}: {gallery.names[index]}")
            for index, label in zip(indices, labels, strict=True)
        ]

    return [
        AxisRow(text.axis_title(axis), (images(axis.low), images(axis.high)))
        for axis in style_axes(gallery)
    ]


def suspects(errors: Sequence[LabelError], gallery: ImageGallery) -> list[Suspect]:
    """Return the suspected label errors."""
    index = {name: number for number, name in enumerate(gallery.names)}
    return [
        Suspect(
            index.get(error.image),
            error.image,
            error.label,
            percent(error.label_probability, 0),
            error.suggested,
            percent(error.suggested_probability, 0),
        )
        for error in errors
    ]


def suspect_count(records: RunRecords) -> int:
    """Return the number of suspected labels; 0 if an older version trained the run."""
    with suppress(UserError):
        return suspected_labels_csv(records.path)[1]
    return 0


def commands(records: RunRecords) -> list[tuple[str, str]]:
    """Return titles and commands that use the model."""
    run = str(records.path)
    quoted = shlex.quote(run)
    python = (
        f"import scs_supcon\n\nmodel = scs_supcon.load({run!r})\n"
        'records, failures = model.predict(["photo.jpg"])\n'
        'vectors = model.embed(["photo.jpg"]).common'
    )
    return [
        (
            "Classify images:",
            f"scs predict {quoted} photo.jpg more/ --format csv -o predictions.csv",
        ),
        ("Compute embeddings:", f"scs embed {quoted} more/ -o vectors.parquet"),
        ("Evaluate on other images:", f"scs evaluate {quoted} other-images/"),
        ("Export to ONNX:", f"scs export {quoted} --onnx -o model.onnx"),
        ("In Python:", python),
        ("Rebuild this page:", f"scs report {quoted}"),
    ]
