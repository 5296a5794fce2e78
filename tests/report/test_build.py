"""The page: complete, self-contained, and safe against names that look like markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pyarrow.parquet as pq
import pytest

from scs_supcon.report import build_report
from scs_supcon.report.context import SECTIONS
from scs_supcon.report.render import breakable, content_security_policy


class Page(HTMLParser):
    """The tags and attributes of a page, and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.raw = [], {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_data(self, text):
        last = self.tags[-1][0] if self.tags else ""
        if last in self.raw and not self.closed(last):
            self.raw[last][-1] += text

    def closed(self, tag):
        return self.cdata_elem != tag


@pytest.fixture(scope="module")
def built(tmp_path_factory, write_run):
    return build_report(write_run(tmp_path_factory.mktemp("report") / "run & <i>more</i>"))


def test_the_page_has_all_sections_and_unique_ids(built):
    text = built.read_text()
    page = Page(text)
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == list(SECTIONS)
    targets = [a["href"] for tag, a in page.tags if tag == "a"]
    assert set(targets) == {f"#{name}" for name in SECTIONS}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all("alt" in attributes for tag, attributes in page.tags if tag == "img")


def test_the_page_loads_nothing(built):
    page = Page(built.read_text())
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed")]
    for _, attributes in page.tags:
        assert not {"src", "srcset", "style", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(
        r"url\((?!#)|@import|https?:(?!//www\.w3\.org/2000/svg)", built.read_text()
    )


def test_names_never_become_markup(built):
    text = built.read_text()
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "<img src=x" not in text
    assert "<b>bees</b>" not in text
    assert "run & <i>" not in text
    assert "{{ 7 * 7 }}" in text
    data = json.loads(page.raw["script"][0])
    assert data["classes"][0] == "</script><script>alert(1)</script>"


def test_the_policy_allows_only_this_script_and_style(built):
    page = Page(built.read_text())
    (meta,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    for kind, text in (("script", page.raw["script"][1]), ("style", page.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in meta
    assert meta.startswith("default-src 'none'; img-src data:;")
    assert meta == content_security_policy(page.raw["style"][0], page.raw["script"][1])


def test_the_same_records_give_the_same_page(built):
    before = built.read_bytes()
    assert build_report(built.parent).read_bytes() == before
    assert (built.parent / "figures" / "tsne.png").exists()


def test_a_run_without_style_field_errors_or_images_has_a_page(written):
    run = written(style=False)
    content = json.loads((run / "evaluation.json").read_text())
    nothing = {"confused_pairs": [], "label_errors": [], "baselines": {}}
    rates = {"auc": None, "true_positive_rate": None, "false_positive_rate": None, "roc": []}
    edges = content["pairs"]["histogram"]["edges"]
    empty = {"edges": edges, "same": [0] * 60, "different": [0] * 60}
    content |= nothing | {"pairs": content["pairs"] | rates | {"histogram": empty}}
    content["retrieval"] = {"precision_at_1": None, "map_at_r": None}
    (run / "evaluation.json").write_text(json.dumps(content))
    (run / "problems.json").write_text("[]")
    thumbnails = pq.read_table(run / "thumbnails.parquet")
    pq.write_table(thumbnails.slice(0, 0), run / "thumbnails.parquet")
    text = build_report(run).read_text()
    for sentence in ("no thumbnails", "No errors", "No suspicious labels", "no style field"):
        assert sentence in text
    assert "<canvas" not in text


def test_names_can_wrap_after_separators():
    assert breakable("a_b/<c>") == "a_<wbr>b/<wbr>&lt;c&gt;"


def test_a_finished_run_has_a_report(finished):
    page = finished / "report.html"
    assert Page(page.read_text()).tags
    assert len(list((finished / "figures").iterdir())) == 10
