"""Requests per second of `scs serve --onnx` beside a plain starlette handler with the same model.

    scs export runs/birds --onnx -o birds.onnx
    python benchmarks/serve.py birds.onnx photo.jpg

Both servers run in processes of their own and are measured in turns, so that other programs disturb
both alike. Clients are threads of one further process with open connections; each sends the image
again as soon as it has its answer. The plain handler decodes, crops and classifies one image per
request in a thread, without limits, checks, batches or neighbours. On a busy machine compare the
processor time: many threads get a larger share of the cores than one.
"""

import argparse
import asyncio
import http.client
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

SECONDS = 8.0


def plain_app(file):
    """Return the smallest useful handler."""
    import numpy as np
    from PIL import Image
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from scs_supcon.data.crop import CentreCrop
    from scs_supcon.inference.onnx_runtime import import_onnxruntime

    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["scs_supcon"])
    steps, classes = metadata["preprocessing"], metadata["classes"]
    crop = CentreCrop(steps["short_side"], steps["centre_crop"], steps["interpolation"])

    def classify(content):
        image = crop(Image.open(io.BytesIO(content)).convert("RGB"))
        (p,) = session.run(["probabilities"], {"pixels": np.asarray(image)[None]})
        order = np.argsort(-p[0])[:5]
        return {"label": classes[order[0]], "top": {classes[i]: float(p[0, i]) for i in order}}

    async def predict(request):
        content = await request.body()
        return JSONResponse(await asyncio.to_thread(classify, content))

    async def health(request):
        return JSONResponse({})

    return Starlette(
        routes=[Route("/api/predict", predict, methods=["POST"]), Route("/healthz", health)]
    )


def start(command):
    """Start a server; return its process and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return process, port
        except OSError:
            assert process.poll() is None, "the server did not start"
            time.sleep(0.2)


def processor_seconds(process):
    times = process.cpu_times()
    return times.user + times.system


def load(port, content, clients, seconds):
    """Return the durations of all answers."""
    durations, stop = [], time.monotonic() + seconds

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.monotonic() < stop:
            begin = time.monotonic()
            connection.request("POST", "/api/predict", content)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            durations.append(time.monotonic() - begin)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(durations) / (time.monotonic() - begin), durations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("onnx")
    parser.add_argument("image", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port:
        import uvicorn

        uvicorn.run(
            plain_app(options.onnx), port=options.port, log_level="warning", access_log=False
        )
        return
    commands = {
        "scs serve": [sys.executable, "-m", "scs_supcon", "serve", "--onnx", options.onnx],
        "plain starlette": [sys.executable, __file__, options.onnx],
    }
    content = options.image.read_bytes()
    servers = {name: start(command) for name, command in commands.items()}
    processes = {name: psutil.Process(process.pid) for name, (process, _) in servers.items()}
    rates = {name: [] for name in servers}
    costs = {name: [] for name in servers}
    durations = {name: [] for name in servers}
    try:
        for _, port in servers.values():
            load(port, content, options.clients, 2)  # warm-up
        for number in range(options.rounds):
            order = list(servers.items())
            for name, (_, port) in order if number % 2 else reversed(order):
                before = processor_seconds(processes[name])
                rate, seconds = load(port, content, options.clients, SECONDS)
                costs[name].append((processor_seconds(processes[name]) - before) / len(seconds))
                rates[name].append(rate)
                durations[name] += seconds
    finally:
        for process, _ in servers.values():
            process.terminate()
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    rounds = f"{options.rounds} rounds of {SECONDS:g} s"
    print(f"{options.clients} clients, {rounds}, {cores} cores, load average {busy:.1f}")
    for name in servers:
        spread = f"{min(rates[name]):.1f} to {max(rates[name]):.1f}"
        p95 = statistics.quantiles(durations[name], n=20)[-1]
        print(f"{name:<16} {statistics.median(rates[name]):6.1f} predictions/s ({spread}), "
              f"median {statistics.median(durations[name]):.3f} s, p95 {p95:.3f} s, "
              f"{1000 * statistics.median(costs[name]):.1f} ms of processor time each")  # fmt: skip
    for title, (ours, plain) in (
        ("time", [[1 / rate for rate in rates[name]] for name in servers]),
        ("processor time", [costs[name] for name in servers]),
    ):
        ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
        print(f"{title} per prediction relative to the plain handler: {ratio:.2f}")


if __name__ == "__main__":
    main()
