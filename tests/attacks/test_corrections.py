"""Corrections that a server has acknowledged survive damage, odd names and full disks."""

import stat

import pytest

from scs_supcon.errors import UserError
from server_client import serve_run


def label_images(client, images, label="cross"):
    for image in images:
        answer = client.post("/api/corrections", {"images": [image], "label": label})
        assert answer.status == 200, answer.body


def stored_file(run):
    """Return the file with the corrections, whatever its name."""
    (file,) = run.glob("corrections.*")
    return file


def rows(client):
    return client.get("/api/corrections").json()["rows"]


@pytest.mark.parametrize("damage", [b"\xff", b'"', b",x,"])
def test_damage_in_the_middle_is_rejected_and_nothing_is_deleted(run_copy, damage):
    with serve_run(run_copy) as client:
        label_images(client, range(6, 18))
    file = stored_file(run_copy)
    content = file.read_bytes()
    lines = content.splitlines(keepends=True)
    middle = sum(map(len, lines[:6])) + lines[6].index(b"bar/" if b"bar/" in lines[6] else b"ci")
    damaged = content[:middle] + damage + content[middle:]
    file.write_bytes(damaged)
    with pytest.raises(UserError, match="damaged"), serve_run(run_copy):
        pass
    assert file.read_bytes() == damaged


def test_a_line_break_in_a_file_name_loses_no_correction(run_copy, shapes, tmp_path):
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    content = next(shapes.rglob("*.png")).read_bytes()
    (unlabelled / "a\rb.png").write_bytes(content)
    with serve_run(run_copy, unlabelled=unlabelled) as client:
        label_images(client, [24, 6, 7, 8, 9, 10])
    with serve_run(run_copy, unlabelled=unlabelled) as client:
        assert rows(client)[0]["image"] == "unlabelled/a\rb.png"
        assert len(rows(client)) == 6
        assert client.get("/api/corrections").json()["corrections"] == 6


def test_corrections_of_images_that_are_missing_now_are_undone(run_copy, shapes, tmp_path):
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    (unlabelled / "new.png").write_bytes(next(shapes.rglob("*.png")).read_bytes())
    with serve_run(run_copy, unlabelled=unlabelled) as client:
        label_images(client, [6, 24])
    with serve_run(run_copy) as client:
        answer = client.post("/api/corrections/undo", {})
        assert answer.status == 200
        assert answer.json()["changed"] == {}
        assert list(client.post("/api/corrections/undo", {}).json()["changed"]) == ["6"]
        assert not client.get("/api/corrections").json()["can_undo"]


def test_an_empty_file_of_a_full_disk_does_not_stop_the_next_start(run_copy):
    with serve_run(run_copy) as client:
        label_images(client, [6])
    file = stored_file(run_copy)
    file.write_bytes(b"")  # what was left when the first correction did not fit on the disk
    with serve_run(run_copy) as client:
        label_images(client, [7])
    with serve_run(run_copy) as client:
        assert len(rows(client)) == 1


def test_the_file_is_not_executable(run_copy):
    with serve_run(run_copy) as client:
        label_images(client, [6])
    assert stat.S_IMODE(stored_file(run_copy).stat().st_mode) & 0o111 == 0


def test_the_corrected_table_runs_no_formula(shapes, train_small, tmp_path):
    import csv
    import shutil

    from scs_supcon.data.load import load_images
    from scs_supcon.server.workspace import Workspace

    data = shutil.copytree(shapes, tmp_path / "shapes")
    (data / "bar").rename(data / "=1+1")
    run = tmp_path / "run"
    train_small(data, run)
    workspace = Workspace(run)
    try:
        table = workspace.write_table("run-2")
    finally:
        workspace.close()
    with table.open(newline="") as file:
        cells = {row["label"] for row in csv.DictReader(file)}
    assert not [cell for cell in cells if cell.startswith("=")]
    assert "=1+1" in load_images(str(table)).classes
