"""Compare scores for the rejection of unknown images, on classes that were held out.

    python experiments/recommended/rejection.py birds50 --weights WEIGHTS --out results/rejection

For each seed, a fifth of the classes is removed from the training images. The default recipe is
trained on the others. The scores of test images of known and of unknown classes are compared by
the area under the ROC curve (AUROC) and by the share of unknown images that are accepted if 95% of
the known images are (FPR at 95%). The output also says what share of the known images the model
itself rejects at its setting of 5%.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from torch import Tensor

import scs_supcon
from scs_supcon.data.load import load_images
from scs_supcon.inference import Model

K = 10  # nearest neighbours


def scores_of(model: Model, features: Tensor, train: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the scores of images by name; high scores mean known images.

    Args:
        model: the trained model.
        features: (n, F) features of the images.
        train: (m, F) features of the training images.
        labels: (m,) their classes.
    """
    decision = model.decide(features)
    rule = model.classifier.rule
    common, _ = model.fields(features)
    gallery, _ = model.fields(train)
    logits = common @ rule.means.T / rule.temperature
    x, y = features.double(), train.double()
    means = torch.stack([y[labels == label].mean(0) for label in labels.unique()])
    within = (y - means[labels]).numpy()
    precision = torch.linalg.inv(torch.from_numpy(ledoit_wolf(within)[0]))
    products = x @ precision
    distances = (
        (products * x).sum(1, keepdim=True)
        - 2 * products @ means.T
        + ((means @ precision) * means).sum(1)
    )
    return {
        "similarity to the nearest class mean": decision.similarity,
        "maximum softmax probability": decision.probabilities.amax(1),
        "energy": logits.logsumexp(1),
        "kNN distance": (common @ gallery.T).topk(K, 1).values[:, -1],
        "Mahalanobis distance": -distances.amin(1),
    }


def run_seed(data: str, weights: str, out: Path, seed: int) -> list[dict[str, object]]:
    """Train without a fifth of the classes and return the rows of the table."""
    images = load_images(data)
    assert images.paths is not None and images.splits is not None
    classes = np.random.default_rng(seed).permutation(len(images.classes))
    unknown = set(classes[: len(classes) // 5].tolist())
    folder = out / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "known.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image_path", "label", "split"])
        for path, label, split in zip(images.paths, images.labels, images.splits, strict=True):
            if label not in unknown:
                writer.writerow([path.resolve(), images.classes[label], split])
    result = scs_supcon.train(
        str(folder / "known.csv"), out=folder / "run", weights=weights, frozen=True, seed=seed
    )
    model = result.model
    test = [i for i, split in enumerate(images.splits) if split == "test"]
    features = model.features([images.paths[i] for i in test])
    train = model.features([Path(name) for name in model.info.image_names])
    known = np.array([images.labels[i] not in unknown for i in test])
    rejected = model.decide(features).unknown.numpy()
    rows: list[dict[str, object]] = []
    for name, score in scores_of(model, features, train, model.gallery.labels).items():
        values = score.numpy()
        threshold = np.quantile(values[known], 0.05)
        rows.append(
            {
                "seed": seed,
                "score": name,
                "auroc": round(float(roc_auc_score(known, values)), 4),
                "fpr_at_95": round(float((values[~known] >= threshold).mean()), 4),
                "known_rejected": round(float(rejected[known].mean()), 4),
                "unknown_rejected": round(float(rejected[~known].mean()), 4),
                "accuracy": round(result.accuracy, 4),
            }
        )
    return rows


def main() -> None:
    """Run all seeds and write rejection.csv and rejection.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", help="images with a train and a test split")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/rejection"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.seeds):
        rows += run_seed(arguments.data, arguments.weights, arguments.out, seed)
        with (arguments.out / "rejection.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    means = {
        name: {
            key: float(np.mean([row[key] for row in rows if row["score"] == name]))
            for key in ("auroc", "fpr_at_95", "known_rejected")
        }
        for name in dict.fromkeys(str(row["score"]) for row in rows)
    }
    (arguments.out / "rejection.json").write_text(json.dumps(means, indent=1) + "\n")
    for name, values in means.items():
        print(f"{name:40} AUROC {values['auroc']:.3f}, FPR at 95% {values['fpr_at_95']:.3f}")


if __name__ == "__main__":
    main()
