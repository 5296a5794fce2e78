"""One page that needs nothing else and escapes what comes from outside."""

import re
from html.parser import HTMLParser

from scs_supcon.benchmark.compare import report
from scs_supcon.benchmark.page import Content, differences, make_page
from scs_supcon.benchmark.tables import legend


class Page(HTMLParser):
    """Collects what a page would load, and checks that tags are closed in their order."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.stack, self.words = [], [], []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link", "br", "img"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_stands_alone(two_seeds, cells_of, suite_of):
    table, runs = two_seeds
    found = report(suite_of(table, runs), cells_of(table), {})
    text = (suite_of(table, runs).out / "comparison.html").read_text()
    page = Page(text)
    assert not [load for load in page.loads if not load.startswith("#")]
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    words = " ".join(page.words)
    for name in found.comparison.rows:
        assert name in words
    assert "6 of 6 runs finished" in words
    assert text.count("<svg") == 2, "every run, and the critical difference"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in text
    assert "What differs, beside the loss" in words
    assert "head.centre" in words


def test_names_are_escaped(small_table, cells_of, suite_of, tmp_path):
    odd = "<script>alert(1)</script>"
    table = small_table([{"method": "supcon", "name": odd}])
    found = report(suite_of(table), cells_of(table), {cells_of(table)[0].address: f"broke {odd}"})
    content = Content(
        table,
        found.comparison,
        found.outcomes,
        legend(found.comparison, "1 seed"),
        [],
        set(),
        found.failed,
    )
    text = make_page(content)
    assert odd not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    Page(text)


def test_differences_between_recipes(small_table, cells_of):
    recipes = {cell.row: cell.recipe for cell in cells_of(small_table(["scs_supcon", "simclr"]))}
    found = dict(differences(recipes))
    assert found["head.centre"] == [("True", "scs_supcon"), ("False", "simclr, baseline")]
    assert not [key for key in found if key.startswith(("method", "pretrain", "data"))]
