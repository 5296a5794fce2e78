"""The order of the queue and the learning curve, with plain references."""

import numpy as np

from scs_supcon.server.label_queue import choose_uncertain, learning_curve


def random_rows(n, seed, dim=6, classes=4):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, dim))
    probabilities = rng.dirichlet(np.ones(classes), n)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), probabilities


def test_the_order_follows_the_formula():
    common, probabilities = random_rows(40, 0)
    taken, _ = random_rows(3, 1)
    chosen = choose_uncertain(probabilities, common, taken, 5)
    u = []
    for row in probabilities.tolist():
        first, second = sorted(row, reverse=True)[:2]
        u.append(1 - (first - second))
    reference, before = [], [list(vector) for vector in taken]
    for _ in range(5):

        def value(i):
            similarity = max(float(np.dot(common[i], other)) for other in before)
            return u[i] * (1 - min(1.0, max(0.0, similarity)))

        best = max((i for i in range(40) if i not in reference), key=value)
        reference.append(best)
        before.append(list(common[best]))
    assert chosen == reference


def test_the_most_uncertain_image_comes_first_and_its_copy_last():
    common = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    probabilities = np.array([[0.5, 0.5], [0.5, 0.5], [0.7, 0.3]])
    assert choose_uncertain(probabilities, common, np.zeros((0, 2)), 3) == [0, 2, 1]


def test_the_learning_curve_is_that_of_class_means():
    train, _ = random_rows(12, 2)
    val, _ = random_rows(30, 3)
    new, _ = random_rows(6, 4)
    labels = [np.arange(n) % 3 for n in (12, 30, 6)]
    curve = learning_curve(
        (train, labels[0]), (val, labels[1]), list(zip(new, labels[2], strict=True)), 3
    )
    assert [count for count, _ in curve] == list(range(7))
    for count, accuracy in curve:
        correct = 0
        for row, label in zip(val, labels[1], strict=True):
            cosines = []
            for k in range(3):
                members = [r for r, y in zip(train, labels[0], strict=True) if y == k]
                members += [
                    r for r, y in zip(new[:count], labels[2][:count], strict=True) if y == k
                ]
                mean = np.sum(members, axis=0)
                cosines.append(float(row @ mean) / float(np.sqrt(mean @ mean)))
            correct += cosines.index(max(cosines)) == label
        assert accuracy == correct / 30
