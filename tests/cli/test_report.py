"""`scs report`: the page made again, and why it cannot be."""


def test_report_writes_the_page_again_and_prints_its_path(scs, runs):
    page = runs / "x" / "report.html"
    page.unlink()
    (runs / "x" / "figures" / "tsne.png").unlink()
    said = scs("report", runs / "x")
    assert (said.code, said.out) == (0, f"{page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert (runs / "x" / "figures" / "tsne.png").exists()


def test_an_unfinished_run_has_no_report(scs, runs):
    (runs / "x" / "finished.json").unlink()
    said = scs("report", runs / "x")
    assert said.code == 2
    assert "is not finished" in said.err


def test_runs_of_older_versions_and_damaged_runs_have_different_errors(scs, runs):
    (runs / "x" / "evaluation.json").unlink()
    said = scs("report", runs / "x")
    assert said.code == 2
    assert "has no evaluation.json: it was removed, or an older version" in said.err
