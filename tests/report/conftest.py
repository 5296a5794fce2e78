"""Records of finished runs, written without training."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

HOSTILE = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(2)">',
    "$a & b$",
    "{{ 7 * 7 }}",
)
RECIPE = """\
seed = 3

[data]
source = "birds & <b>bees</b>"

[encoder]
name = "tiny"
frozen = false

[method]
name = "scs_supcon"
"""


def jpeg(red: int, size: int = 24) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (red, 90, 160)).save(file, "JPEG")
    return file.getvalue()


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def reliability(confidences: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    bins, error = [], 0.0
    for low in np.arange(15) / 15:
        inside = (confidences > low) & (confidences <= low + 1 / 15)
        confidence = float(confidences[inside].mean()) if inside.any() else 0.0
        accuracy = float(correct[inside].mean()) if inside.any() else 0.0
        error += abs(confidence - accuracy) * inside.mean()
        cell = {"low": low, "high": low + 1 / 15, "confidence": confidence, "accuracy": accuracy}
        bins.append(cell | {"count": int(inside.sum())})
    return {"ece": float(error), "bins": bins}


def histogram(common: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    edges = np.linspace(-1, 1, 61)
    similarity = common @ common.T
    same = labels[:, None] == labels
    upper = np.triu(np.ones_like(same), 1)
    kinds = {"same": upper & same, "different": upper & ~same}
    counts = {k: np.histogram(similarity[m], edges)[0].tolist() for k, m in kinds.items()}
    return {"edges": edges.tolist()} | counts


def evaluation(rng, classes, labels, predicted, confidences, common, names) -> dict[str, Any]:
    correct = predicted == labels
    matrix = np.zeros((len(classes), len(classes)), int)
    np.add.at(matrix, (labels, predicted), 1)
    value = float(correct.mean())
    score = {"value": value, "low": value - 0.03, "high": min(1.0, value + 0.03)}
    wrong = [
        {"label": classes[r], "prediction": classes[c], "count": int(matrix[r, c])}
        for r, c in zip(*np.nonzero(matrix), strict=True)
        if r != c
    ]
    roc = [[x, x**0.15] for x in np.linspace(0, 1, 50).tolist()]
    return {
        "format_version": 3,
        "data": "birds",
        "split": "test",
        "images": len(labels),
        "classes": list(classes),
        "scores": dict.fromkeys(
            ("accuracy", "top5_accuracy", "macro_f1", "balanced_accuracy"), score
        ),
        "calibration": {
            "temperature": 1.37,
            "before": reliability(np.minimum(1, confidences * 1.1), correct),
            "after": reliability(confidences, correct),
        },
        "baselines": {
            "linear_probe_of_encoder": value + 0.011,
            "knn_on_encoder": value - 0.06,
        },
        "retrieval": {"precision_at_1": 0.81, "map_at_r": 0.55},
        "pairs": {
            "auc": 0.97,
            "rule": "boundary",
            "threshold": 0.55,
            "true_positive_rate": 0.84,
            "false_positive_rate": 0.021,
            "roc": roc,
            "histogram": histogram(common, labels),
            "images": len(labels),
        },
        "rejection": {"known_rejected": 0.1, "unknown_rejected": None},
        "per_class": [
            {
                "name": name,
                "images": int((labels == at).sum()),
                "precision": float(rng.uniform(0.6, 1)),
                "recall": float(matrix[at, at] / max(1, matrix[at].sum())),
                "f1": float(rng.uniform(0.6, 1)),
                "rejected": float(rng.uniform(0, 0.2)),
            }
            for at, name in enumerate(classes)
        ],
        "confusion": [[int(r), int(c), int(matrix[r, c])] for r, c in np.argwhere(matrix)],
        "confused_pairs": sorted(wrong, key=lambda pair: -pair["count"]),
        "leakage": {
            "chance": 1 / len(classes),
            "class_from_common": 0.8,
            "class_from_style": 0.2,
            "view_agreement": {
                "style_same_image": 0.7,
                "style_same_class": 0.1,
                "common_same_image": 0.9,
            },
            "style_rank": 4.2,
            "style_dim": 8,
        },
        "label_errors": [
            {
                "image": name,
                "label": classes[0],
                "suggested": classes[-1],
                "label_probability": 0.04,
                "suggested_probability": 0.9,
            }
            for name in names[:3]
        ],
    }


def write_table(path: Path, columns: dict[str, Any], kinds: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns, schema=pa.schema(kinds)), path)


def write_run(
    folder: Path, classes: tuple[str, ...] = HOSTILE, per_class: int = 12, style: bool = True
) -> Path:
    """Write a finished run: `per_class` images of each class, every third for training."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    count = len(classes) * per_class
    labels = np.arange(count) % len(classes)
    means = rng.normal(size=(len(classes), 16))
    common = unit(means[labels] + 0.6 * rng.normal(size=(count, 16)))
    styles = unit(rng.normal(size=(count, 8)))
    predicted = np.where(rng.random(count) < 0.85, labels, (labels + 1) % len(classes))
    confidences = rng.uniform(0.4, 1, count)
    probabilities = np.full((count, len(classes)), 0.0)
    probabilities[np.arange(count), predicted] = confidences
    names = [f"{classes[label].replace('/', '_')}/{at:03d}.jpg" for at, label in enumerate(labels)]
    splits = ["train" if at % 3 == 2 else "test" for at in range(count)]
    text, rows = pa.string(), pa.list_(pa.float32())
    write_table(
        folder / "embeddings.parquet",
        {
            "name": names,
            "split": splits,
            "label": [classes[label] for label in labels],
            "common": list(common),
            "style": list(styles) if style else [[]] * count,
        },
        {"name": text, "split": text, "label": text, "common": rows, "style": rows},
    )
    tested = [at for at in range(count) if splits[at] == "test"]
    write_table(
        folder / "thumbnails.parquet",
        {
            "name": [names[at] for at in tested] + [names[2]],
            "jpeg": [jpeg(int(40 + 200 * labels[at] / len(classes))) for at in [*tested, 2]],
        },
        {"name": text, "jpeg": pa.binary()},
    )
    write_table(
        folder / "predictions.parquet",
        {
            "name": [names[at] for at in tested],
            "split": ["test"] * len(tested),
            "label": [classes[labels[at]] for at in tested],
            "prediction": [classes[predicted[at]] for at in tested],
            "unknown": [at % 10 == 0 for at in tested],
            "similarity": [0.5] * len(tested),
            "probabilities": [probabilities[at].tolist() for at in tested],
        },
        {
            **{"name": text, "split": text, "label": text, "prediction": text},
            **{"unknown": pa.bool_(), "similarity": pa.float64(), "probabilities": rows},
        },
    )
    record = evaluation(
        rng, classes, labels[tested], predicted[tested], confidences[tested], common[tested],
        [names[2], *(names[at] for at in tested)],
    )  # fmt: skip
    if not style:
        record["leakage"] = None
    (folder / "evaluation.json").write_text(json.dumps(record))
    (folder / "finished.json").write_text(json.dumps({"seconds": 83.0}))
    (folder / "problems.json").write_text(
        json.dumps(
            [{"kind": "duplicate", "name": names[0], "detail": f"{names[0]} is a duplicate"}]
        )
    )
    (folder / "environment.json").write_text(json.dumps({"python": "3.11"}))
    (folder / "recipe.toml").write_text(RECIPE)
    lines = ["stage,epoch,step,metric,value"]
    for epoch in range(1, 21):
        values = {"contrast": 3 / epoch, "style": -0.001, "t": 10.0, "b": 5 - 1 / epoch}
        values |= {"boundary": 0.5 - 0.1 / epoch, "lr": 0.1}
        lines += [f"pretrain,{epoch},{epoch},{name},{value!r}" for name, value in values.items()]
        lines.append(f"probe,{epoch},{epoch},cross_entropy,{1 / epoch!r}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


RunWriter = Callable[..., Path]


@pytest.fixture(scope="session", name="write_run")
def run_writer() -> RunWriter:
    """`write_run(folder, classes, per_class, style)` writes the records of a finished run."""
    return write_run


@pytest.fixture
def written(tmp_path: Path) -> RunWriter:
    """`written(classes, per_class, style)` writes the records to a new folder and returns it."""

    def write(**options: Any) -> Path:
        return write_run(tmp_path / "run & <i>more</i>", **options)

    return write
