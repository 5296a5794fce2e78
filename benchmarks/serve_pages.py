"""How long the pages of `scs serve` take: the first view of the data page, and a retraining.

    python benchmarks/serve_pages.py runs/birds
    python benchmarks/serve_pages.py runs/birds --retrain --cache cache

The first view is the time from the request of the page, by a browser without cache, until the first
image of the grid is shown. The retraining is timed from the request until the page reports the new
run as finished; the features of its images are in the cache, because the run was trained with it.
Needs Chromium and playwright (`pip install 'scs-supcon[browser]'`).
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REPEATS = 5


def start_server(run, cache):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scs_supcon", "serve", str(run), "--port", str(port)]
    command += ["--cache", str(cache)] if cache else []
    process, address = subprocess.Popen(command), f"http://127.0.0.1:{port}"
    while True:
        try:
            request(f"{address}/healthz")
            return process, address
        except OSError:
            assert process.poll() is None, "the server did not start"
            time.sleep(0.2)


def request(address, document=None):
    content = None if document is None else json.dumps(document).encode()
    sent = urllib.request.Request(address, content, {"content-type": "application/json"})
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def time_first_views(address):
    """Return the seconds until the first image is shown, and the number of images in the page."""
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    seconds = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable)
        for _ in range(REPEATS):
            context = browser.new_context(viewport={"width": 1280, "height": 860})
            page = context.new_page()
            page.set_default_timeout(120_000)
            start = time.perf_counter()
            page.goto(f"{address}/data", wait_until="commit")
            first = page.locator(".cell img").first
            first.wait_for()
            while not first.evaluate("image => image.complete && image.naturalWidth"):
                time.sleep(0.005)
            seconds.append(time.perf_counter() - start)
            shown = page.locator(".cell").count()
            context.close()
        browser.close()
    return seconds, shown


def time_retraining(address):
    start = time.perf_counter()
    request(f"{address}/api/retrain", {})
    while (status := request(f"{address}/api/retrain"))["state"] == "running":
        time.sleep(0.2)
    assert status["state"] == "finished", "\n".join(status["lines"])
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--retrain", action="store_true")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    server, address = start_server(options.run, options.cache)
    try:
        start = time.perf_counter()
        images = len(request(f"{address}/api/data")["names"])
        print(f"first request for the data, which computes the scores: "
              f"{time.perf_counter() - start:.2f} s")  # fmt: skip
        if options.retrain:
            seconds = time_retraining(address)
            print(f"retraining a run of {images:,} images: {seconds:.0f} s")
        else:
            seconds, shown = time_first_views(address)
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"first view of {images:,} images: {statistics.median(seconds):.2f} s "
                  f"({spread}), {shown} of them in the page")  # fmt: skip
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
