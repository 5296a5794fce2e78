"""`scs report`: the page made again, and why it cannot be."""


def test_the_page_is_made_again_and_its_path_printed(scs, runs):
    page = runs / "x" / "report.html"
    page.unlink()
    (runs / "x" / "figures" / "tsne.png").unlink()
    said = scs("report", runs / "x")
    assert (said.code, said.out) == (0, f"{page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert (runs / "x" / "figures" / "tsne.png").exists()


def test_an_unfinished_run_has_none(scs, runs):
    (runs / "x" / "finished.json").unlink()
    said = scs("report", runs / "x")
    assert said.code == 2
    assert "is not finished" in said.err


def test_a_run_of_an_older_version_is_told_from_a_broken_one(scs, runs):
    (runs / "x" / "evaluation.json").unlink()
    said = scs("report", runs / "x")
    assert said.code == 2
    assert "has no evaluation.json: it was removed, or an older version" in said.err
