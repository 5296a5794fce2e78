"""The REST API of a real server."""

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import scs_supcon
from scs_supcon.inference.writing import prediction_formatter
from scs_supcon.server.uploads import Limits


def png(size, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


def test_predictions_are_those_of_scs_predict(client, image_files):
    files = image_files[:5]
    model = scs_supcon.load(client.run)
    expected = prediction_formatter("jsonl")(model.predict(files, topk=3).records)
    expected = [json.loads(line) for line in expected.splitlines()]
    images = [(str(file), file.read_bytes()) for file in files]
    answer = client.send("/api/predict?topk=3", *images)
    assert answer.status == 200
    assert answer.json() == {"predictions": expected, "failures": []}
    lines = client.send("/api/predict?topk=3", *images, accept="application/x-ndjson")
    assert [json.loads(line) for line in lines.body.splitlines()] == expected


def test_one_image_can_be_the_body(client, image_files):
    answer = client("POST", "/api/predict", image_files[0].read_bytes(), content_type="image/png")
    assert [row["image"] for row in answer.json()["predictions"]] == ["image"]


def test_embeddings_are_those_of_the_model(client, image_files):
    expected = scs_supcon.load(client.run).embed(image_files[:2])
    images = [(file.name, file.read_bytes()) for file in image_files[:2]]
    rows = client.send("/api/embed", *images).json()["embeddings"]
    np.testing.assert_allclose([row["common"] for row in rows], expected.common, atol=1e-6)
    np.testing.assert_allclose([row["style"] for row in rows], expected.style, atol=1e-6)


def test_neighbours_of_an_image_are_those_of_the_model(client, image_files):
    expected = scs_supcon.load(client.run).neighbours(image_files[0], k=4)
    answer = client("POST", "/api/neighbours?k=4", image_files[0].read_bytes())
    rows = answer.json()["images"][0]["neighbours"]
    np.testing.assert_allclose(
        [row["similarity"] for row in rows], [near.similarity for near in expected], atol=1e-6
    )
    assert [row["label"] for row in rows] == [near.label for near in expected]


def test_neighbours_of_a_training_image_leave_it_out(client):
    names = client.get("/api/data").json()["names"]
    splits = client.get("/api/data").json()["splits"]
    number = splits.index("train")
    for field in ("common", "style"):
        answer = client.get(f"/api/neighbours?id={number}&k=3&field={field}").json()
        assert answer["image"] == names[number]
        assert number not in [row["id"] for row in answer["neighbours"]]
        similarities = [row["similarity"] for row in answer["neighbours"]]
        assert similarities == sorted(similarities, reverse=True)
        assert len(similarities) == 3


def test_an_explanation_has_neighbours_boundary_and_heat_map(client, image_files):
    answer = client("POST", "/api/explain?k=3", image_files[0].read_bytes()).json()
    assert len(answer["common"]) == len(answer["style"]) == 3
    assert isinstance(answer["boundary"], float)
    answer = client("POST", "/api/heat_map", image_files[0].read_bytes()).json()
    heat = np.array(answer["heat_map"])
    assert heat.ndim == 2
    assert heat.min() >= 0
    assert heat.max() == 1


def test_unreadable_files_are_named_and_the_others_predicted(client, image_files):
    good = image_files[0].read_bytes()
    names = ("../../etc/passwd", "<img src=x onerror=alert(1)>.png", "sch\u00f6n.png")
    answer = client.send(
        "/api/predict", (names[0], good[:60]), (names[1].replace('"', ""), b"x"), (names[2], good)
    )
    assert answer.status == 200
    assert [row["image"] for row in answer.json()["predictions"]] == [names[2]]
    assert [row["image"] for row in answer.json()["failures"]] == list(names[:2])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GIF89a", "cannot be read|truncated|is not a"),
        (b"not an image", "is not a JPEG"),
        (png((10_000, 10_000), "1"), "more than 64 million"),
        (png((2000, 2), "1"), "100 times"),
    ],
    ids=["truncated", "text", "100 megapixels", "thin"],
)
def test_unusable_images_get_a_reason(client, content, reason):
    answer = client("POST", "/api/predict", content)
    assert answer.status == 422
    assert re.search(reason, answer.json()["failures"][0]["reason"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/predict?topk=0", 400),
        ("/api/predict?topk=x", 400),
        ("/api/neighbours?field=other", 400),
        ("/api/images/0", 405),
        ("/api/../../etc/passwd", 404),
    ],
)
def test_invalid_requests_are_rejected(client, path, status, image_files):
    answer = client("POST", path, image_files[0].read_bytes())
    assert answer.status == status
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["/api/images/99999", "/api/images/-1", "/static/../app.py", "/static/%2e%2e/app.py"]
)
def test_only_known_images_and_files_are_sent(client, path):
    assert client.get(path).status == 404


def test_known_images_are_sent_as_jpeg(client):
    answer = client.get("/api/images/0?side=64")
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.body)) as image:
        assert max(image.size) <= 64


def test_the_model_is_described(client):
    model = client.get("/api/model").json()
    assert set(model["classes"]) == {"bar", "circle", "cross", "square"}
    assert model["thresholds"].keys() == set(model["classes"])
    assert model["encoder"] == "tiny"


def test_many_requests_at_once_are_answered_alike_and_in_batches(client, image_files):
    contents = [file.read_bytes() for file in image_files[:8]]
    alone = [client("POST", "/api/predict", content).json() for content in contents]
    with ThreadPoolExecutor(200) as pool:
        answers = list(
            pool.map(lambda i: client("POST", "/api/predict", contents[i % 8]), range(200))
        )
    assert [answer.status for answer in answers] == [200] * 200
    assert [answer.json() for answer in answers] == [alone[i % 8] for i in range(200)]
    text = client.get("/metrics").body.decode()
    batches = int(re.search(r"scs_batch_images_count (\d+)", text)[1])
    images = int(re.search(r"scs_images_total (\d+)", text)[1])
    assert images >= 208
    assert batches < images


def test_metrics_have_the_format_of_prometheus(client):
    client.get("/healthz")
    for line in client.get("/metrics").body.decode().splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{[a-z_]+=\"[^\"]*\".*\})? [\d.e+-]+", line)


def test_every_public_route_is_in_the_openapi_description(client):
    description = client.get("/api/openapi.json").json()
    from scs_supcon.server.api import api_routes

    routes = api_routes(None)
    listed = {
        (path, method.upper())
        for path, methods in description["paths"].items()
        for method in methods
    }
    expected = {
        (route.path.replace(":int", ""), method)
        for route in routes
        for method in route.methods - {"HEAD"}
    }
    assert listed == expected


def test_limits_of_a_request(run_copy, serve, image_files):
    content = image_files[0].read_bytes()
    limits = Limits(bytes=2000, images=2, seconds=30)
    with serve(run_copy, limits=limits) as client:
        assert client("POST", "/api/predict", content).status == 200
        too_large = client("POST", "/api/predict", b"x" * 2001)
        assert too_large.status == 413
        too_many = client.send("/api/predict", *[("x.png", b"x")] * 3)
        assert too_many.status == 413
        assert client("POST", "/api/predict", b"").status == 400
