"""Memory and open files under load: tables, many classes, checkpoints, a large batch, a server.

    python benchmarks/load.py [--only table,checkpoints] [--scale 0.1]

Each part prints its duration, the growth of memory after a warm-up, its peak, and the open files.
"""

import argparse
import gc
import io
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np
import torch

ROWS, CLASSES, CHECKPOINTS, BATCH, IMAGES = 1_000_000, 20_000, 3_000, 65_536, 200_000
REQUESTS, CLIENTS = 100_000, 4  # a fifth of the requests are predictions


def table(folder: Path, scale: float) -> str:
    """Read a table of a million rows and 20,000 classes, and assign splits."""
    from types import SimpleNamespace

    from scs_supcon.data.splits import assign_splits
    from scs_supcon.data.table import read_table

    rows, classes = round(ROWS * scale), round(CLASSES * scale)
    file = folder / "table.csv"
    with file.open("w", encoding="utf-8") as out:
        out.write("image_path,label\n")
        out.writelines(f"images/{i:07d}.jpg,class{i % classes:05d}\n" for i in range(rows))
    content = read_table(file)
    names = tuple(sorted(set(content.labels)))
    index = {name: number for number, name in enumerate(names)}
    labels = np.array([index[label] for label in content.labels])

    class Columns(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.labels)

    columns = Columns(labels=labels, classes=names, splits=None, groups=None, folds=None)
    splits = assign_splits(columns, 0.1, 0.2, 0)  # type: ignore[arg-type]
    counts = {name: int((splits == name).sum()) for name in ("train", "val", "test")}
    return f"{rows:,} rows, {len(names):,} classes: {counts}"


def checkpoints(folder: Path, scale: float) -> str:
    """Write and read thousands of checkpoints."""
    from scs_supcon.runs.checkpoint_io import Checkpoint, read_checkpoint, write_checkpoint

    count = round(CHECKPOINTS * scale)
    tensors = {"weights": torch.randn(256, 256), "momentum": torch.randn(256, 256)}
    start = before = 0
    for number in range(count):
        state = {"metrics_bytes": number, "training": {}}
        write_checkpoint(folder, "pretrain", Checkpoint(tensors, state))
        restored = read_checkpoint(folder, "pretrain")
        assert restored is not None
        assert restored.state["metrics_bytes"] == number
        if number == min(100, count // 2):  # after the warm-up
            start, before = memory(), open_files()
    grown = memory() - start
    files = len(list(folder.iterdir()))
    return (
        f"{count:,} checkpoints; after the warm-up memory grew by {grown:.0f} MiB and open files "
        f"by {open_files() - before}; {files} files are left"
    )


def loss(_folder: Path, scale: float) -> str:
    """Value and gradient of the pair loss of a large batch with many classes."""
    from scs_supcon import SCSSupCon

    n, classes = round(BATCH * scale), round(CLASSES * scale)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, 128, generator=generator, requires_grad=True)
    labels = torch.arange(n) % classes
    value = SCSSupCon(common_dim=96)(rows, labels)
    value.backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    return f"N = {n:,}, D = 128, {classes:,} classes: loss {float(value.detach()):.4f}"


def features(folder: Path, scale: float) -> str:
    """Write and read the cached features of 200,000 images."""
    from scs_supcon.data.shards import read_shards, write_shard

    count, step = round(IMAGES * scale), 512
    views = [b"v" * 32]
    keys = [number.to_bytes(32, "little") for number in range(count)]
    rng = np.random.default_rng(0)
    for start in range(0, count, step):
        part = keys[start : start + step]
        write_shard(folder, part, views, rng.standard_normal((len(part), 1, 128), np.float32))
    table_of = np.empty((count, 1, 128), np.float32)
    filled = read_shards(folder, {key: i for i, key in enumerate(keys)}, {views[0]: 0}, table_of)
    assert filled.all()
    return f"{count:,} images of 128 features in {-(-count // step):,} shards"


def predictions(_folder: Path, scale: float) -> str:
    """Decide about images with 20,000 classes."""
    from scs_supcon.inference.decision import class_means

    classes, n = round(CLASSES * scale), 100_000
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(n, 64, generator=generator), torch.arange(n) % classes
    means = class_means(rows, labels, classes)
    nearest = torch.cat([(part.double() @ means.T).argmax(1) for part in rows.split(1000)])
    return f"{n:,} rows, {classes:,} class means: {float((nearest == labels).double().mean()):.1%}"


def serve(folder: Path, scale: float) -> str:
    """Send 100,000 requests to a server, a fifth of them predictions, over kept connections."""
    requests = round(REQUESTS * scale)
    command = [sys.executable, "-m", "scs_supcon"]
    small = ("--encoder", "tiny", "--from-scratch", "--epochs", "1", "--device", "cpu")
    run = str(folder / "run")
    train = [*command, "train", "digits", "--out", run, *small, "--no-report", "--quiet"]
    subprocess.run([*train, "--set", "probe.epochs=2"], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([*command, "serve", run, "--port", str(port)])
    try:
        _wait_for(port)
        _send(port, max(CLIENTS, requests // 20))  # the warm-up
        measured = [_use(server.pid)]
        start = time.monotonic()
        for _ in range(4):
            _send(port, requests // 4)
            measured.append(_use(server.pid))
        seconds = time.monotonic() - start
    finally:
        server.terminate()
        server.wait()
    sizes = ", ".join(f"{size:.0f}" for size, _ in measured)
    files = ", ".join(str(count) for _, count in measured)
    return (
        f"{requests:,} requests, {requests // 5:,} of them predictions, {requests / seconds:.0f} "
        f"a second; after the warm-up and each quarter the server had {sizes} MiB, {files} files"
    )


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            HTTPConnection("127.0.0.1", port, timeout=60).request("GET", "/healthz")
            return
        except ConnectionRefusedError:
            time.sleep(0.2)
    raise TimeoutError("the server did not start")


def _send(port: int, count: int) -> None:
    """Send requests from several clients; every answer must be 200."""
    from PIL import Image

    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    body = head + buffer.getvalue() + b"\r\n--x--\r\n"
    failures: list[int] = []

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(count // CLIENTS):
            if number % 5 == 0:
                kind = {"content-type": "multipart/form-data; boundary=x"}
                connection.request("POST", "/api/predict", body, kind)
            else:
                connection.request("GET", "/healthz")
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                failures.append(response.status)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} requests failed, such as with {failures[0]}")


def _use(process: int) -> tuple[float, int]:
    """Return the memory of a process in MiB and its open files."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    files = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return pages * resource.getpagesize() / 2**20, files


def memory() -> float:
    """Return the memory of this process in MiB."""
    gc.collect()
    return _use(os.getpid())[0]


def open_files() -> int:
    """Return the number of open files of this process."""
    return _use(os.getpid())[1]


PARTS: dict[str, Callable[[Path, float], str]] = {
    "table": table,
    "checkpoints": checkpoints,
    "features": features,
    "predictions": predictions,
    "loss": loss,
    "serve": serve,
}


def main() -> None:
    """Run the chosen parts, each in a process of its own, so that peaks are separate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        process = os.fork()
        if process:
            os.waitpid(process, 0)
            continue
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        with tempfile.TemporaryDirectory() as folder:
            start, before, cpu = time.monotonic(), memory(), time.process_time()
            text = PARTS[name](Path(folder), arguments.scale)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            print(
                f"{name:<12} {text}; {time.monotonic() - start:.0f} s "
                f"({time.process_time() - cpu:.0f} s of CPU), {before:.0f} MiB before, "
                f"{peak:.0f} MiB at most",
                flush=True,
            )
        os._exit(0)


if __name__ == "__main__":
    main()
