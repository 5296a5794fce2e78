"""An evaluation in words and columns, for people."""

from collections.abc import Iterator, Mapping
from typing import Any

SCORES = {
    "acc1": ("top-1 accuracy", "the first guess is right"),
    "acc5": ("top-5 accuracy", "the right class is among the first five"),
    "macro_f1": ("macro-F1", "precision and recall, every class counted alike"),
    "balanced_acc": ("balanced accuracy", "share found, every class counted alike"),
}
BESIDE = {
    "kNN on the readout": "vote of the ten most similar training images",
    "nearest class mean": "the class whose mean is closest",
    "linear probe of the encoder": "a linear classifier without stage 1",
    "kNN on the encoder": "the vote, by the encoder's own features",
}
FEW = 5


def describe(record: Mapping[str, Any]) -> str:
    """The whole record as a table with a few words on each number."""
    parts = (_head, _scores, _beside, _vectors, _refused, _leakage, _classes, _suspects, _left)
    blocks = ["\n".join(part(record)) for part in parts]
    return "\n\n".join(block for block in blocks if block)


def _head(record: Mapping[str, Any]) -> Iterator[str]:
    part = "" if record["split"] == "all" else f", {record['split']} part"
    present = sum(row["images"] > 0 for row in record["per_class"])
    yield f"{record['data']}{part}: {record['images']:,} images of {present} classes"
    if record["trained_on"]:
        yield (
            f"{record['trained_on']:,} of them were trained on: the numbers flatter the model, "
            "judge it on others"
        )


def _scores(record: Mapping[str, Any]) -> Iterator[str]:
    for name, (title, meaning) in SCORES.items():
        score = record["scores"][name]
        interval = f"{score['low']:.1%} to {score['high']:.1%}"
        yield _line(title, f"{score['value']:.2%}", interval, meaning)
    found = record["calibration"]
    before = f"{found['before']['ece']:.2%} before"
    meaning = f"how far stated chances are off; temperature {found['temperature']:.3g}"
    yield _line("calibration error", f"{found['after']['ece']:.2%}", before, meaning)
    yield "intervals: 95 %, for other images drawn like these"


def _beside(record: Mapping[str, Any]) -> Iterator[str]:
    for title, value in record["baselines"].items():
        yield _line(title, f"{value:.2%}", "", BESIDE.get(title, ""))


def _vectors(record: Mapping[str, Any]) -> Iterator[str]:
    found, pairs = record["retrieval"], record["pairs"]
    if found["p_at_1"] is not None:
        meaning = "the most similar other image is of the same class"
        yield _line("P@1", f"{found['p_at_1']:.2%}", "", meaning)
        meaning = "how purely the most similar ones are of the class"
        yield _line("MAP@R", f"{found['map_at_r']:.2%}", "", meaning)
    if pairs["auc"] is not None:
        meaning = "a same-class pair is more similar than another pair"
        yield _line("pair AUC", f"{pairs['auc']:.4f}", "", meaning)
        rule = "the boundary" if pairs["boundary"] is not None else "the threshold"
        yield (
            f"{rule} {pairs['threshold']:.3f} is reached by {pairs['true_positive_rate']:.1%} of "
            f"same-class pairs and {pairs['false_positive_rate']:.2%} of the others"
            f" ({pairs['images']:,} images, every pair)"
        )


def _refused(record: Mapping[str, Any]) -> Iterator[str]:
    found = record["refused"]
    yield _line("none of these", f"{found['known']:.2%}", "", "known classes, wrongly refused")
    if found["unknown"] is not None:
        names = found["unknown_classes"]
        what = f"of {found['unknown_images']:,} images of held-out classes: {_some(names)}"
        yield _line("", f"{found['unknown']:.2%}", "", what)


def _leakage(record: Mapping[str, Any]) -> Iterator[str]:
    found = record["leakage"]
    if found is None:
        return
    yield found["sentence"]
    agreement = found["view_agreement"]
    if agreement and agreement["classmates"] is not None:
        yield (
            f"in style two views of one image have similarity {agreement['same_image']:.2f}, "
            f"two images of one class {agreement['classmates']:.2f}"
        )
    yield (
        f"style uses {found['style_rank']:.1f} of its {found['style_columns']} directions "
        "(effective rank)"
    )


def _classes(record: Mapping[str, Any]) -> Iterator[str]:
    there = [row for row in record["per_class"] if row["images"]]
    hard = sorted((row for row in there if row["f1"] < 1), key=lambda row: row["f1"])[:FEW]
    if hard:
        width = max(13, *(len(row["name"]) for row in hard))
        yield f"{'hardest classes':<{width + 2}} images  precision   recall       F1  refused"
    for row in hard:
        shares = (f"{row[name]:>8.1%}" for name in ("precision", "recall", "f1", "refused"))
        yield f"  {row['name']:<{width}} {row['images']:>8}   {' '.join(shares)}"
    if record["confused"]:
        yield ""
        yield "most confused"
    for pair in record["confused"][:FEW]:
        times = "once" if pair["count"] == 1 else f"{pair['count']} times"
        yield f"  {pair['label']} taken for {pair['prediction']} {times}"


def _suspects(record: Mapping[str, Any]) -> Iterator[str]:
    found = record["label_errors"]
    if found:
        yield f"labels worth a second look: {len(found)}, most suspicious first"
    for one in found[:FEW]:
        yield f"  {one['name']}: {one['label']}, or {one['suggested']}?"
    if len(found) > FEW:
        yield f"  and {len(found) - FEW} more"


def _left(record: Mapping[str, Any]) -> Iterator[str]:
    if "kept" in record:
        yield f"kept in   {record['kept']}"


def _line(title: str, value: str, beside: str, meaning: str) -> str:
    return f"{title:<28} {value:>8}  {beside:<17} {meaning}".rstrip()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
