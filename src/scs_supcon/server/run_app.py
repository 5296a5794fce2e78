"""The web application of a run: predictions, data page, label queue and retraining."""

from pathlib import Path

from starlette.types import ASGIApp

from scs_supcon.server.app import create_app
from scs_supcon.server.pages import SiteFacts
from scs_supcon.server.retrain import Retrain
from scs_supcon.server.security import AccessRules
from scs_supcon.server.service import ModelService
from scs_supcon.server.torch_predictor import load_predictor
from scs_supcon.server.uploads import Limits
from scs_supcon.server.workspace import Workspace
from scs_supcon.server.workspace_api import WorkspaceApi


def create_run_app(
    run: Path,
    rules: AccessRules,
    data: str | None = None,
    unlabelled: Path | None = None,
    cache: Path | None = None,
    limits: Limits | None = None,
) -> ASGIApp:
    """Return the application of a run, with the model that was promoted last.

    Args:
        run: the run directory.
        rules: which requests are answered.
        data: where the images of the run are now; default: where they were.
        unlabelled: folder with images without labels.
        cache: directory for cached features, for retraining.
        limits: limits of a request.
    """
    workspace = Workspace(run, data, unlabelled)
    current = workspace.current
    predictor = load_predictor(workspace.path_of(current), workspace.names_in(current))
    service = ModelService(predictor, workspace, limits)
    retrain = Retrain(workspace, ["--cache", str(cache.absolute())] if cache else [])
    pages = ["", "data", *(["queue"] if unlabelled else []), "train"]
    site = SiteFacts(
        workspace.run.name, pages, lambda: workspace.path_of(workspace.current) / "report.html"
    )
    api = WorkspaceApi(workspace, service, retrain)
    api.prepare()

    def close() -> None:
        retrain.close()
        workspace.close()

    return create_app(service, rules, site, api.routes(), close)
