"""The OpenAPI description of the REST API."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple, TypeAlias

from scs_supcon.io.values import ValueTree
from scs_supcon.server.parameters import Parameter
from scs_supcon.server.uploads import Limits

Schema: TypeAlias = ValueTree
VERSION = version("scs-supcon")


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
PREDICTION = _object(
    **dict.fromkeys(("image", "label", "nearest"), TEXT),
    **dict.fromkeys(("probability", "similarity", "threshold"), NUMBER),
    top={"type": "object", "additionalProperties": NUMBER},
    unknown={"type": "boolean"},
)
NEIGHBOUR = _object(id={"type": ["integer", "null"]}, image=TEXT, label=TEXT, similarity=NUMBER)
FAILURES = _array(_object(image=TEXT, reason=TEXT))
IMAGE: Schema = {"type": "string", "format": "binary"}


def _images(at_most: int) -> Schema:
    form = _object(images=_array(IMAGE, minItems=1, maxItems=at_most))
    content = {"multipart/form-data": {"schema": form}, "image/*": {"schema": IMAGE}}
    return {"required": True, "content": content}


IMAGES, ONE_IMAGE = _images(Limits.images), _images(1)
IMAGE_NUMBERS = range(2**31)
NUMBER_IN_PATH = Parameter("number", "Number of the image.", allowed=IMAGE_NUMBERS)
K = Parameter("k", "Number of neighbours.", 10, range(1, 101))
FIELD = Parameter("field", "Field of the embedding.", "common", ("common", "style"))


class Operation(NamedTuple):
    """A method of a path: what it returns, by content type, its parameters and its body."""

    summary: str
    content: Schema
    parameters: Sequence[Parameter] = ()
    body: Schema | None = None

    def describe(self, path: str) -> Schema:
        """Return the description."""
        error = _json({"type": "object", "properties": {"error": TEXT}})
        in_path = [NUMBER_IN_PATH.describe("path")] if "{number}" in path else []
        operation: Schema = {
            "summary": self.summary,
            "parameters": [*in_path, *(parameter.describe() for parameter in self.parameters)],
            "responses": {
                "200": {"description": "OK", "content": self.content},
                "4XX": {"description": "The request was rejected.", "content": error},
                "5XX": {"description": "The server is overloaded or failed.", "content": error},
            },
        }
        return operation if self.body is None else {**operation, "requestBody": self.body}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _rows(**properties: Schema) -> Schema:
    return {**_json(_object(**properties, failures=FAILURES)), "application/x-ndjson": {}}


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/api/predict"): Operation(
        "Class, probability and rejection of images",
        _rows(predictions=_array(PREDICTION)),
        [Parameter("topk", "Number of classes listed.", 5, range(1, 10_001))],
        IMAGES,
    ),
    ("POST", "/api/embed"): Operation(
        "Common and style field of images",
        _rows(embeddings=_array(_object(image=TEXT, common=_array(NUMBER), style=_array(NUMBER)))),
        body=IMAGES,
    ),
    ("POST", "/api/explain"): Operation(
        "Prediction of one image and its neighbours in both fields",
        _json(
            _object(
                prediction=PREDICTION,
                threshold=NUMBER,
                boundary={"type": ["number", "null"]},
                **dict.fromkeys(("common", "style"), _array(NEIGHBOUR)),
                view=TEXT,
            )
        ),
        [replace(K, default=12)],
        ONE_IMAGE,
    ),
    ("POST", "/api/heat_map"): Operation(
        "Which regions of one image speak for its class; null without PyTorch",
        _json(_object(label=TEXT, heat_map={"type": ["array", "null"], "items": _array(NUMBER)})),
        body=ONE_IMAGE,
    ),
    ("GET", "/api/neighbours"): Operation(
        "Training images most similar to a training image",
        _json(_object(id={"type": "integer"}, image=TEXT, neighbours=_array(NEIGHBOUR))),
        [Parameter("id", "Number of the training image.", 0, IMAGE_NUMBERS), K, FIELD],
    ),
    ("POST", "/api/neighbours"): Operation(
        "Training images most similar to images that are sent",
        _rows(images=_array(_object(image=TEXT, neighbours=_array(NEIGHBOUR)))),
        [K, FIELD],
        IMAGES,
    ),
    ("GET", "/api/model"): Operation(
        "Classes, thresholds, encoder, method and results", _json({"type": "object"})
    ),
    ("GET", "/api/images/{number}"): Operation(
        "A known image as JPEG",
        {"image/jpeg": {}},
        [Parameter("side", "Longest side.", 160, range(16, 1025))],
    ),
    ("GET", "/api/openapi.json"): Operation("This description", _json({"type": "object"})),
    ("GET", "/healthz"): Operation("Whether the server is ready", _json(_object(status=TEXT))),
    ("GET", "/metrics"): Operation("Metrics in the text format of Prometheus", {"text/plain": {}}),
}
PATHS: dict[str, Schema] = {path: {} for _, path in OPERATIONS}
for (_method, _path), _operation in OPERATIONS.items():
    PATHS[_path][_method.lower()] = _operation.describe(_path)
DESCRIPTION: Schema = {
    "openapi": "3.1.0",
    "info": {
        "title": "scs serve",
        "version": VERSION,
        "description": "Classify images with a trained model. Send one image as the body, or "
        "several as files of a form; `Accept: application/x-ndjson` returns one line per image.",
    },
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "paths": PATHS,
}
