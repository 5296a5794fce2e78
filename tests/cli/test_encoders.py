"""`scs encoders`."""

import json

from scs_supcon.recipe.encoders import ENCODERS


def test_encoders_are_listed_with_size_speed_accuracy_and_licence(scs):
    lines = scs("encoders").out.splitlines()
    assert len(lines) == 1 + len(ENCODERS) + 2
    row = next(line for line in lines if "(fast)" in line)
    assert row.split()[0] == "tf_efficientnet_lite0"
    assert row.endswith("74.8%  Apache-2.0")
    rows = json.loads(scs("encoders", "--json").out)
    assert [row["name"] for row in rows] == [choice.name for choice in ENCODERS]
    assert all(row["images_per_second"] > 0 for row in rows)
