"""Reports in a real browser: complete, without errors, usable by mouse and keyboard.

`SCS_REPORT=runs/birds/report.html make test-browser` tests the report of another run.
"""

import pytest

from scs_supcon.report.context import SECTIONS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCHEMES = ("light", "dark")
MAPS = "canvas"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_it_opens_without_errors_requests_or_horizontal_scrolling(visit, report, width, scheme):
    with visit(report, width, color_scheme=scheme) as visited:
        visited.page.wait_for_function("document.querySelectorAll('#matrix svg').length === 1")
        page_width = visited.page.evaluate("document.documentElement.scrollWidth")
        assert visited.errors == []
        assert [url for url in visited.requests if not url.startswith("data:")] == [
            report.resolve().as_uri()
        ]
        assert page_width <= width


def test_every_section_is_visible(visit, report):
    with visit(report) as visited:
        for name in SECTIONS:
            section = visited.page.locator(f"section#{name}")
            assert section.is_visible()
            assert len(section.inner_text()) > 20
        assert visited.page.locator("canvas").count() == 2
        loaded = visited.page.locator("img[data-image]").evaluate_all(
            "images => images.every(i => i.complete && i.naturalWidth > 0)"
        )
        assert loaded


def position_of(page, map_index, image):
    """Return the position of an image on a map, in pixels of the window."""
    canvas = page.locator(MAPS).nth(map_index)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = page.evaluate("([map, i]) => maps[map].position(i)", [map_index, image])
    return box["x"] + x, box["y"] + y


@pytest.mark.parametrize("map_index", [0, 1])
def test_hovering_over_a_point_shows_its_image(visit, report, map_index):
    with visit(report) as visited:
        page = visited.page
        assert page.locator("#tip").is_hidden()
        page.mouse.move(*position_of(page, map_index, 5))
        assert page.evaluate("hovered") >= 0
        tip = page.locator("#tip")
        assert tip.is_visible()
        assert page.evaluate("labelOf(hovered)") in tip.inner_text()
        source = tip.locator("img").get_attribute("src")
        assert source == page.evaluate("'data:image/jpeg;base64,' + data.jpegs[hovered]")
        page.mouse.move(2, 2)
        assert tip.is_hidden()


def test_selecting_a_point_shows_its_neighbours_in_both_fields(visit, report):
    with visit(report) as visited:
        page = visited.page
        page.mouse.click(*position_of(page, 0, 7))
        selected = page.evaluate("selected")
        name = page.evaluate("i => data.names[i]", selected)
        assert name in page.locator("#subject-text").inner_text().replace("\u200b", "")
        for field in (0, 1):
            buttons = page.locator(f"[data-neighbours='{field}'] button")
            names = buttons.evaluate_all("buttons => buttons.map(b => b.title)")
            expected = page.evaluate(
                "([f, i]) => data.fields[f].neighbours[i].map(n => data.names[n])",
                [field, selected],
            )
            assert names == expected
            assert selected not in page.evaluate(
                "([f, i]) => data.fields[f].neighbours[i]", [field, selected]
            )
        page.locator("[data-neighbours='0'] button").first.click()
        assert page.evaluate("selected") == page.evaluate(
            "i => data.fields[0].neighbours[i][0]", selected
        )
        assert visited.errors == []


def test_maps_and_matrix_work_with_the_keyboard(visit, report):
    with visit(report) as visited:
        page = visited.page
        page.locator(MAPS).first.focus()
        assert page.locator("#tip").is_visible()
        before = page.evaluate("hovered")
        for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"):
            page.keyboard.press(key)
        moved = page.evaluate("hovered")
        assert before >= 0
        assert page.evaluate("labelOf(hovered)") in page.locator("#announcement").inner_text()
        page.keyboard.press("Enter")
        assert page.evaluate("selected") == moved
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()

        page.locator("#matrix svg").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        row = page.evaluate("data.classes[shownClasses[1]]")
        assert row in page.locator("#cell").inner_text()
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_arrow_keys_reach_both_ends_of_a_map(visit, report):
    with visit(report) as visited:
        page = visited.page
        page.locator(MAPS).first.focus()
        for key, axis, sign in (("ArrowLeft", "x", 1), ("ArrowRight", "x", -1)):
            for _ in range(60):
                page.keyboard.press(key)
            end = page.evaluate("(axis) => data.fields[0][axis][hovered]", axis)
            values = page.evaluate("(axis) => data.fields[0][axis]", axis)
            beyond = [value for value in values if sign * (end - value) > 0.25]
            assert len(beyond) < len(values) / 4


def test_previous_and_next_respect_the_filters(visit, report):
    with visit(report) as visited:
        page = visited.page
        page.locator("#pick-class").select_option("1")
        first = page.evaluate("selected")
        assert page.evaluate("data.labels[selected]") == 1
        page.locator("#next").click()
        assert page.evaluate("data.labels[selected]") == 1
        page.locator("#previous").click()
        assert page.evaluate("selected") == first
        page.locator("#pick-class").select_option("-1")
        page.locator("#pick-wrong").check()
        count = page.evaluate("filteredImages().length")
        assert str(count) in page.locator("#position").inner_text() or count == 0
        if count:
            page.locator("#next").click()
            assert page.evaluate("isWrong(selected)")


def test_a_confusion_shows_its_images(visit, report):
    with visit(report) as visited:
        page = visited.page
        buttons = page.locator("[data-cell]")
        if not buttons.count():
            pytest.skip("the model made no errors")
        row, column = map(int, buttons.first.get_attribute("data-cell").split())
        buttons.first.click()
        names = page.evaluate("([r, c]) => [data.classes[r], data.classes[c]]", [row, column])
        text = page.locator("#cell").inner_text()
        assert names[0] in text
        assert names[1] in text
        assert page.locator("#cell-images button").count() >= 1
        page.locator("#order").select_option("name")
        assert page.evaluate("shownClasses.every((c, i) => c === i)")
        page.locator("#order").select_option("confusion")
        assert page.evaluate("[...shownClasses].sort((a, b) => a - b).every((c, i) => c === i)")


def test_a_click_on_a_header_sorts_the_table_of_classes(visit, report):
    with visit(report) as visited:
        page = visited.page

        def column():
            cells = page.locator(".sortable tbody tr td:nth-child(4)")
            return cells.evaluate_all("cells => cells.map(c => Number(c.dataset.value))")

        header = page.locator(".sortable thead button", has_text="recall")
        header.click()
        assert column() == sorted(column(), reverse=True)
        header.press("Enter")
        assert column() == sorted(column())
        orders = page.locator(".sortable thead th").evaluate_all(
            "headers => headers.map(h => h.getAttribute('aria-sort'))"
        )
        assert orders.count("ascending") == 1


def test_names_of_files_and_classes_never_become_markup(visit, hostile):
    with visit(hostile) as visited:
        page = visited.page
        page.mouse.move(*position_of(page, 0, 0))
        page.mouse.click(*position_of(page, 0, 1))
        for _ in range(4):
            page.locator("#next").click()
        page.locator("#matrix svg").focus()
        for key in ("ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert visited.errors == []
        assert page.locator("img[src='x']").count() == 0
        assert page.locator("script").count() == 2
        assert "</script><script>alert(2)</script>" in page.locator("#classes").inner_text()
        assert "{{7*7}}" in page.locator("#classes").inner_text()


def test_it_prints_in_light_colours_and_in_full(visit, report):
    with visit(report, color_scheme="dark") as visited:
        visited.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        visited.page.emulate_media(media="print")
        assert visited.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert visited.page.locator("nav").is_hidden()
        table = visited.page.locator("#classes .scroll")
        assert table.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
        assert len(visited.page.pdf()) > 10_000
        assert visited.errors == []
