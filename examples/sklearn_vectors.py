"""Classify feature vectors with scikit-learn: ContrastiveClassifier in a pipeline.

python examples/sklearn_vectors.py
"""

from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scs_supcon import ContrastiveClassifier


def main() -> None:
    """Cross-validate, then use the common field as features for another estimator."""
    vectors, labels = load_wine(return_X_y=True)
    print(f"wine: {vectors.shape[0]} vectors with {vectors.shape[1]} columns, 3 classes")

    contrastive = ContrastiveClassifier(epochs=10, settings=["probe.epochs=10"])
    for name, classifier in (
        ("contrastive", contrastive),
        ("logistic regression", LogisticRegression()),
    ):
        scores = cross_val_score(make_pipeline(StandardScaler(), classifier), vectors, labels, cv=3)
        print(f"{name}: accuracy {scores.mean():.3f} (folds: {scores.round(3).tolist()})")

    train, test, train_labels, test_labels = train_test_split(
        vectors, labels, stratify=labels, random_state=0
    )
    neighbours = make_pipeline(StandardScaler(), contrastive, KNeighborsClassifier(5))
    neighbours.fit(train, train_labels)  # the classifier's `transform` returns the common field
    embeddings = neighbours[:-1].transform(test)
    print(f"common field: {embeddings.shape[1]} columns of unit length")
    print(f"5 nearest neighbours in it: accuracy {neighbours.score(test, test_labels):.3f}")


if __name__ == "__main__":
    main()
