"""The OpenAPI description of the REST API."""

from importlib.metadata import version
from typing import TypeAlias

from scs_supcon.io.values import ValueTree

Schema: TypeAlias = ValueTree
VERSION = version("scs-supcon")


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
PREDICTION = _object(
    image=TEXT,
    label=TEXT,
    probability=NUMBER,
    top={"type": "object", "additionalProperties": NUMBER},
    unknown=FLAG,
    nearest=TEXT,
    similarity=NUMBER,
    threshold=NUMBER,
)
NEIGHBOUR = _object(id={"type": ["integer", "null"]}, image=TEXT, label=TEXT, similarity=NUMBER)
FAILURES = _array(_object(image=TEXT, reason=TEXT))
IMAGES: Schema = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": _object(images=_array({"type": "string", "format": "binary"}))
        },
        "image/*": {"schema": {"type": "string", "format": "binary"}},
    },
}


def _parameter(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": text}


K = _parameter("k", {"type": "integer", "default": 10, "minimum": 1}, "Number of neighbours.")
FIELD = _parameter(
    "field", {"enum": ["common", "style"], "default": "common"}, "Field of the embedding."
)


def _json(schema: Schema) -> Schema:
    return {"description": "OK", "content": {"application/json": {"schema": schema}}}


def _operation(
    summary: str, schema: Schema, *parameters: Schema, body: Schema | None = None
) -> Schema:
    errors = {"4XX": {"description": 'The request was rejected: {"error": reason}.'}}
    operation: Schema = {"summary": summary, "responses": {"200": _json(schema), **errors}}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = body
    return operation


DESCRIPTION: Schema = {
    "openapi": "3.1.0",
    "info": {
        "title": "scs serve",
        "version": VERSION,
        "description": "Classify images with a trained model. Send one image as the body, or "
        "several as files of a form; `Accept: application/x-ndjson` returns one line per image.",
    },
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "paths": {
        "/api/predict": {
            "post": _operation(
                "Class, probability and rejection of images",
                _object(predictions=_array(PREDICTION), failures=FAILURES),
                _parameter("topk", {"type": "integer", "default": 5}, "Number of classes listed."),
                body=IMAGES,
            )
        },
        "/api/embed": {
            "post": _operation(
                "Common and style field of images",
                _object(
                    embeddings=_array(
                        _object(image=TEXT, common=_array(NUMBER), style=_array(NUMBER))
                    ),
                    failures=FAILURES,
                ),
                body=IMAGES,
            )
        },
        "/api/explain": {
            "post": _operation(
                "Prediction of one image and its neighbours in both fields",
                _object(
                    prediction=PREDICTION,
                    threshold=NUMBER,
                    boundary={"type": ["number", "null"]},
                    common=_array(NEIGHBOUR),
                    style=_array(NEIGHBOUR),
                    view=TEXT,
                ),
                K,
                body=IMAGES,
            )
        },
        "/api/heat_map": {
            "post": _operation(
                "Which regions of one image speak for its class; null without PyTorch",
                _object(label=TEXT, heat_map={"type": ["array", "null"], "items": _array(NUMBER)}),
                body=IMAGES,
            )
        },
        "/api/neighbours": {
            "get": _operation(
                "Training images most similar to a training image",
                _object(id={"type": "integer"}, image=TEXT, neighbours=_array(NEIGHBOUR)),
                _parameter("id", {"type": "integer"}, "Number of the training image."),
                K,
                FIELD,
            ),
            "post": _operation(
                "Training images most similar to images that are sent",
                _object(
                    images=_array(_object(image=TEXT, neighbours=_array(NEIGHBOUR))),
                    failures=FAILURES,
                ),
                K,
                FIELD,
                body=IMAGES,
            ),
        },
        "/api/model": {
            "get": _operation(
                "Classes, thresholds, encoder, method and results",
                {"type": "object", "additionalProperties": True},
            )
        },
        "/api/images/{number}": {
            "get": {
                "summary": "A known image as JPEG",
                "parameters": [
                    {
                        "name": "number",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "integer"},
                    },
                    _parameter("side", {"type": "integer", "default": 160}, "Longest side."),
                ],
                "responses": {"200": {"description": "OK", "content": {"image/jpeg": {}}}},
            }
        },
        "/api/openapi.json": {"get": _operation("This description", {"type": "object"})},
        "/healthz": {"get": _operation("Whether the server is ready", _object(status=TEXT))},
        "/metrics": {
            "get": {
                "summary": "Metrics in the text format of Prometheus",
                "responses": {"200": {"description": "OK", "content": {"text/plain": {}}}},
            }
        },
    },
}
