"""What the page says, from the records of a run."""

import json

from scs_supcon.report.context import view
from scs_supcon.report.gallery import hang
from scs_supcon.report.inputs import read_inputs


def seen(run):
    inputs = read_inputs(run)
    return view(inputs, hang(inputs)), inputs


def test_the_headline_stands_beside_its_baselines_best_first(written):
    page, inputs = seen(written())
    value = inputs.evaluation["scores"]["acc1"]["value"]
    assert page["accuracy"] == f"{100 * value:.1f}\u00a0%"
    assert [row["name"] for row in page["rows"]] == [
        "this model",
        "linear probe of the encoder",
        "kNN on the encoder",
    ]
    assert [row["own"] for row in page["rows"]] == [True, False, False]
    assert dict(page["facts"])["Images"] == "16 train, 32 test"
    assert dict(page["facts"])["Time"] == "83 s"
    assert dict(page["facts"])["Encoder"] == "tiny, trained"


def test_confusions_know_their_cell(written):
    page, inputs = seen(written())
    for pair in page["confused"]:
        assert inputs.evaluation["confusion"][pair["row"]][pair["column"]] == pair["count"]


def test_suspects_have_their_image_where_there_is_one(written):
    run = written()
    found = json.loads((run / "evaluation.json").read_text())
    found["label_errors"].append(found["label_errors"][0] | {"name": "gone.jpg"})
    (run / "evaluation.json").write_text(json.dumps(found))
    page, inputs = seen(run)
    names = hang(inputs).names
    *there, gone = page["label_errors"]
    assert all(names[suspect["index"]] == suspect["name"] for suspect in there)
    assert gone["index"] is None


def test_a_method_without_style_has_one_field(written):
    page, _ = seen(written(style=False))
    assert [field["name"] for field in page["fields"]] == ["common"]
    assert page["leakage"] is None


def test_commands_quote_the_folder(written):
    page, inputs = seen(written())
    first = page["commands"][0][1]
    assert f"scs predict '{inputs.path}' photo.jpg" in first
