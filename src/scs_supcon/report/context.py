"""What the page says: the template's values, made from the records of a run."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from scs_supcon.progress import spell_seconds
from scs_supcon.report import panels
from scs_supcon.report import text as words
from scs_supcon.report.gallery import Gallery, Pair, hardest_pairs
from scs_supcon.report.inputs import Inputs
from scs_supcon.report.text import share

CONTENTS = {
    "result": "Result",
    "boundary": "Boundary",
    "explore": "Neighbours",
    "confusion": "Confusion",
    "classes": "Classes",
    "pairs": "Hardest pairs",
    "calibration": "Calibration",
    "leakage": "Fields",
    "curves": "Training",
    "labels": "Labels",
    "data": "Data",
    "reuse": "Use it",
    "recipe": "Recipe",
}
SCORES = {
    "acc1": "accuracy",
    "acc5": "among the first five",
    "macro_f1": "macro-F1",
    "balanced_acc": "balanced accuracy",
}
FIELDS = {
    "common": ("Common field", "what images of a class share"),
    "style": ("Style field", "what varies within a class"),
}
CONFUSED = 12


def view(inputs: Inputs, gallery: Gallery) -> dict[str, Any]:
    """Every value of the template but the scripts."""
    evaluation = inputs.evaluation
    pairs = evaluation["pairs"]
    fields = ("common", "style") if gallery.style.shape[1] else ("common",)
    return {
        "title": inputs.path.resolve().name,
        "version": version("scs-supcon"),
        "contents": CONTENTS.items(),
        "facts": facts(inputs),
        **result(evaluation),
        "pairs": words.about_pairs(pairs),
        "similarity_chart": panels.similarity_chart(pairs),
        "roc_chart": panels.roc_chart(pairs) if pairs["roc"] else None,
        "auc": None if pairs["auc"] is None else f"{pairs['auc']:.3f}",
        "imaged": bool(gallery.names),
        "unseen": "train" in gallery.splits,
        "shown": words.about_shown(gallery.splits) if gallery.names else "",
        "fields": [
            {"name": name, "title": FIELDS[name][0], "words": FIELDS[name][1]} for name in fields
        ],
        "classes": evaluation["classes"],
        "many_classes": len(evaluation["classes"]) > 25,
        "confused": confused(evaluation),
        "per_class": per_class(evaluation["per_class"]),
        "hard": hard(gallery, evaluation["classes"]),
        "calibration": words.about_calibration(evaluation["calibration"]),
        "calibration_chart": panels.calibration_chart(evaluation["calibration"]),
        "leakage": leakage(evaluation["leakage"]),
        "curves": panels.curve_groups(inputs.curves),
        "label_errors": label_errors(evaluation["label_errors"], gallery),
        "problems": words.problem_groups(inputs.problems),
        "problem_count": words.many(len(inputs.problems), "problem"),
        "commands": commands(inputs),
        "recipe": inputs.recipe,
        "environment": json.dumps(inputs.environment, indent=2),
    }


def facts(inputs: Inputs) -> list[tuple[str, str]]:
    """The first lines: what was trained on what."""
    settings, evaluation = inputs.settings, inputs.evaluation
    method, encoder = settings["method"], settings["encoder"]
    preset = method.get("preset")
    counts = {split: inputs.embeddings["split"].count(split) for split in ("train", "val", "test")}
    found = {
        "Data": str(settings["data"]["source"]),
        "Classes": f"{len(evaluation['classes']):,}",
        "Images": ", ".join(f"{count:,} {split}" for split, count in counts.items() if count),
        "Method": f"{method['name']}@{preset}" if preset else method["name"],
        "Encoder": encoder["name"] + (", kept as it came" if encoder["frozen"] else ", trained"),
        "Seed": str(settings["seed"]),
    }
    if "seconds" in inputs.summary:
        found["Time"] = spell_seconds(inputs.summary["seconds"])
    return list(found.items())


def result(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """The headline, and what stands beside it."""
    score, baselines = evaluation["scores"]["acc1"], evaluation["baselines"]
    split = {"test": "test image", "val": "validation image"}[evaluation["split"]]
    band = (score["low"], score["high"])
    ends = panels.spread([*band, score["value"], *baselines.values()])
    entries = [("this model", score["value"], True)]
    entries += sorted(((n, v, False) for n, v in baselines.items()), key=lambda e: -e[1])
    return {
        "accuracy": share(score["value"]),
        "judged": words.many(evaluation["images"], split),
        "interval": f"{share(band[0])} to {share(band[1])}",
        "verdict": words.beside_baselines(score, baselines),
        "retrieval": words.about_retrieval(evaluation["retrieval"]),
        "refusals": words.about_refusals(evaluation["refused"]),
        "rows": [
            {
                "name": name,
                "value": share(value),
                "own": own,
                "dots": panels.row_of_dots(value, ends, band, own),
            }
            for name, value, own in entries
        ],
        "ends": [share(end, 0) for end in ends],
        "scores": [
            {
                "name": title,
                "value": share(evaluation["scores"][key]["value"]),
                "interval": " to ".join(
                    share(evaluation["scores"][key][e]) for e in ("low", "high")
                ),
            }
            for key, title in SCORES.items()
            if key in evaluation["scores"]
        ],
    }


def confused(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The worst confusions, and where they lie in the matrix."""
    at = {name: number for number, name in enumerate(evaluation["classes"])}
    return [
        {**pair, "row": at[pair["label"]], "column": at[pair["prediction"]]}
        for pair in evaluation["confused"][:CONFUSED]
    ]


def per_class(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table of classes; the recall has a bar."""
    found = []
    for row in rows:
        cells = [{"value": row["images"], "text": f"{row['images']:,}", "bar": ""}]
        for key in ("precision", "recall", "f1", "refused"):
            value = row[key]
            cells.append(
                {
                    "value": -1 if value is None else value,
                    "text": "–" if value is None else share(value, 0),
                    "bar": panels.share_bar(value or 0.0) if key == "recall" else "",
                }
            )
        found.append({"name": row["name"], "cells": cells})
    return found


def hard(gallery: Gallery, classes: Sequence[str]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Pairs of images that the common field gets least right."""
    alike, apart = hardest_pairs(gallery)

    def side(index: int) -> dict[str, Any]:
        name = classes[gallery.labels[index]]
        return {"index": index, "label": name, "alt": f"{name}: {gallery.names[index]}"}

    def shown(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
        return [
            {
                "first": side(pair.first),
                "second": side(pair.second),
                "similarity": f"{pair.similarity:.2f}".replace("-", "−"),
            }
            for pair in pairs
        ]

    return [
        (
            "Different classes, almost the same",
            "The closest images of different classes: a label may be wrong, or a line very fine.",
            shown(alike),
        ),
        (
            "One class, far apart",
            "The farthest images of one class: outliers, odd views, or two classes in one.",
            shown(apart),
        ),
    ]


def leakage(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How much of the class is in the style field."""
    if found is None:
        return None
    values = {
        "from the common field": found["class_from_common"],
        "from the style field": found["class_from_style"],
        "by guessing": found["chance"],
    }
    return {
        "sentence": found["sentence"],
        "rows": [
            {"name": name, "value": share(value), "bar": panels.share_bar(value)}
            for name, value in values.items()
        ],
        "more": words.about_style(found),
    }


def label_errors(rows: Sequence[Mapping[str, Any]], gallery: Gallery) -> list[dict[str, Any]]:
    """Suspected label errors, with their images where there are any."""
    at = {name: index for index, name in enumerate(gallery.names)}
    return [
        {
            "index": at.get(row["name"]),
            "name": row["name"],
            "label": row["label"],
            "own": share(row["own_probability"], 0),
            "suggested": row["suggested"],
            "other": share(row["suggested_probability"], 0),
        }
        for row in rows
    ]


def commands(inputs: Inputs) -> list[tuple[str, str]]:
    """How to use the model, ready to be copied."""
    run = str(inputs.path)
    quoted = shlex.quote(run)
    python = (
        f"import scs_supcon\n\nmodel = scs_supcon.load({run!r})\n"
        'records, failures = model.predict(["photo.jpg"])\n'
        'vectors = model.embed(["photo.jpg"]).common'
    )
    return [
        ("Name images:", f"scs predict {quoted} photo.jpg more/ --format csv -o names.csv"),
        ("Get their vectors:", f"scs embed {quoted} more/ -o vectors.parquet"),
        ("Judge it on other images:", f"scs evaluate {quoted} other-images/"),
        ("Take it to another program:", f"scs export {quoted} --onnx -o model.onnx"),
        ("From Python:", python),
        ("Make this page again:", f"scs report {quoted}"),
    ]
