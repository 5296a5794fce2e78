"""A report that `scs serve` sends: it works without an origin, and cannot use the API."""

import pytest

from browser_digits import serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = """<!doctype html><title>a report</title><body><script>
const results = {};
async function attempt(name, work) {
  try { results[name] = String(await work()); } catch (error) { results[name] = "blocked"; }
}
const body = JSON.stringify({ images: [0], label: null });
const write = { method: "POST", headers: { "content-type": "application/json" }, body };
const simple = { method: "POST", mode: "no-cors" };
Promise.all([
  attempt("read", async () => (await fetch("/api/data")).status),
  attempt("write", async () => (await fetch("/api/corrections", write)).status),
  attempt("simple", async () => (await fetch("/api/corrections/undo", simple)).type),
  attempt("frame", () => new Promise((done, failed) => {
    const frame = document.createElement("iframe");
    frame.onload = () => { try { done(frame.contentDocument.title); } catch (e) { failed(e); } };
    frame.src = "/data"; document.body.append(frame); setTimeout(failed, 3000);
  })),
  attempt("image", () => new Promise((done, failed) => {
    const image = new Image();
    [image.onload, image.onerror, image.src] = [done, failed, "/api/images/0"];
  })),
  attempt("cookie", () => document.cookie),
  attempt("storage", () => localStorage.length),
  attempt("window", () => open("/data").document.title),
]).then(() => { results.origin = String(self.origin); document.title = JSON.stringify(results); });
</script>"""


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    """A run with a report."""
    import shutil

    return shutil.copytree(digits.parent, tmp_path_factory.mktemp("reported") / "run")


def test_the_script_of_a_stranger_cannot_use_the_api(run, browser, tmp_path):
    report = run / "report.html"
    kept = report.rename(tmp_path / "report.html")
    report.write_text(HOSTILE)
    try:
        with serving(run) as address:
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{address}/report")
            page.wait_for_function("document.title.startsWith('{')")
            results = page.evaluate("JSON.parse(document.title)")
            context.close()
    finally:
        kept.replace(report)
    assert results.pop("origin") == "null"
    assert set(results.values()) == {"blocked"}, results
    corrections = run / "corrections.csv"
    assert not corrections.exists() or len(corrections.read_text().splitlines()) <= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_works_without_an_origin(run, browser, scheme):
    errors: list[str] = []
    with serving(run) as address:
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.get_by_role("link", name="Report").click()
        page.wait_for_load_state()
        assert page.evaluate("self.origin") == "null"

        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 380) == (scheme == "dark")
        assert page.locator("canvas").count() == 2
        loaded = "images => images.length > 0 && images.every(i => i.complete && i.naturalWidth)"
        assert page.locator("img[data-image]").evaluate_all(loaded)

        header = page.locator("table.sortable th button").nth(1)
        header.click()
        assert page.locator("table.sortable th").nth(1).get_attribute("aria-sort") == "descending"
        page.locator("button[data-choose]").first.click()
        assert page.locator("[data-neighbours='0'] button").count() > 0

        link = page.locator("nav a[href^='#']").last
        target = link.get_attribute("href")
        link.click()
        assert page.url == f"{address}/report{target}"
        assert page.locator(target).is_visible()

        pages = page.pdf()
        assert pages.startswith(b"%PDF")
        assert len(pages) > 10_000
        page.go_back()
        page.go_back()
        page.get_by_role("link", name="Data").wait_for()
        context.close()
    assert errors == []
