"""Reports in a real browser: quiet, complete, answering to mouse and keyboard, on any screen.

`SCS_REPORT=runs/birds/report.html make test-browser` puts another run to the same tests.
"""

import pytest

from scs_supcon.report.context import CONTENTS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCHEMES = ("light", "dark")
FIELDS = "canvas"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_it_opens_without_a_complaint_a_request_or_a_sideways_scroll(visit, given, width, scheme):
    with visit(given, width, color_scheme=scheme) as seen:
        seen.page.wait_for_function("document.querySelectorAll('#matrix svg').length === 1")
        wide = seen.page.evaluate("document.documentElement.scrollWidth")
        assert seen.complaints == []
        assert [url for url in seen.requests if not url.startswith("data:")] == [
            given.resolve().as_uri()
        ]
        assert wide <= width


def test_every_panel_is_there_and_seen(visit, given):
    with visit(given) as seen:
        for name in CONTENTS:
            panel = seen.page.locator(f"section#{name}")
            assert panel.is_visible()
            assert len(panel.inner_text()) > 20
        assert seen.page.locator("canvas").count() == 2
        shown = seen.page.locator("img[data-image]").evaluate_all(
            "images => images.every(i => i.complete && i.naturalWidth > 0)"
        )
        assert shown


def place_of(page, map_index, image):
    """Where an image lies on a map, in pixels of the window."""
    canvas = page.locator(FIELDS).nth(map_index)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = page.evaluate("([map, i]) => maps[map].place(i)", [map_index, image])
    return box["x"] + x, box["y"] + y


@pytest.mark.parametrize("map_index", [0, 1])
def test_pointing_at_a_point_shows_its_image(visit, given, map_index):
    with visit(given) as seen:
        page = seen.page
        assert page.locator("#tip").is_hidden()
        page.mouse.move(*place_of(page, map_index, 5))
        found = page.evaluate("pointed")
        assert found >= 0
        tip = page.locator("#tip")
        assert tip.is_visible()
        assert page.evaluate("label(pointed)") in tip.inner_text()
        source = tip.locator("img").get_attribute("src")
        assert source == page.evaluate("'data:image/jpeg;base64,' + data.jpegs[pointed]")
        page.mouse.move(2, 2)
        assert tip.is_hidden()


def test_choosing_a_point_shows_its_neighbours_in_both_fields(visit, given):
    with visit(given) as seen:
        page = seen.page
        at = place_of(page, 0, 7)
        page.mouse.click(*at)
        chosen = page.evaluate("chosen")
        told = page.evaluate("i => [data.names[i], data.splits[i]]", chosen)
        assert told[0] in page.locator("#subject-words").inner_text().replace("\u200b", "")
        for field in (0, 1):
            shown = page.locator(f"[data-near='{field}'] button")
            names = shown.evaluate_all("buttons => buttons.map(b => b.title)")
            wanted = page.evaluate(
                "([f, i]) => data.fields[f].near[i].map(n => data.names[n])", [field, chosen]
            )
            assert names == wanted
            assert chosen not in page.evaluate(
                "([f, i]) => data.fields[f].near[i]", [field, chosen]
            )
        page.locator("[data-near='0'] button").first.click()
        assert page.evaluate("chosen") == page.evaluate("i => data.fields[0].near[i][0]", chosen)
        assert seen.complaints == []


def test_the_keyboard_reaches_everything(visit, given):
    with visit(given) as seen:
        page = seen.page
        page.locator(FIELDS).first.focus()
        assert page.locator("#tip").is_visible()
        before = page.evaluate("pointed")
        for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"):
            page.keyboard.press(key)
        moved = page.evaluate("pointed")
        assert before >= 0
        assert page.evaluate("label(pointed)") in page.locator("#said").inner_text()
        page.keyboard.press("Enter")
        assert page.evaluate("chosen") == moved
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()

        page.locator("#matrix svg").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        row = page.evaluate("data.classes[shown[1]]")
        assert row in page.locator("#cell").inner_text()
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_arrows_lead_from_one_end_of_a_map_to_the_other(visit, given):
    with visit(given) as seen:
        page = seen.page
        page.locator(FIELDS).first.focus()
        for key, axis, sign in (("ArrowLeft", "x", 1), ("ArrowRight", "x", -1)):
            for _ in range(60):
                page.keyboard.press(key)
            end = page.evaluate("(axis) => data.fields[0][axis][pointed]", axis)
            rest = page.evaluate("(axis) => data.fields[0][axis]", axis)
            further = [value for value in rest if sign * (end - value) > 0.25]
            assert len(further) < len(rest) / 4


def test_previous_next_and_the_filters(visit, given):
    with visit(given) as seen:
        page = seen.page
        page.locator("#pick-class").select_option("1")
        first = page.evaluate("chosen")
        assert page.evaluate("data.labels[chosen]") == 1
        page.locator("#next").click()
        assert page.evaluate("data.labels[chosen]") == 1
        page.locator("#previous").click()
        assert page.evaluate("chosen") == first
        page.locator("#pick-class").select_option("-1")
        page.locator("#pick-wrong").check()
        count = page.evaluate("wanted().length")
        assert str(count) in page.locator("#place").inner_text() or count == 0
        if count:
            page.locator("#next").click()
            assert page.evaluate("wrong(chosen)")


def test_a_confusion_shows_its_images(visit, given):
    with visit(given) as seen:
        page = seen.page
        buttons = page.locator("[data-cell]")
        if not buttons.count():
            pytest.skip("the model made no mistakes")
        row, column = map(int, buttons.first.get_attribute("data-cell").split())
        buttons.first.click()
        names = page.evaluate("([r, c]) => [data.classes[r], data.classes[c]]", [row, column])
        told = page.locator("#cell").inner_text()
        assert names[0] in told
        assert names[1] in told
        assert page.locator("#cell-images button").count() >= 1
        page.locator("#order").select_option("name")
        assert page.evaluate("shown.every((c, i) => c === i)")
        page.locator("#order").select_option("together")
        assert page.evaluate("[...shown].sort((a, b) => a - b).every((c, i) => c === i)")


def test_the_table_of_classes_is_sorted_by_its_heads(visit, given):
    with visit(given) as seen:
        page = seen.page

        def column():
            cells = page.locator(".sortable tbody tr td:nth-child(4)")
            return cells.evaluate_all("cells => cells.map(c => Number(c.dataset.value))")

        head = page.locator(".sortable thead button", has_text="recall")
        head.click()
        assert column() == sorted(column(), reverse=True)
        head.press("Enter")
        assert column() == sorted(column())
        sorts = page.locator(".sortable thead th").evaluate_all(
            "heads => heads.map(h => h.getAttribute('aria-sort'))"
        )
        assert sorts.count("ascending") == 1


def test_names_of_files_and_classes_never_become_markup(visit, hostile):
    with visit(hostile) as seen:
        page = seen.page
        page.mouse.move(*place_of(page, 0, 0))
        page.mouse.click(*place_of(page, 0, 1))
        for _ in range(4):
            page.locator("#next").click()
        page.locator("#matrix svg").focus()
        for key in ("ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert seen.complaints == []
        assert page.locator("img[src='x']").count() == 0
        assert page.locator("script").count() == 2
        assert "</script><script>alert(2)</script>" in page.locator("#classes").inner_text()
        assert "{{7*7}}" in page.locator("#classes").inner_text()


def test_on_paper_it_is_light_and_whole(visit, given):
    with visit(given, color_scheme="dark") as seen:
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert seen.page.locator("nav").is_hidden()
        table = seen.page.locator("#classes .scroll")
        assert table.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
        assert len(seen.page.pdf()) > 10_000
        assert seen.complaints == []
