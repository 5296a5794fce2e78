"""The REST API: predictions, embeddings, neighbours, the model, health and metrics."""

import base64
import io
import json
import time
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from scs_supcon.inference.types import Failure
from scs_supcon.inference.writing import prediction_row
from scs_supcon.server.openapi import DESCRIPTION, NUMBER_IN_PATH, OPERATIONS, VERSION
from scs_supcon.server.parameters import Endpoint, api_route
from scs_supcon.server.predictor import FieldName, NearImage, Pixels, Predictor, to_prediction
from scs_supcon.server.service import DecidedImage, ModelService, NeighbourRow
from scs_supcon.server.uploads import read_images

JSON_LINES = "application/x-ndjson"


def api_routes(service: ModelService) -> list[Route]:
    """Return the routes of the API."""
    api = _Api(service)
    endpoints: Mapping[tuple[str, str], Endpoint] = {
        ("POST", "/api/predict"): api.predict,
        ("POST", "/api/embed"): api.embed,
        ("POST", "/api/explain"): api.explain,
        ("POST", "/api/heat_map"): api.heat_map,
        ("GET", "/api/neighbours"): api.neighbours_of_known,
        ("POST", "/api/neighbours"): api.neighbours_of_upload,
        ("GET", "/api/model"): api.model,
        ("GET", "/api/images/{number}"): api.image,
        ("GET", "/api/openapi.json"): api.openapi,
        ("GET", "/healthz"): api.health,
        ("GET", "/metrics"): api.metrics,
    }
    return [api_route(*key, call, OPERATIONS[key].parameters) for key, call in endpoints.items()]


class _Api:
    def __init__(self, service: ModelService) -> None:
        self.service = service

    async def predict(self, request: Request, topk: int) -> Response:
        decided, failures, predictor = await self._decide(request)
        rows = [
            prediction_row(to_prediction(image.name, image.decision, predictor, topk))
            for image in decided
        ]
        return _answer(request, "predictions", rows, failures)

    async def embed(self, request: Request) -> Response:
        decided, failures, _ = await self._decide(request)
        rows = [
            {
                "image": image.name,
                "common": image.decision.common.tolist(),
                "style": image.decision.style.tolist(),
            }
            for image in decided
        ]
        return _answer(request, "embeddings", rows, failures)

    async def explain(self, request: Request, k: int) -> Response:
        """Return the prediction and the neighbours of one image."""
        image, predictor = await self._decide_one(request)
        prediction = to_prediction(image.name, image.decision, predictor, 5)
        return JSONResponse(
            {
                "prediction": prediction_row(prediction),
                "threshold": float(predictor.thresholds[image.decision.nearest]),
                "boundary": predictor.boundary,
                "common": self._near(image, predictor, "common", k),
                "style": self._near(image, predictor, "style", k),
                "view": _as_url(image.pixels),
            }
        )

    async def heat_map(self, request: Request) -> Response:
        """Return which regions of one image speak for its most probable class."""
        image, predictor = await self._decide_one(request)
        label = int(np.argmax(image.decision.probabilities))
        values = await self.service.in_time(
            self.service.in_thread(predictor.heat_map, image.pixels, label)
        )
        rounded = None if values is None else np.round(values, 4).tolist()
        return JSONResponse({"label": predictor.classes[label], "heat_map": rounded})

    async def neighbours_of_upload(self, request: Request, k: int, field: FieldName) -> Response:
        decided, failures, predictor = await self._decide(request)
        rows = [
            {"image": image.name, "neighbours": self._near(image, predictor, field, k)}
            for image in decided
        ]
        return _answer(request, "images", rows, failures)

    async def neighbours_of_known(
        self, request: Request, id: int, k: int, field: FieldName
    ) -> Response:
        """Return the neighbours of a training image, without the image itself."""
        if not self.service.images.names:
            raise HTTPException(404, "the gallery beside the model is missing: export it again")
        predictor = self.service.predictor
        gallery, name = predictor.gallery, self._name(id)
        if name not in gallery.names:
            raise HTTPException(404, f"image {id} is not a training image of this model")
        row = gallery.names.index(name)
        vectors = gallery.common if field == "common" else gallery.style
        similarities = vectors @ vectors[row] if vectors.shape[1] else np.zeros(0)
        order = [int(i) for i in np.argsort(-similarities, kind="stable") if i != row][:k]
        near = [NearImage(i, float(similarities[i])) for i in order]
        rows = self.service.neighbours(predictor, near)
        return JSONResponse({"id": id, "image": name, "neighbours": rows})

    async def model(self, request: Request) -> Response:
        predictor = self.service.predictor
        return JSONResponse(
            {
                "classes": predictor.classes,
                "thresholds": dict(
                    zip(predictor.classes, predictor.thresholds.tolist(), strict=True)
                ),
                "boundary": predictor.boundary,
                "training_images": len(predictor.gallery.names),
                "style": bool(predictor.gallery.style.shape[1]),
                "server": f"scs-supcon {VERSION}",
                **predictor.facts,
            }
        )

    async def image(self, request: Request, side: int) -> Response:
        number = NUMBER_IN_PATH.value(request.path_params["number"])
        self._name(number)
        jpeg = await self.service.in_time(
            self.service.in_thread(self.service.images.jpeg, number, side)
        )
        if jpeg is None:
            raise HTTPException(404, f"image {number} cannot be read")
        headers = {"cache-control": "private, max-age=3600"}
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(DESCRIPTION)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        text = self.service.monitor.text(self.service.waiting)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _decide(
        self, request: Request
    ) -> tuple[list[DecidedImage], list[Failure], Predictor]:
        start = time.monotonic()
        uploads = await read_images(request, self.service.limits)
        result = await self.service.decide(uploads)
        self.service.monitor.seconds.observe(time.monotonic() - start)
        return result

    async def _decide_one(self, request: Request) -> tuple[DecidedImage, Predictor]:
        decided, failures, predictor = await self._decide(request)
        if len(decided) + len(failures) != 1:
            raise HTTPException(422, "send one image")
        if failures:
            raise HTTPException(422, failures[0].reason)
        return decided[0], predictor

    def _near(
        self, image: DecidedImage, predictor: Predictor, field: FieldName, k: int
    ) -> list[NeighbourRow]:
        near = predictor.gallery.nearest(image.decision, field, k)
        return self.service.neighbours(predictor, near)

    def _name(self, number: int | str | None) -> str:
        names = self.service.images.names
        if not isinstance(number, int) or number >= len(names):
            raise HTTPException(404, "there is no image of this number")
        return names[number]


def _answer(
    request: Request, name: str, rows: Sequence[Mapping[str, object]], failures: Sequence[Failure]
) -> Response:
    """Return rows as JSON, or as JSON Lines if the client asks for it; 422 if nothing is left."""
    status = 422 if failures and not rows else 200
    listed = [{"image": failure.name, "reason": failure.reason} for failure in failures]
    if JSON_LINES in request.headers.get("accept", "") and status == 200:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return Response(lines, media_type=JSON_LINES)
    return JSONResponse({name: rows, "failures": listed}, status)


def _as_url(pixels: Pixels) -> str:
    """Return pixels as the address of an embedded PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
