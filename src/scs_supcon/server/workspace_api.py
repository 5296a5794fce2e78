"""The API of the data page and of retraining. It is not for other programs and may change."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scs_supcon.errors import UserError
from scs_supcon.runs.corrections import NOT_USED
from scs_supcon.server.comparison import RunComparison, compare_predictions, read_predictions
from scs_supcon.server.label_queue import LabelQueue
from scs_supcon.server.parameters import Parameter, api_route
from scs_supcon.server.retrain import Retrain
from scs_supcon.server.scores import RunVectors, place_on_map, read_vectors, score_images
from scs_supcon.server.service import ModelService
from scs_supcon.server.torch_predictor import TorchPredictor, load_predictor
from scs_supcon.server.uploads import Limits, read_body
from scs_supcon.server.workspace import Workspace

Value = TypeVar("Value")
JSON_LIMITS = Limits(bytes=4 * 2**20)


class WorkspaceApi:
    """Everything that needs the images of the run: data page, label queue, retraining.

    Args:
        workspace: the served run.
        service: predicts; its model is replaced when a run is promoted.
        retrain: trains new runs.
    """

    def __init__(self, workspace: Workspace, service: ModelService, retrain: Retrain) -> None:
        self.workspace, self.service, self.retrain = workspace, service, retrain
        self.queue = LabelQueue(workspace)
        self._changing = asyncio.Lock()
        index = {name: number for number, name in enumerate(workspace.classes)}
        labelled = workspace.images[: workspace.labelled]
        self._originals = [index.get(image.label, -1) for image in labelled]
        self._vectors = _computed_once(self._read_vectors)
        self._columns = _computed_once(self._columns_as_json)
        self._points = _computed_once(lambda run: place_on_map(self._vectors(run)))

    def prepare(self) -> None:
        """Compute the scores of the images, so that the data page does not wait for them."""

        def compute() -> None:
            with suppress(Exception):  # the request for the scores reports it
                self._columns(self.workspace.current)

        threading.Thread(target=compute, daemon=True).start()

    def routes(self) -> list[Route]:
        """Return the routes."""

        runs = (Parameter("old", "A run."), Parameter("new", "Another run."))
        return [
            api_route("GET", "/api/data", self.data),
            api_route("GET", "/api/data/map", self.data_map),
            api_route("GET", "/api/corrections", self.list_corrections),
            api_route("POST", "/api/corrections", self.correct),
            api_route("POST", "/api/corrections/undo", self.undo),
            api_route("GET", "/api/queue", self.next_images),
            api_route("GET", "/api/retrain", self.training_status),
            api_route("POST", "/api/retrain", self.start_training),
            api_route("POST", "/api/retrain/stop", self.stop_training),
            api_route("POST", "/api/retrain/resume", self.resume_training),
            api_route("GET", "/api/runs", self.list_runs),
            api_route("GET", "/api/compare", self.compare, runs),
            api_route("POST", "/api/promote", self.promote),
        ]

    async def data(self, request: Request) -> Response:
        """Return names, labels, splits and scores of all images with a label, by column."""
        workspace = self.workspace
        columns = await self._in_thread(self._columns, workspace.current)
        labels = workspace.labels()[: workspace.labelled].tolist()
        changing = json.dumps({"labels": labels, **self._correction_state()})
        return Response(f"{columns[:-1]},{changing[1:]}", media_type="application/json")

    async def data_map(self, request: Request) -> Response:
        """Return the coordinates of the images on the map of the common field."""
        points = await self._in_thread(self._points, self.workspace.current)
        return JSONResponse({"points": points})

    async def list_corrections(self, request: Request) -> Response:
        rows = [row._asdict() for row in self.workspace.corrections.rows[-200:]]
        return JSONResponse({"rows": rows, **self._correction_state()})

    async def correct(self, request: Request) -> Response:
        """Give images another label; null: do not use them."""
        document = await _read_object(request, JSON_LIMITS)
        numbers, label = document.get("images"), document.get("label", "")
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise HTTPException(400, "images must be a list of numbers")
        if (label is not None and not isinstance(label, str)) or label == NOT_USED:
            raise HTTPException(400, "label must be the name of a class, or null")
        async with self._changing:
            changed = await self._in_thread(self.workspace.relabel, numbers, label or NOT_USED)
        return JSONResponse({"changed": self._labels_of(changed), **self._correction_state()})

    async def undo(self, request: Request) -> Response:
        async with self._changing:
            changed = await self._in_thread(self.workspace.undo)
        return JSONResponse({"changed": self._labels_of(changed), **self._correction_state()})

    async def next_images(self, request: Request) -> Response:
        """Return the unlabelled images to label next, and the learning curve."""
        predictor = self.service.predictor
        assert isinstance(predictor, TorchPredictor)
        vectors = await self._in_thread(self._vectors, self.workspace.current)
        return JSONResponse(await self._in_thread(self.queue.next, predictor, vectors))

    async def training_status(self, request: Request) -> Response:
        return JSONResponse(await self._training_status())

    async def start_training(self, request: Request) -> Response:
        async with self._changing:
            await self._in_thread(self.retrain.start)
        return JSONResponse(await self._training_status(), 202)

    async def stop_training(self, request: Request) -> Response:
        self.retrain.stop()
        return JSONResponse(await self._training_status(), 202)

    async def resume_training(self, request: Request) -> Response:
        async with self._changing:
            self.retrain.resume()
        return JSONResponse(await self._training_status(), 202)

    async def list_runs(self, request: Request) -> Response:
        return JSONResponse({"runs": self.workspace.runs(), "current": self.workspace.current})

    async def compare(self, request: Request, old: str | None, new: str | None) -> Response:
        """Return two finished runs side by side."""
        workspace, names = self.workspace, self.workspace.runs()
        chosen = [names[0] if old is None else old, names[-1] if new is None else new]
        for name in chosen:
            if name not in names:
                raise HTTPException(404, f"there is no finished run {name!r}")

        def compute() -> RunComparison:
            before, after = (
                read_predictions(workspace.path_of(name), workspace.names_in(name))
                for name in chosen
            )
            labels = {image.name: image.label for image in workspace.images}
            edited = workspace.edited_test_images()
            result = compare_predictions(before, after, labels, workspace.classes, edited)
            for row in result["changed"]:
                row["id"] = workspace.number(row["image"])
            return result

        result = await self._in_thread(compute)
        return JSONResponse({"old": chosen[0], "new": chosen[1], **result})

    async def promote(self, request: Request) -> Response:
        """Use another run from now on, also after a restart."""
        document = await _read_object(request, JSON_LIMITS)
        name = document.get("run")
        if name not in self.workspace.runs():
            raise HTTPException(404, f"there is no finished run {name!r}")

        def switch() -> TorchPredictor:
            path, renamed = self.workspace.path_of(name), self.workspace.names_in(name)
            predictor = load_predictor(path, renamed)  # before the file is written: it may fail
            self.workspace.promote(name)
            return predictor

        async with self._changing:
            self.service.predictor = await self._in_thread(switch)
            self.queue.forget()
        return JSONResponse({"current": self.workspace.current})

    async def _training_status(self) -> dict[str, Any]:
        status = await self._in_thread(self.retrain.status)
        edited = len(self.workspace.edited_test_images())
        return {**status, "edited_test_images": edited, **self._correction_state()}

    def _correction_state(self) -> dict[str, Any]:
        corrections = self.workspace.corrections
        return {"corrections": len(corrections.changes()), "can_undo": corrections.can_undo}

    def _labels_of(self, numbers: list[int]) -> dict[int, int]:
        labels = self.workspace.labels()
        return {number: int(labels[number]) for number in numbers}

    def _read_vectors(self, run: str) -> RunVectors:
        workspace = self.workspace
        names = workspace.names[: workspace.labelled]
        return read_vectors(
            workspace.path_of(run), names, workspace.names_in(run), workspace.classes
        )

    def _columns_as_json(self, run: str) -> str:
        """Return what does not change while a run is served, as a JSON object."""
        workspace, predictor = self.workspace, self.service.predictor
        assert isinstance(predictor, TorchPredictor)
        scores = score_images(
            workspace.path_of(run),
            predictor.model,
            self._vectors(run),
            workspace.names[: workspace.labelled],
            workspace.names_in(run),
        )
        columns = {
            "run": run,
            "classes": workspace.classes,
            "names": workspace.names[: workspace.labelled],
            "splits": [image.split for image in workspace.images[: workspace.labelled]],
            "originals": self._originals,
            **scores.columns(),
        }
        return json.dumps(columns, allow_nan=False)

    async def _in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments)
        except UserError as error:
            raise HTTPException(409, str(error)) from error


def _computed_once(function: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return the function with the results of the last two runs; concurrent calls wait."""
    cached, lock = lru_cache(2)(function), threading.Lock()

    def call(run: str) -> Value:
        with lock:
            return cached(run)

    return call


async def _read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the body of a request, a JSON object."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send JSON with the header Content-Type: application/json")
    try:
        document = json.loads(await read_body(request, limits))
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return document
