"""An address is contacted only if the user types it; one that a file names is shown."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from command_processes import CommandResult
from scs_supcon.data.load import load_images
from scs_supcon.data.packed import pack
from scs_supcon.server.workspace import Workspace
from test_hostile_files import seal
from web_site import Site, serving

Command = Callable[..., CommandResult]
QUICK = ("--epochs", "1", "--set", "probe.epochs=1", "--set", "probe.views=1", "--device", "cpu")


@pytest.fixture(scope="module")
def shared_site(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site") / "birds")
    pack(load_images(shapes), site.folder)
    with serving(site):
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The site, which has not been asked for anything yet."""
    shared_site.requests.clear()
    shared_site.is_empty = True
    return shared_site


@pytest.fixture(scope="module")
def trained(shared_site: Site, train_small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained with images at the address: its recipe and its model name it."""
    shared_site.is_empty = False
    run = tmp_path_factory.mktemp("runs") / "run"
    train_small(shared_site.address, run)
    assert any(request.startswith("GET") for request in shared_site.requests), "the user typed it"
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path, site: Site) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("serve", "{run}"), "add --data {address}"),
        (("export", "{run}", "-o", "{run}/m.onnx", "--quiet"), "add --data {address}"),
        (("export", "{run}", "--int8", "-o", "{run}/m.onnx", "--quiet"), "add --data {address}"),
        (("relabel", "{run}", "{run}/splits.csv", "-o", "{run}/t.csv"), "with --data"),
        (("evaluate", "{run}", "--shift", "--workers", "0", "--quiet"), "give it as DATA"),
        (("compare", "{run}/table.toml", "--dry-run", "--quiet"), "add --data {address}"),
    ],
    ids=["serve", "export", "int8", "relabel", "shift", "table"],
)
def test_an_address_in_a_file_is_shown_and_not_contacted(
    scs: Command, run: Path, site: Site, command: tuple[str, ...], advice: str
) -> None:
    table = f'methods = ["supcon"]\n[[columns]]\ndata = "{site.address}"\n'
    (run / "table.toml").write_text(table)
    result = scs(*(argument.format(run=run) for argument in command))
    assert site.requests == []
    assert result.code == 2
    assert site.address in result.err
    assert advice.format(address=site.address) in result.err, result.err


def test_settings_of_a_table_cannot_name_other_images(
    scs: Command, shapes: Path, site: Site, tmp_path: Path
) -> None:
    settings = [*QUICK[3:6:2], f"data.source={site.address}", "pretrain.epochs=1"]
    file = tmp_path / "table.toml"
    columns = f'[[columns]]\ndata = "{shapes}"\n'
    file.write_text(f'methods = ["supcon"]\nsettings = {json.dumps(settings)}\n{columns}')
    folders = ("--out", tmp_path / "out", "--runs", tmp_path / "runs")
    result = scs("compare", file, *folders, "--device", "cpu", "--quiet")
    assert site.requests == []
    assert result.code == 2
    assert f"data.source is {site.address}" in result.err


def test_a_typed_address_is_used(scs: Command, run: Path, site: Site, tmp_path: Path) -> None:
    site.is_empty = False
    table = tmp_path / "table.toml"
    table.write_text(f'methods = ["supcon"]\n[[columns]]\ndata = "{site.address}"\n')
    result = scs("compare", table, "--data", site.address, "--dry-run", "--quiet")
    assert result.code == 0, result.err
    assert site.requests
    site.requests.clear()
    result = scs("evaluate", run, site.address, "--shift", "--workers", "0", "--quiet")
    assert result.code == 0, result.err
    assert site.requests


@pytest.mark.slow
def test_an_export_reads_images_from_a_typed_address(
    scs: Command, run: Path, site: Site, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    site.is_empty = False
    result = scs("export", run, "-o", tmp_path / "m.onnx", "--data", site.address, "--quiet")
    assert result.code == 0, result.err
    assert site.requests
    assert load_file(tmp_path / "m.gallery.safetensors")["jpegs"].size > 0


def test_a_server_with_a_typed_address_retrains_without_it(run: Path, site: Site) -> None:
    site.is_empty = False
    workspace = Workspace(run, data=site.address)
    try:
        assert site.requests
        table = workspace.write_table("run-2")  # what the training of the server is given
    finally:
        workspace.close()
    site.is_empty = True
    site.requests.clear()
    images = load_images(table)
    assert images.paths is not None
    assert np.asarray(images.open(0)).shape == (16, 16, 3)
    assert site.requests == []


@pytest.mark.parametrize(
    "text",
    [
        "simplecache::{address}",
        "filecache::{address}",
        "reference://birds::{address}",
        "zip://index.parquet::{address}/birds.zip",
        "file://{folder}",
        "local://{folder}",
        "memory://birds",
        "github://someone:birds@main/birds",
        "ftp://127.0.0.1/birds",
    ],
)
def test_other_protocols_are_rejected_even_if_they_are_typed(
    scs: Command, site: Site, text: str
) -> None:
    site.is_empty = False
    address = text.format(address=site.address, folder=site.folder)
    for command in (("doctor", address), ("train", address, "--out", site.folder.parent / "run")):
        result = scs(*command)
        assert result.code == 2
        assert "must begin with https://, http://, s3://" in result.err
    assert site.requests == []


def test_a_table_of_images_contacts_nothing(scs: Command, site: Site, tmp_path: Path) -> None:
    site.is_empty = False
    rows = [f"{site.address}/{name}.png,a" for name in "xy"]
    (tmp_path / "images.csv").write_text("\n".join(["image_path,label", *rows]))
    assert "does not exist" in scs("train", tmp_path / "images.csv", "--out", tmp_path / "run").err
    assert scs("doctor", tmp_path / "images.csv").code != 0
    assert site.requests == []


@pytest.mark.parametrize("name", ["hf-hub:someone/model", "hf-hub:someone"])
def test_a_model_that_names_a_repository_contacts_nothing(
    run: Path, shapes: Path, site: Site, name: str
) -> None:
    file = run / "model" / "model.json"
    info = json.loads(file.read_text())
    info["recipe"]["encoder"]["name"] = name
    file.write_text(json.dumps(info))
    seal(run / "model")
    command = [sys.executable, "-m", "scs_supcon", "predict", str(run), str(shapes)]
    hub = {"HF_ENDPOINT": site.address.removesuffix("/birds")}  # read when it is imported
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | hub, check=False
    )
    assert site.requests == []
    assert result.returncode == 2
    assert "encoder" in result.stderr
    assert "Traceback" not in result.stderr
