"""`scs report`: rebuild the page, and errors for runs without the required files."""


def test_report_rebuilds_the_page_and_prints_its_path(scs, runs):
    page = runs / "x" / "report.html"
    page.unlink()
    (runs / "x" / "figures" / "tsne.png").unlink()
    result = scs("report", runs / "x")
    assert (result.code, result.out) == (0, f"{page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert (runs / "x" / "figures" / "tsne.png").exists()


def test_an_unfinished_run_has_no_report(scs, runs):
    (runs / "x" / "finished.json").unlink()
    result = scs("report", runs / "x")
    assert result.code == 2
    assert "is not finished" in result.err


def test_a_run_without_an_evaluation_has_no_report(scs, runs):
    (runs / "x" / "evaluation.json").unlink()
    result = scs("report", runs / "x")
    assert result.code == 2
    assert "has no evaluation.json: it was removed, or an older version" in result.err
