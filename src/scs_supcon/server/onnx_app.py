"""The web application of an exported model: predictions, embeddings and neighbours."""

from pathlib import Path

from starlette.types import ASGIApp

from scs_supcon.server.app import create_app
from scs_supcon.server.onnx_predictor import load_onnx
from scs_supcon.server.pages import SiteFacts
from scs_supcon.server.security import AccessRules
from scs_supcon.server.service import ModelService
from scs_supcon.server.uploads import Limits


def create_onnx_app(file: Path, rules: AccessRules, limits: Limits | None = None) -> ASGIApp:
    """Return the application of a file that `scs export` wrote."""
    predictor, images = load_onnx(file)
    return create_app(ModelService(predictor, images, limits), rules, SiteFacts(file.stem))
