"""Predictions, embeddings and neighbours, also after saving and loading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from scs_supcon.data.builtin import digits
from scs_supcon.data.feature_cache import frozen_features, keyed_views
from scs_supcon.errors import UserError
from scs_supcon.inference import Model, ModelMetrics, load
from scs_supcon.inference.decision import fit_pairs, pair_similarities
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import unit
from scs_supcon.recipe import make_recipe

Trained = Callable[..., Any]


@pytest.fixture
def model(trained: Trained) -> Model:
    built: Model = trained().model()
    return built


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_predictions_are_those_of_the_classifier(trained: Trained, probe_input: str) -> None:
    parts = trained(probe_input=probe_input)
    model = parts.model()
    records, failures = model.predict(parts.test)
    assert not failures
    correct = [int(r.label) == y for r, y in zip(records, parts.test_labels, strict=True)]
    assert np.mean(correct) > 0.9
    with torch.no_grad():
        features = model.features(parts.test)
        inputs = (
            features
            if probe_input == "features"
            else unit(parts.arguments["projection"](features)[:, :24])
        )
        expected = parts.arguments["classifier"].probabilities(inputs)
    probabilities = torch.tensor([r.probability for r in records], dtype=torch.float64)
    torch.testing.assert_close(probabilities, expected.amax(1), rtol=1e-4, atol=1e-6)


def test_the_most_probable_classes_come_first(model: Model, photos: list[Path]) -> None:
    records, failures = model.predict(photos, topk=3)
    assert not failures
    for record, photo in zip(records, photos, strict=True):
        assert record.name == str(photo)
        assert record.top[0] == (record.label, record.probability)
        assert [p for _, p in record.top] == sorted((p for _, p in record.top), reverse=True)
        assert len(record.top) == 3
        assert set(dict(record.top)) <= set(model.classes)
    all_classes = model.predict(photos[:1], topk=99).records[0].top
    assert sum(p for _, p in all_classes) == pytest.approx(1)
    assert len(all_classes) == 10


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_a_loaded_model_returns_the_same_bits(
    trained: Trained, probe_input: str, tmp_path: Path, photos: list[Path]
) -> None:
    parts = trained(probe_input=probe_input)
    model = parts.model()
    before_saving = model.decide(model.features(parts.test))
    model.save(tmp_path / "run" / "model", metrics=ModelMetrics(accuracy=0.9))
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        again = load(path)
        later = again.decide(again.features(parts.test))
        assert all(torch.equal(a, b) for a, b in zip(before_saving, later, strict=True))
    assert again.predict(photos) == model.predict(photos)
    assert again.info == model.info
    assert again.neighbours(photos[0]) == model.neighbours(photos[0])


def test_a_prediction_does_not_depend_on_the_other_images(model: Model, photos: list[Path]) -> None:
    together = model.predict(photos).records
    assert together == tuple(model.predict([photo]).records[0] for photo in photos)
    assert together == tuple(reversed(model.predict(photos[::-1]).records))


def test_predictions_do_not_depend_on_the_number_of_threads(
    model: Model, photos: list[Path]
) -> None:
    expected = model.predict(photos)
    torch.set_num_threads(3)
    try:
        assert model.predict(photos) == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_unreadable_images_are_failures(model: Model, photos: list[Path]) -> None:
    expected = model.predict(photos)
    photos[2].write_bytes(photos[2].read_bytes()[:60])
    photos[5].write_text("not an image")
    missing = photos[0].with_name("missing.png")
    records, failures = model.predict([*photos, missing])
    assert [f.name for f in failures] == [str(photos[2]), str(photos[5]), str(missing)]
    assert all(f.name in f.reason for f in failures)
    assert records == tuple(r for i, r in enumerate(expected.records) if i not in (2, 5))
    assert model.predict([missing]).records == ()


def test_without_images_there_are_no_predictions(model: Model) -> None:
    assert model.predict([]) == ((), ())
    assert model.embed([]).common.shape == (0, 24)


def test_wrong_arguments_are_explained(model: Model, photos: list[Path]) -> None:
    with pytest.raises(UserError, match="topk must be at least 1, got 0"):
        model.predict(photos, topk=0)
    with pytest.raises(UserError, match=r"missing\.png does not exist"):
        model.neighbours("missing.png")
    with pytest.raises(UserError, match="exactly one image, got 12"):
        model.neighbours(photos[0].parent)
    with pytest.raises(UserError, match="'common' or 'style', got 'stile'"):
        model.neighbours(photos[0], field="stile")  # type: ignore[arg-type]


def test_one_image_a_folder_and_arrays_are_accepted(model: Model, photos: list[Path]) -> None:
    expected = model.predict(sorted(photos)).records
    assert model.predict(photos[0].parent).records == expected
    (first,) = model.predict(str(sorted(photos)[0])).records
    assert first == expected[0]
    pixels = np.stack([np.asarray(Image.open(photo)) for photo in sorted(photos)])
    assert [r.top for r in model.predict(pixels).records] == [r.top for r in expected]
    (record,) = model.predict(Image.open(sorted(photos)[0])).records
    assert (record.name, record.top) == ("image 1", expected[0].top)


def test_rejection_can_be_adjusted(trained: Trained, tmp_path: Path) -> None:
    parts = trained()
    model = parts.model()
    model.save(tmp_path / "model")
    validation = parts.arguments["val"][0]
    for saved in (model, load(tmp_path / "model")):
        for rate in (0.0, 0.02, 0.2, 0.5):
            adjusted = saved.with_rejection(false_rejection=rate)
            rejected = float(adjusted.decide(validation).unknown.double().mean())
            assert rejected == pytest.approx(rate, abs=1.5 / len(validation))
    again = model.with_rejection(false_rejection=0.3).with_rejection(false_rejection=0.05)
    assert again.info.rejection.threshold == pytest.approx(model.info.rejection.threshold)
    images = parts.test[:40]
    counts = [
        sum(r.unknown for r in model.predict(images, threshold=threshold).records)
        for threshold in (-1.0, 0.5, 1.0)
    ]
    assert counts[0] == 0 < counts[2] == 40
    for record in model.predict(images, threshold=0.5).records:
        assert record.threshold == 0.5
        assert record.unknown == (record.similarity < 0.5)
    default = model.predict(images).records
    assert [r.unknown for r in default] == [r.similarity < r.threshold for r in default]
    with pytest.raises(UserError, match="not both"):
        model.predict(images, threshold=0.5, false_rejection=0.1)


def test_neighbours_in_style_come_from_the_style_field(trained: Trained, tmp_path: Path) -> None:
    parts = trained()
    parts.model().save(tmp_path / "model")
    model = load(tmp_path / "model")
    style = model.fields(parts.arguments["train"][0])[1].float().double()
    query = model.fields(model.features(parts.test[0]))[1][0]
    best = max(range(len(style)), key=lambda row: float(style[row] @ query))
    nearest = model.neighbours(parts.test[0], k=3, field="style")
    assert nearest[0].name == parts.arguments["train_names"][best]
    assert nearest[0].similarity == pytest.approx(float(style[best] @ query))
    assert nearest != model.neighbours(parts.test[0], k=3)
    without = trained(probe_input="features").model()
    with pytest.raises(UserError, match="stores no style vectors"):
        without.neighbours(parts.test[0], field="style")


def test_a_folder_can_be_searched(model: Model, photos: list[Path]) -> None:
    photos[3].write_bytes(b"")
    similar, failures = model.search(photos[5], photos[0].parent, k=3)
    assert [failure.name for failure in failures] == [str(photos[3])]
    assert similar[0].name == str(photos[5])
    assert similar[0].similarity == pytest.approx(1)
    embedded = model.embed([photos[5], *(p for p in photos if p != photos[3])])
    cosines = sorted((embedded.common[1:] @ embedded.common[0]).tolist(), reverse=True)
    assert [n.similarity for n in similar] == pytest.approx(cosines[:3], abs=1e-5)
    labels = {r.name: r.label for r in model.predict(photos[0].parent).records}
    assert [n.label for n in similar] == [labels[n.name] for n in similar]


def test_a_class_can_be_added_from_a_folder(
    trained: Trained, photos: list[Path], tmp_path: Path
) -> None:
    model = trained(known=8).model()
    assert model.add_class("new", photos[0].parent) == ()
    assert model.info.image_names[-12:] == tuple(sorted(map(str, photos)))
    assert len(model.gallery.style) == len(model.gallery.vectors)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").neighbours(photos[0], k=1, field="style")[0].label == "new"


def test_a_threshold_that_was_changed_after_a_class_was_added_is_saved(
    trained: Trained, photos: list[Path], tmp_path: Path
) -> None:
    model = trained(known=8).model()
    model.add_class("new", photos[0].parent)
    for number, changed in enumerate(
        (model, model.with_rejection(threshold=0.5), model.with_rejection(false_rejection=0.3))
    ):
        changed.save(tmp_path / str(number))
        thresholds = load(tmp_path / str(number)).classifier.rule.thresholds
        assert torch.equal(thresholds, changed.classifier.rule.thresholds)
    again = model.with_rejection(threshold=0.5)
    again.add_class("newer", photos[:2])
    assert again.classifier.rule.thresholds[:9].tolist() == [0.5] * 9


def test_common_and_style_are_the_fields_of_the_head(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    result = model.embed(parts.test[:20])
    with torch.no_grad():
        embeddings = parts.arguments["projection"](model.features(parts.test[:20]))
    np.testing.assert_allclose(result.common, unit(embeddings[:, :24]), atol=1e-5)
    np.testing.assert_allclose(result.style, unit(embeddings[:, 24:]), atol=1e-5)
    assert result.common.dtype == result.style.dtype == np.float32
    assert result.names[0] == "image 1"


def test_without_fields_common_is_the_centred_features(trained: Trained) -> None:
    parts = trained(probe_input="features")
    model = parts.model()
    result = model.embed(parts.test[:5])
    centred = model.features(parts.test[:5]) - parts.arguments["train"][0].mean(0)
    np.testing.assert_allclose(result.common, unit(centred), atol=1e-5)
    assert result.style.shape == (5, 0)


def test_neighbours_are_the_most_similar_training_images(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    nearest = model.neighbours(parts.test[0], k=5)
    query = model.embed(parts.test[:1]).common[0]
    gallery = model.fields(parts.arguments["train"][0])[0].numpy()
    order = np.argsort(-(gallery @ query), kind="stable")[:5]
    assert [n.name for n in nearest] == [parts.arguments["train_names"][i] for i in order]
    assert [n.label for n in nearest] == [str(int(parts.arguments["train"][1][i])) for i in order]
    np.testing.assert_allclose([n.similarity for n in nearest], (gallery @ query)[order], rtol=1e-5)
    assert len(model.neighbours(parts.test[0], k=10_000)) == 600


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_unknown_images_are_rejected_more_often(trained: Trained, probe_input: str) -> None:
    """The model was trained without nines."""
    parts = trained(known=9, probe_input=probe_input)
    model = parts.model()
    known, nines = (model.predict(images).records for images in (parts.test, parts.unknown))
    known_rejected = np.mean([record.unknown for record in known])
    nines_rejected = np.mean([record.unknown for record in nines])
    assert known_rejected < 0.1
    assert nines_rejected > 2 * known_rejected
    truth = [True] * len(known) + [False] * len(nines)
    assert roc_auc_score(truth, [r.similarity for r in (*known, *nines)]) > 0.8


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_a_class_can_be_added_by_its_mean(
    trained: Trained, probe_input: str, tmp_path: Path
) -> None:
    parts = trained(known=9, probe_input=probe_input)
    model = parts.model()
    before = model.decide(model.features(parts.test)).probabilities
    assert model.add_class("nine", parts.unknown[:10]) == ()
    nines = model.predict(parts.unknown[10:]).records
    others = model.predict(parts.test).records

    recall = np.mean([r.label == "nine" for r in nines])
    lost = np.mean([r.label == "nine" for r in others])
    assert recall > 0.5, "chance is a tenth"
    assert lost < 0.15
    if probe_input == "common":
        assert np.mean([r.unknown for r in nines]) < 0.2
    # The trained classes keep their proportions.
    after = model.decide(model.features(parts.test)).probabilities
    torch.testing.assert_close(after[:, :9] / after[:, :9].sum(1, keepdim=True), before)
    # Images of the added class can be neighbours, and the class is saved.
    assert model.classes[-1] == "nine"
    assert "nine" in {n.label for n in model.neighbours(parts.unknown[0], k=3)}
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").predict(parts.unknown[10:]).records == nines


def test_an_added_class_needs_a_new_name_and_an_image(trained: Trained, photos: list[Path]) -> None:
    model = trained(known=9).model()
    for name in ("3", ""):
        with pytest.raises(UserError, match="a name that is not in use"):
            model.add_class(name, photos)
    with pytest.raises(UserError, match=r"no image of 'nine' can be used.*missing\.png"):
        model.add_class("nine", ["missing.png"])
    assert model.classes == tuple("012345678")
    assert [f.name for f in model.add_class("nine", [photos[0], "missing.png"])] == ["missing.png"]
    assert model.predict(photos[:1]).records[0].label == "nine"


def test_progress_is_reported(model: Model, photos: list[Path]) -> None:
    calls: list[tuple[int, int]] = []
    model.predict(photos * 10, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (120, 120)
    assert calls == sorted(calls)


@pytest.mark.parametrize(("name", "size"), [("tiny", 32), ("test_resnet", 64)])
def test_features_equal_the_cached_features_bit_for_bit(
    trained: Trained, tmp_path: Path, name: str, size: int
) -> None:
    parts = trained(probe_input="features")
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=False, in_size=size).eval()
    values = {"data": {"source": "digits", "image_size": size}}
    recipe = make_recipe(values | {"encoder": {"name": name, "weights": "scratch"}})
    model = parts.model(encoder=encoder, recipe=recipe)
    images = digits()
    cached = frozen_features(
        images,
        range(50),
        encoder=encoder,
        encoder_key="test",
        transforms=keyed_views("eval", recipe.data),
        cache_dir=tmp_path,
    )
    features = model.features([images.open(index) for index in range(50)])
    assert torch.equal(features, torch.from_numpy(cached[:, 0]))
    last = model.features([images.open(index) for index in range(47, 50)])
    assert torch.equal(last, features[47:])


def test_grey_images_are_converted(model: Model) -> None:
    image = digits().open(0)
    colour, grey = model.features([image, image.convert("L")])
    assert torch.equal(colour, grey)


def test_pil_images_and_files_give_the_same_features(model: Model, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 4), dtype=np.uint8)
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.fromarray(noise[..., :3]).save(tmp_path / "rotated.png", exif=rotated)
    Image.fromarray(noise).save(tmp_path / "transparent.png")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    files = sorted(tmp_path.glob("*.png"))
    expected = model.features([Image.open(file) for file in files])
    assert torch.equal(model.features(files), expected)


def test_failures_of_pil_images_are_numbered(model: Model) -> None:
    encoded = model.encode([digits().open(0), Image.new("RGB", (900, 1))])
    assert encoded.names == ("image 1",)
    assert [failure.name for failure in encoded.failures] == ["image 2"]


def test_the_boundary_of_pairs_is_the_learned_one(trained: Trained) -> None:
    parts = trained()
    pairs = parts.model().info.pairs
    assert (pairs.t, pairs.b) == parts.arguments["learned_pairs"]
    assert pairs.learned
    assert pairs.boundary == pairs.b / pairs.t


def test_without_a_learned_boundary_one_is_fitted_to_the_validation_pairs(trained: Trained) -> None:
    parts = trained(probe_input="features")
    model = parts.model()
    features, labels = parts.arguments["val"]
    assert not model.info.pairs.learned
    t, b = fit_pairs(*pair_similarities(model.fields(features)[0], labels))
    assert (model.info.pairs.t, model.info.pairs.b) == pytest.approx((t, b), rel=1e-9)


@pytest.mark.parametrize("probe_input", ["common", "features"])
def test_5_percent_of_the_validation_images_are_rejected(trained: Trained, probe_input) -> None:
    parts = trained(probe_input=probe_input)
    model = parts.model()
    assert model.info.rejection.rule == "quantile"
    rejected = model.decide(parts.arguments["val"][0]).unknown.double().mean()
    assert model.info.rejection.val_rejected == float(rejected)
    assert float(rejected) == pytest.approx(0.05)


def test_the_projection_head_is_copied(trained: Trained) -> None:
    parts = trained()
    model = parts.model()
    features = parts.arguments["val"][0]
    before = model.decide(features).probabilities
    weight = parts.arguments["projection"].layers[0].weight
    original = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    try:
        assert torch.equal(model.decide(features).probabilities, before)
    finally:
        with torch.no_grad():
            weight.copy_(original)


def test_the_licence_follows_the_weights(trained: Trained) -> None:
    parts = trained()
    digest = "sha256:" + "0" * 64
    values = parts.arguments["recipe"].model_dump()
    for weights, text in (("scratch", "random weights"), (digest, digest), ("pretrained", "none")):
        values["encoder"]["weights"] = weights
        assert text in parts.model(recipe=make_recipe(values)).info.weights_licence
