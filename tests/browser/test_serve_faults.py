"""Hostile images, many requests, and a killed server, with a real browser and real processes."""

import http.client
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from scs_supcon.io.lock import is_held
from server_processes import kill_training, server_processes, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAMES = [
    '"><img src=x onerror=alert(1)>.png',
    "</script><script>alert(2)</script>.png",
    "..%2f..%2fetc%2fpasswd",
    "two\nlines\x1b[31m.png",
    "\u202egnp.exe",
    "x" * 400 + ".png",
]
# Gives labels in turn and counts the answers, until the server is gone.
CORRECT = """async () => {
    window.acknowledged = [];
    for (let step = 0; step < 100000; step++) {
        const label = String(step % 10);
        try {
            const answer = await fetch("/api/corrections", {
                method: "POST", headers: {"content-type": "application/json"},
                body: JSON.stringify({images: [step % 50], label}),
            });
            if (answer.ok) window.acknowledged.push([step % 50, label]);
        } catch { return; }
    }
}"""


@pytest.fixture
def start(served):
    with server_processes(served) as start_server:
        yield start_server


def png(size, mode="L"):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


def test_hostile_images_and_200_requests_at_once(start, open_page, digits_folder):
    good = (digits_folder[0] / "0003.png").read_bytes()
    server = start()
    page = open_page(server.address)
    contents = {"100 megapixels.png": png((10_000, 10_000), "1"), "truncated.png": good[:60]}
    contents |= {"text.png": b"not an image"} | dict.fromkeys(NAMES, good)
    files = [{"name": n, "mimeType": "image/png", "buffer": b} for n, b in contents.items()]
    page.set_input_files("#files", files)
    verdicts = page.locator("#list .verdict")
    wait_for(lambda: "\u2026" not in verdicts.all_inner_texts() or page.wait_for_timeout(50))
    texts = verdicts.all_inner_texts()
    assert texts[:3] == ["cannot be read"] * 3
    assert len(texts) == len(contents)
    assert len(set(texts[3:])) == 1
    assert texts[3] != "cannot be read"
    page.locator(".result-row").first.click()
    page.get_by_text("64 million").first.wait_for()
    assert page.locator("img[src='x']").count() == 0

    def predict(number):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        connection.request("POST", "/api/predict", good)
        answer = connection.getresponse()
        result = answer.status, answer.read()
        connection.close()
        return result

    alone = predict(0)
    assert alone[0] == 200
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(predict, range(200)))
    assert answers == [alone] * 200
    page.click("#clear")
    page.set_input_files("#files", digits_folder[0] / "0003.png")
    page.locator(".detail-head canvas").wait_for()


def test_a_killed_server_loses_nothing(start, open_page, served):
    server = start()
    page = open_page(f"{server.address}/data")
    page.evaluate(f"void ({CORRECT})()")
    wait_for(lambda: page.evaluate("window.acknowledged.length") >= 30)
    server.kill()  # in the middle of a correction
    acknowledged = page.evaluate("window.acknowledged")

    server = start()
    page.goto(f"{server.address}/data")
    data = page.evaluate("fetch('/api/data').then(r => r.json())")
    rows = page.evaluate("fetch('/api/corrections').then(r => r.json())")["rows"]
    for image, label in dict(acknowledged).items():
        stored = data["classes"][data["labels"][image]]
        # The last row may be stored although its answer did not arrive.
        last = rows[-1]["image"] == data["names"][image]
        assert stored == label or (last and rows[-1]["new_label"] == stored)

    new = served.with_name("digits-2")
    page.goto(f"{server.address}/train")
    page.click("#start")
    wait_for(lambda: (new / "metrics.csv").is_file() and (new / "metrics.csv").stat().st_size > 500)
    server.kill()  # in the middle of a training, and the training too, as if the power failed
    kill_training(new)
    wait_for(lambda: not is_held(new / ".lock"))
    assert not (new / "finished.json").exists()

    server = start()
    page.goto(f"{server.address}/train")
    page.click("#resume")
    page.locator("#compared").wait_for()
    page.get_by_role("button", name="Use digits-2").wait_for()
    wait_for(lambda: not is_held(new / ".lock"))  # the report is written last
    assert not [*served.rglob("*.tmp"), *new.rglob("*.tmp")]
