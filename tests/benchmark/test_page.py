"""The page is self-contained and escapes all names."""

import html
import re
from html.parser import HTMLParser

from scs_supcon.benchmark.compare import write_results
from scs_supcon.benchmark.page import differences
from scs_supcon.report.render import content_security_policy


class Page(HTMLParser):
    """Collects links, text, scripts and styles; checks that tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.stack, self.texts = [], [], []
        self.raw = {"script": "", "style": ""}
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        assert "style" not in dict(attributes)
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link", "br", "img"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] in self.raw:
            self.raw[self.stack[-1]] += data
        else:
            self.texts.append(data)


def test_the_page_is_self_contained(two_seeds, run_compare, tmp_path):
    table, runs = two_seeds
    report = run_compare(table, runs)
    text = (tmp_path / "out" / "comparison.html").read_text()
    page = Page(text)
    assert not [load for load in page.loads if not load.startswith("#")]
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    words = " ".join(page.texts)
    for name in report.comparison.rows:
        assert name in words
    assert "6 of 6 runs are finished" in words
    assert text.count("<svg") == 3, "dot plot, curves and critical-difference diagram"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in text
    assert "these settings differ" in words
    assert "head.centre" in words


def test_the_policy_allows_only_this_script_and_style(two_seeds, run_compare, tmp_path):
    run_compare(*two_seeds)
    text = (tmp_path / "out" / "comparison.html").read_text()
    page = Page(text)
    policy = content_security_policy(page.raw["style"], page.raw["script"])
    assert f'content="{html.escape(policy).replace("&#x27;", "&#39;")}"' in text
    assert "unsafe-inline" not in text


def test_names_are_escaped(small_table, cells_of, tmp_path):
    name = "<script>alert(1)</script>"
    table = small_table([{"method": "supcon", "name": name}])
    cells = cells_of(table)
    failures = {cells[0].address: f"broke {name}"}
    write_results(table, cells, failures, out=tmp_path / "out", runs=tmp_path / "runs")
    text = (tmp_path / "out" / "comparison.html").read_text()
    assert name not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    Page(text)


def test_differences_between_recipes(small_table, cells_of):
    recipes = {cell.row: cell.recipe for cell in cells_of(small_table(["scs_supcon", "supcon"]))}
    settings = dict(differences(recipes))
    assert settings["head.centre"] == [("True", "scs_supcon, supcon"), ("False", "baseline")]
    others = [key for key in settings if key.startswith(("method", "pretrain", "data"))]
    assert others == ["pretrain.cross_entropy", "pretrain.views"]
