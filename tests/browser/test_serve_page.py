"""The whole loop of `scs serve` in a real browser: predict, fix planted label errors, retrain."""

import base64
import json

import pytest

from browser_digits import PER_CLASS, serving
from scs_supcon.runs.corrections import Corrections

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DROP = """content => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
    return transfer;
}"""


def test_the_whole_loop(served, digits_folder, open_page):
    folder, planted = digits_folder
    with serving(served) as address:
        read_neighbours(open_page(address), folder)
        fix_labels(open_page(f"{address}/data?show=suspected"), served, planted)
        retrain_and_promote(open_page(f"{address}/train"), served)
    with serving(served) as address:  # the promotion survives a restart
        page = open_page(f"{address}/train")
        page.get_by_role("button", name="digits-2 is in use").wait_for()


def read_neighbours(page, folder):
    hostile = folder / "<img src=x onerror=alert(1)>.png"
    (folder / "broken.png").write_bytes(hostile.read_bytes()[:50])
    content = base64.b64encode((folder / "0003.png").read_bytes()).decode()
    transfer = page.evaluate_handle(DROP, content)
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    page.locator(".detail-head canvas").wait_for()
    assert "dropped.png" in page.locator("#list").inner_text()
    page.click("#clear")
    page.set_input_files("#files", [hostile, folder / "broken.png"])
    page.locator(".detail-head canvas").wait_for()
    assert page.locator(".neighbours-strip").first.locator("img").count() == 12
    similarities = page.locator(".neighbours-strip").first.locator("small").all_inner_texts()
    assert [float(text) for text in similarities] == sorted(map(float, similarities), reverse=True)
    assert "boundary" in page.locator(".axis-figure").inner_text()
    assert "<img src=x" in page.locator("#list").inner_text().replace("\n", "")
    page.locator(".result-row").nth(1).click()
    page.get_by_text("This image cannot be read").first.wait_for()
    assert page.locator("img[src='x']").count() == 0


def fix_labels(page, run, planted):
    """Accept all suggestions in bulk, correct the rest, and try keys and undo."""
    page.locator(".cell").first.wait_for()
    page.click("#select-all")
    page.click("#accept")
    page.locator("#count", has_text="0 of").wait_for()
    # What the suggestions missed or got wrong is corrected through the API.
    names = page.evaluate("fetch('/api/data').then(r => r.json())")
    truth = {}
    for number, name in enumerate(names["names"]):
        original = names["classes"][names["originals"][number]]
        current = names["classes"][names["labels"][number]]
        if current != planted.get(name, original):
            truth[name] = planted.get(name, original)
    for label in set(truth.values()):
        numbers = [names["names"].index(name) for name, true in truth.items() if true == label]
        page.evaluate(
            """body => fetch("/api/corrections", {
                method: "POST", headers: {"content-type": "application/json"},
                body: JSON.stringify(body),
            })""",
            {"images": numbers, "label": label},
        )
    page.reload()
    page.select_option("#show", "all")
    page.select_option("#sort", "name")
    page.locator(".cell").first.wait_for()
    page.locator("#grid").focus()
    with page.expect_response("**/api/corrections"):
        page.keyboard.press("x")
    with page.expect_response("**/api/corrections/undo"):
        page.keyboard.press("z")
    data = page.evaluate("fetch('/api/data').then(r => r.json())")
    for number, name in enumerate(data["names"]):
        original = data["classes"][data["originals"][number]]
        assert data["classes"][data["labels"][number]] == planted.get(name, original)
    stored = Corrections(run / "corrections.jsonl", {})
    assert {row.image for row in stored.rows} >= set(planted)


def retrain_and_promote(page, run):
    page.locator("#pending", has_text=f"{PER_CLASS} corrected labels").wait_for()
    page.click("#start")
    page.locator("#progress").wait_for()
    page.locator("#compared").wait_for(timeout=600_000)
    rows = page.locator(".intervals tbody tr b").all_inner_texts()
    old, new = (float(text.rstrip("%")) for text in rows)
    assert new > old
    assert page.locator("#changed img").count() > 0
    page.get_by_role("button", name="Use digits-2").click()
    page.get_by_role("button", name="digits-2 is in use").wait_for()
    assert json.loads((run / "current.json").read_text()) == {"run": "digits-2"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["", "data", "train"])
def test_pages_fit_the_window(served, browser, width, scheme, name):
    with serving(served) as address:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page, errors = context.new_page(), []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/{name}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert errors == []
        context.close()


def test_a_grid_of_50_000_images_has_few_elements(served, open_page):
    count = 50_000
    columns = ("prediction", "suggested", "labels", "originals", "duplicate", "copy")
    data = {name: [0] * count for name in columns}
    data |= {name: [0.5] * count for name in ("confidence", "label_probability", "margin")}
    data |= {name: [0.5] * count for name in ("suspicion", "difference")}
    data |= {"names": [f"train/class/{i:06d}.jpg" for i in range(count)], "classes": ["a", "b"]}
    data |= {"splits": ["train"] * count, "corrections": 0, "can_undo": False, "run": "digits"}
    with serving(served) as address:
        page = open_page("about:blank")
        page.route("**/api/data", lambda route: route.fulfill(json=data))
        page.route("**/api/data/map", lambda route: route.fulfill(json={"points": [None] * count}))
        page.goto(f"{address}/data")
        page.locator(".cell").first.wait_for()
        assert "50,000 of 50,000" in page.locator("#count").inner_text()
        assert page.locator(".cell").count() < 150
        page.locator("#grid").press("End")
        page.locator("[aria-posinset='50000']").wait_for()
        assert page.locator(".cell").count() < 150


def test_two_copies_with_different_labels_are_shown_and_not_exchanged(served, open_page):
    """The scores of two images are changed to those of copies that contradict each other."""
    with serving(served) as address:
        page = open_page("about:blank")

        def contradict(route):
            data = route.fetch().json()
            first, second = 0, 1
            data["suggested"] = [-1] * len(data["names"])
            data["copy"] = [-1] * len(data["names"])
            data["copy"][first], data["copy"][second] = second, first
            data["labels"][second] = data["originals"][second] = 1
            data["labels"][first] = data["originals"][first] = 0
            route.fulfill(json=data)

        page.route("**/api/data", contradict)
        page.goto(f"{address}/data?show=suspected")
        page.locator(".cell").first.wait_for()
        notes = page.locator(".cell small").all_inner_texts()
        assert sorted(notes) == ["copy: 0", "copy: 1"]
        before = page.evaluate("fetch('/api/corrections').then(r => r.json())")["corrections"]
        page.click("#select-all")
        page.click("#accept")
        page.locator("#selection", has_text="Nothing selected").wait_for()
        after = page.evaluate("fetch('/api/corrections').then(r => r.json())")["corrections"]
        assert after == before
        assert page.locator(".cell").count() == 2
