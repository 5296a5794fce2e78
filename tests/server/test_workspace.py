"""Data page, corrections and retraining over HTTP."""

import json
import os
import time

import pytest

from scs_supcon.data.table import read_image_table
from scs_supcon.errors import UserError
from scs_supcon.server.retrain import Retrain
from scs_supcon.server.workspace import Workspace


def test_the_data_page_gets_one_row_per_image(client):
    data = client.get("/api/data").json()
    columns = (
        *("names", "splits", "labels", "originals", "prediction", "confidence", "margin"),
        *("label_probability", "suggested", "suspicion", "difference", "duplicate"),
    )
    assert {len(data[name]) for name in columns} == {24}
    assert data["labels"] == data["originals"]
    assert set(data["prediction"]) <= {0, 1, 2, 3}
    points = client.get("/api/data/map").json()["points"]
    assert all(-0.1 <= value <= 1.1 for point in points for value in point)


def test_corrections_are_stored_undone_and_kept(run_copy, serve):
    with serve(run_copy) as client:
        names = client.get("/api/data").json()["names"]
        answer = client.post("/api/corrections", {"images": [0, 1], "label": "square"})
        assert answer.json() == {"changed": {"0": 3, "1": 3}, "corrections": 2, "can_undo": True}
        client.post("/api/corrections", {"images": [2], "label": None})
        assert client.get("/api/data").json()["labels"][:3] == [3, 3, -1]
        assert client.post("/api/corrections/undo", {}).json()["changed"] == {"2": 0}
        rows = client.get("/api/corrections").json()["rows"]
        assert [row["image"] for row in rows] == [*names[:3], names[2]]
        assert [row["new_label"] for row in rows] == ["square", "square", "", "bar"]
    with serve(run_copy) as client:
        assert client.get("/api/data").json()["labels"][:3] == [3, 3, 0]


@pytest.mark.parametrize(
    "document",
    [
        {"images": "all", "label": "bar"},
        {"images": [0.5], "label": "bar"},
        {"images": [True], "label": "bar"},
        {"images": [0]},
        {"images": [0], "label": 3},
        {"images": [0], "label": "elephant"},
        {"images": [99], "label": "bar"},
        {"images": [-1], "label": "bar"},
        [],
    ],
)
def test_invalid_corrections_are_rejected(client, document):
    answer = client.post("/api/corrections", document)
    assert answer.status in (400, 409)
    assert answer.json()["error"]
    assert client.get("/api/corrections").json()["rows"] == []


def test_only_one_server_for_a_run(run_copy, serve):
    with serve(run_copy), pytest.raises(UserError, match="in use"):
        Workspace(run_copy)


def test_the_table_has_the_corrected_labels_and_the_old_splits(run_copy):
    workspace = Workspace(run_copy)
    workspace.relabel([0], "square")
    workspace.relabel([1], "")
    table = read_image_table(workspace.write_table("new"))
    workspace.close()
    assert len(table) == 23
    renamed = workspace.names_in("new")
    labels = dict(zip(map(renamed.get, table.names), table.labels, strict=True))
    splits = dict(zip(map(renamed.get, table.names), table.splits, strict=True))
    assert table.classes[labels[workspace.names[0]]] == "square"
    assert workspace.names[1] not in labels
    for number in range(2, 24):
        image = workspace.images[number]
        assert table.classes[labels[image.name]] == image.label
        assert splits[image.name] == image.split


def test_a_class_without_training_images_is_not_trained(run_copy):
    workspace = Workspace(run_copy)
    bars = [n for n, image in enumerate(workspace.images) if image.label == "bar"]
    workspace.relabel(bars, "")
    with pytest.raises(UserError, match="class 'bar' has no training image left"):
        Retrain(workspace).start()
    workspace.close()
    assert not (run_copy / "retrain.json").exists()


def test_runs_are_listed_in_the_order_of_their_numbers_whatever_the_clock_says(run_copy):
    (run_copy / "corrected").mkdir()
    for number in (11, 10, 2):  # the clock was set back before each of them
        name = f"{run_copy.name}-{number}"
        table = run_copy / "corrected" / f"{name}.csv"
        table.touch()
        os.utime(table, (number, 100 - number))
        (run_copy.parent / name).mkdir()
        (run_copy.parent / name / "finished.json").touch()
    workspace = Workspace(run_copy)
    assert workspace.runs() == [run_copy.name, *(f"{run_copy.name}-{n}" for n in (2, 10, 11))]
    workspace.close()


def test_unlabelled_images_are_queued_and_labelled(run_copy, serve, tmp_path, image_files):
    folder = tmp_path / "more"
    folder.mkdir()
    for file in image_files[:4]:
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "broken.png").write_bytes(b"x")
    with serve(run_copy, unlabelled=folder) as client:
        queue = client.get("/api/queue").json()
        assert (queue["total"], queue["waiting"], queue["unreadable"]) == (5, 4, 1)
        first = queue["images"][0]
        assert first["image"].startswith("unlabelled/")
        assert client.get(f"/api/images/{first['id']}").status == 200
        client.post("/api/corrections", {"images": [first["id"]], "label": "cross"})
        queue = client.get("/api/queue").json()
        assert queue["waiting"] == 3
        assert [count for count, _ in queue["curve"]] == [0, 1]
        assert client.get("/queue").status == 200
    workspace = Workspace(run_copy, unlabelled=folder)
    table = read_image_table(workspace.write_table("new"))
    workspace.close()
    assert len(table) == 25


@pytest.mark.slow
def test_retrain_compare_and_promote(run_copy, serve):
    with serve(run_copy) as client:
        data = client.get("/api/data").json()
        first = data["splits"].index("train")
        tested = data["splits"].index("test")
        client.post("/api/corrections", {"images": [first], "label": None})
        client.post("/api/corrections", {"images": [tested], "label": "cross"})
        assert client.post("/api/retrain", {}).status == 202
        assert client.post("/api/retrain", {}).status == 409  # one at a time
        client.post("/api/retrain/stop", {})
        status = wait_until(client, ("stopped", "finished"))
        if status["state"] == "stopped":
            assert client.post("/api/retrain/resume", {}).status == 202
        status = wait_until(client, ("finished",))
        assert status["run"] == "shapes-2"
        assert status["edited_test_images"] == 1
        result = client.get("/api/compare?old=shapes&new=shapes-2").json()
        assert result["left_out"] == 1
        assert result["images"] == data["splits"].count("test") - 1
        assert client.get("/api/compare?new=../../etc").status == 404
        assert client.post("/api/promote", {"run": "../shapes"}).status == 404
        assert client.post("/api/promote", {"run": "shapes-2"}).json() == {"current": "shapes-2"}
        assert (
            client.get("/api/model").json()["training_images"] == data["splits"].count("train") - 1
        )
        near = client.get(f"/api/neighbours?id={data['splits'].index('train', first + 1)}").json()
        assert all(isinstance(row["id"], int) for row in near["neighbours"])
    assert json.loads((run_copy / "current.json").read_text()) == {"run": "shapes-2"}
    with serve(run_copy) as client:
        assert client.get("/api/data").json()["run"] == "shapes-2"


def wait_until(client, states):
    deadline = time.monotonic() + 300
    while (status := client.get("/api/retrain").json())["state"] not in states:
        assert time.monotonic() < deadline, status
        assert status["state"] != "failed", status
        time.sleep(0.3)
    return status
