"""What a model says of images, and that it says the same after it was saved and loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from scs_supcon.errors import UserError
from scs_supcon.inference import Model, load
from scs_supcon.nn.head import unit

Trained = Callable[..., Any]


@pytest.fixture
def model(trained: Trained) -> Model:
    found: Model = trained().model()
    return found


@pytest.mark.parametrize("readout", ["common", "features"])
def test_predictions_are_the_classifier_s(trained: Trained, readout: str) -> None:
    parts = trained(readout=readout)
    model = parts.model()
    records, failures = model.predict(parts.test)
    assert not failures
    right = [int(r.label) == y for r, y in zip(records, parts.test_labels, strict=True)]
    assert np.mean(right) > 0.9
    with torch.no_grad():
        features = model.features(parts.test)
        seen = features if readout == "features" else unit(parts.network.head(features)[:, :24])
        expected = parts.classifier.probabilities(seen)
    found = torch.tensor([r.probability for r in records], dtype=torch.float64)
    torch.testing.assert_close(found, expected.amax(1), rtol=1e-4, atol=1e-6)


def test_a_record_tells_classes_best_first(model: Model, photos: list[Path]) -> None:
    records, failures = model.predict(photos, topk=3)
    assert not failures
    for record, photo in zip(records, photos, strict=True):
        assert record.name == str(photo)
        assert record.top[0] == (record.label, record.probability)
        assert [p for _, p in record.top] == sorted((p for _, p in record.top), reverse=True)
        assert len(record.top) == 3
        assert set(dict(record.top)) <= set(model.classes)
    everything = model.predict(photos[:1], topk=99).records[0].top
    assert sum(p for _, p in everything) == pytest.approx(1)
    assert len(everything) == 10


@pytest.mark.parametrize("readout", ["common", "features"])
def test_saved_and_loaded_it_says_the_same_to_the_last_bit(
    trained: Trained, readout: str, tmp_path: Path, photos: list[Path]
) -> None:
    parts = trained(readout=readout)
    model = parts.model()
    in_training = model.judge(model.features(parts.test))
    model.save(tmp_path / "run" / "model", metrics={"acc1": 0.9})
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        again = load(path)
        later = again.judge(again.features(parts.test))
        assert all(torch.equal(a, b) for a, b in zip(in_training, later, strict=True))
    assert again.predict(photos) == model.predict(photos)
    assert again.facts == model.facts
    assert again.neighbours(photos[0]) == model.neighbours(photos[0])


def test_a_image_is_judged_by_itself_alone(model: Model, photos: list[Path]) -> None:
    together = model.predict(photos).records
    assert together == tuple(model.predict([photo]).records[0] for photo in photos)
    assert together == tuple(reversed(model.predict(photos[::-1]).records))


def test_threads_change_nothing(model: Model, photos: list[Path]) -> None:
    alone = model.predict(photos)
    torch.set_num_threads(3)
    try:
        assert model.predict(photos) == alone
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_unreadable_images_are_listed_and_the_rest_is_done(
    model: Model, photos: list[Path]
) -> None:
    good = model.predict(photos)
    photos[2].write_bytes(photos[2].read_bytes()[:60])
    photos[5].write_text("no image")
    missing = photos[0].with_name("missing.png")
    records, failures = model.predict([*photos, missing])
    assert [f.name for f in failures] == [str(photos[2]), str(photos[5]), str(missing)]
    assert all(f.name in f.reason for f in failures)
    assert records == tuple(r for i, r in enumerate(good.records) if i not in (2, 5))
    assert model.predict([missing]).records == ()


def test_nothing_in_nothing_out(model: Model) -> None:
    assert model.predict([]) == ((), ())
    assert model.embed([]).common.shape == (0, 24)


def test_a_wrong_question_is_explained(model: Model, photos: list[Path]) -> None:
    with pytest.raises(UserError, match="at least 1 class"):
        model.predict(photos, topk=0)
    with pytest.raises(UserError, match="give a list of images"):
        model.predict(str(photos[0]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"missing\.png does not exist"):
        model.neighbours("missing.png")


def test_common_and_style_are_the_head_s(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    found = model.embed(parts.test[:20])
    with torch.no_grad():
        embeddings = parts.network.head(model.features(parts.test[:20]))
    np.testing.assert_allclose(found.common, unit(embeddings[:, :24]), atol=1e-5)
    np.testing.assert_allclose(found.style, unit(embeddings[:, 24:]), atol=1e-5)
    assert found.common.dtype == found.style.dtype == np.float32
    assert found.names[0] == "image 1"


def test_without_fields_common_is_the_centred_features(trained: Trained) -> None:
    parts = trained(readout="features")
    model = parts.model()
    found = model.embed(parts.test[:5])
    centred = model.features(parts.test[:5]) - parts.evidence.train[0].mean(0)
    np.testing.assert_allclose(found.common, unit(centred), atol=1e-5)
    assert found.style.shape == (5, 0)


def test_neighbours_are_the_most_similar_training_images(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    found = model.neighbours(parts.test[0], k=5)
    query = model.embed(parts.test[:1]).common[0]
    gallery = model.fields(parts.evidence.train[0])[0].numpy()
    order = np.argsort(-(gallery @ query), kind="stable")[:5]
    assert [n.name for n in found] == [parts.evidence.names[i] for i in order]
    assert [n.label for n in found] == [str(int(parts.evidence.train[1][i])) for i in order]
    np.testing.assert_allclose([n.similarity for n in found], (gallery @ query)[order], rtol=1e-5)
    assert len(model.neighbours(parts.test[0], k=10_000)) == 600


@pytest.mark.parametrize("readout", ["common", "features"])
def test_strangers_are_none_of_these_more_often(trained: Trained, readout: str) -> None:
    """Nobody showed this model a nine."""
    parts = trained(known=9, readout=readout)
    model = parts.model()
    known, nines = (model.predict(images).records for images in (parts.test, parts.left_out))
    of_known, of_nines = (np.mean([r.none_of_these for r in part]) for part in (known, nines))
    assert of_known < 0.1
    assert of_nines > 2 * of_known
    truth = [True] * len(known) + [False] * len(nines)
    assert roc_auc_score(truth, [r.similarity for r in (*known, *nines)]) > 0.8


@pytest.mark.parametrize("readout", ["common", "features"])
def test_a_class_can_be_added_by_its_mean(trained: Trained, readout: str, tmp_path: Path) -> None:
    parts = trained(known=9, readout=readout)
    model = parts.model()
    before = model.judge(model.features(parts.test)).probabilities
    assert model.add_class("nine", parts.left_out[:10]) == ()
    nines = model.predict(parts.left_out[10:]).records
    others = model.predict(parts.test).records

    found = np.mean([r.label == "nine" for r in nines])
    lost = np.mean([r.label == "nine" for r in others])
    assert found > 0.5, "a tenth would be chance"
    assert lost < 0.15
    if readout == "common":
        assert np.mean([r.none_of_these for r in nines]) < 0.2
    # The trained classes keep their proportions.
    after = model.judge(model.features(parts.test)).probabilities
    rest = after[:, :9] / after[:, :9].sum(1, keepdim=True)
    torch.testing.assert_close(rest, before)
    # Its images can be neighbours, and it survives saving.
    assert model.classes[-1] == "nine"
    assert "nine" in {n.label for n in model.neighbours(parts.left_out[0], k=3)}
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").predict(parts.left_out[10:]).records == nines


def test_a_class_needs_a_name_and_a_image(trained: Trained, photos: list[Path]) -> None:
    model = trained(known=9).model()
    with pytest.raises(UserError, match="choose one that is not taken"):
        model.add_class("3", photos)
    with pytest.raises(UserError, match="choose one that is not taken"):
        model.add_class("", photos)
    with pytest.raises(UserError, match=r"no image of 'nine' can be used.*missing\.png"):
        model.add_class("nine", ["missing.png"])
    assert model.classes == tuple("012345678")
    assert [f.name for f in model.add_class("nine", [photos[0], "missing.png"])] == ["missing.png"]
    assert model.predict(photos[:1]).records[0].label == "nine"


def test_progress_is_told(model: Model, photos: list[Path]) -> None:
    said: list[tuple[int, int]] = []
    model.predict(photos * 10, progress=lambda done, total: said.append((done, total)))
    assert said[-1] == (120, 120)
    assert said == sorted(said)
