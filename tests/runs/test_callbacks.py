"""Metrics of a run for wandb, MLflow and own callbacks; nothing uses the network."""

import csv
import json

import pytest

from scs_supcon.errors import UserError
from scs_supcon.runs.callbacks import make_callbacks


class Recorder:
    def __init__(self):
        self.events = []

    def started(self, run, recipe):
        self.events.append(("started", run.name, recipe.method.name))

    def metrics(self, stage, step, values):
        self.events.append(("metrics", stage, step, dict(values)))

    def finished(self, values):
        self.events.append(("finished", values["accuracy"]))

    def closed(self):
        self.events.append(("closed",))


class Broken(Recorder):
    def metrics(self, stage, step, values):
        raise OSError("the server is away")


def logged(run):
    with (run / "metrics.csv").open() as file:
        return [
            (row["stage"], int(row["step"]), row["metric"], float(row["value"]))
            for row in csv.DictReader(file)
        ]


def test_a_callback_receives_what_is_in_the_metrics(shapes, tmp_path, train_small, caplog):
    recorder, broken = Recorder(), Broken()
    result = train_small(shapes, tmp_path / "run", method="supcon", log_to=[broken, recorder])
    assert recorder.events[0] == ("started", "run", "supcon")
    assert recorder.events[-2:] == [("finished", result.accuracy), ("closed",)]
    values = [
        (stage, step, name, value)
        for _, stage, step, numbers in recorder.events[1:-2]
        for name, value in numbers.items()
    ]
    assert values == logged(tmp_path / "run")
    assert "Broken failed (the server is away) and is not called again" in caplog.text
    assert len(broken.events) == 1
    again = Recorder()
    train_small(shapes, tmp_path / "run", method="supcon", log_to=[again])
    assert again.events == [], "the run was finished"


def test_an_unknown_or_missing_logger_is_explained(monkeypatch):
    with pytest.raises(UserError, match="unknown logger 'wanb'; did you mean 'wandb'"):
        make_callbacks(["wanb"])
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(UserError, match=r"pip install 'scs-supcon\[mlflow\]'"):
        make_callbacks(["mlflow"])


def test_mlflow_writes_to_a_folder(shapes, tmp_path, train_small, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = train_small(shapes, tmp_path / "run", method="supcon", log_to=["mlflow"])
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("scs-supcon")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "supcon"
    assert run.data.metrics["accuracy"] == result.accuracy
    history = client.get_metric_history(run.info.run_id, "pretrain/lr")
    expected = [row for row in logged(tmp_path / "run") if row[0] == "pretrain" and row[2] == "lr"]
    assert [(point.step, point.value) for point in history] == [(s, v) for _, s, _, v in expected]


def test_wandb_writes_offline(shapes, tmp_path, train_small, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = train_small(shapes, tmp_path / "run", method="supcon", log_to=["wandb"])
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    content = file.read_bytes()
    for text in (b"pretrain/lr", b"pretrain/step", b"accuracy"):
        assert text in content
    assert json.dumps(result.accuracy).encode() in content
