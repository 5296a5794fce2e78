"""A folder of digits with planted label errors, a run on them, and a server in this process."""

import csv
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server_processes import free_port

PER_CLASS = 50
WRONG = {"3": "8", "4": "9"}  # half of the training images of two classes: 10% of all labels


def write_digits(folder: Path) -> dict[str, str]:
    """Write digits as PNG files with a table; return the true labels of the wrong tenth."""
    from scs_supcon.data.builtin import digits

    images = digits()
    rows: list[list[str]] = []
    planted: dict[str, str] = {}
    count = dict.fromkeys(images.classes, 0)
    for index, number in enumerate(images.labels.tolist()):
        label = images.classes[number]
        count[label] += 1
        if count[label] > PER_CLASS + 50:
            continue
        split = "train" if count[label] <= PER_CLASS else ("val", "test")[count[label] % 2]
        name = f"{index:04d}.png" if index else "<img src=x onerror=alert(1)>.png"
        images.open(index).save(folder / name)
        given = label
        if split == "train" and label in WRONG and count[label] % 2:
            planted[name], given = label, WRONG[label]
        rows.append([name, given, split])
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image_path", "label", "split"], *rows])
    assert len(planted) == PER_CLASS
    return planted


def train_digits(table: Path, folder: Path) -> Path:
    """Train on these digits with frozen random features; return the run."""
    import torch
    from safetensors.torch import save_file

    from scs_supcon.nn.encoder import build_encoder
    from scs_supcon.training.train import train

    torch.manual_seed(0)
    save_file(
        build_encoder("tiny", small_stem=False, in_size=16).body.state_dict(),
        folder / "tiny.safetensors",
    )
    settings = ["encoder.frozen_views=1", "probe.views=1", "probe.epochs=5", "data.image_size=16"]
    settings += ["data.crop_pct=1.0"]
    train(
        table,
        out=folder / "runs" / "digits",
        encoder="tiny",
        weights=folder / "tiny.safetensors",
        frozen=True,
        epochs=4,
        settings=settings,
        device="cpu",
        workers=0,
        report=False,
        quiet=True,
    )
    return folder / "runs" / "digits"


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """Serve a run in a thread; yield the address."""
    import uvicorn

    from scs_supcon.server.protocol import LimitedProtocol
    from scs_supcon.server.run_app import create_run_app
    from scs_supcon.server.security import AccessRules

    port = free_port()
    app = create_run_app(run, AccessRules.for_address("127.0.0.1", port))
    config = uvicorn.Config(app, port=port, http=LimitedProtocol, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
