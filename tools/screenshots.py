"""Take screenshots of the pages of `scs serve` in light, dark and phone width.

    python tools/screenshots.py runs/shapes photo.png build/screenshots --unlabelled more/

Needs Chromium and playwright (`pip install 'scs-supcon[browser]'`).
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZES = {
    "light": {"width": 1280, "height": 860, "scheme": "light"},
    "dark": {"width": 1280, "height": 860, "scheme": "dark"},
    "phone": {"width": 390, "height": 800, "scheme": "light"},
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def start_server(run, unlabelled):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scs_supcon", "serve", str(run), "--port", str(port)]
    if unlabelled:
        command += ["--unlabelled", str(unlabelled)]
    process, address = subprocess.Popen(command), f"http://127.0.0.1:{port}"
    while True:
        try:
            urllib.request.urlopen(f"{address}/healthz").close()
            return process, address
        except OSError:
            assert process.poll() is None, "the server did not start"
            time.sleep(0.2)


def take(browser, address, images, folder, *, queue, whole):
    """Write one file per page and size."""
    for name, size in SIZES.items():
        context = browser.new_context(
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme=size["scheme"],
        )
        page = context.new_page()
        page.set_default_timeout(120_000)

        def save(title, page=page, name=name):
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(400)
            page.screenshot(path=folder / f"{title}-{name}.png", full_page=whole)

        page.goto(address)
        save("start")
        page.set_input_files("#files", images)
        page.locator(".detail-head canvas").wait_for()
        save("predict")
        page.goto(f"{address}/data")
        page.locator(".cell").first.wait_for()
        save("data")
        if queue:
            page.goto(f"{address}/queue")
            save("queue")
        page.goto(f"{address}/train")
        save("retrain")
        context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path, nargs="+", help="images to classify, then the folder")
    parser.add_argument("--unlabelled", type=Path)
    parser.add_argument("--whole", action="store_true", help="whole pages instead of the window")
    options = parser.parse_args()
    *images, folder = options.images
    folder.mkdir(parents=True, exist_ok=True)
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    server, address = start_server(options.run, options.unlabelled)
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=executable)
            queue = options.unlabelled is not None
            take(browser, address, images, folder, queue=queue, whole=options.whole)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
