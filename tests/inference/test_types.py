"""Answers are plain data."""

import json
from dataclasses import asdict

from scs_supcon.inference import Failure, Prediction, Predictions


def test_answers_can_be_written_as_json() -> None:
    record = Prediction("a.png", "cat", 0.9, (("cat", 0.9), ("dog", 0.1)), False, "cat", 0.8)
    records, failures = Predictions((record,), (Failure("b.png", "b.png is empty (0 bytes)"),))
    assert json.loads(json.dumps([asdict(one) for one in records])) == [
        {
            "name": "a.png",
            "label": "cat",
            "probability": 0.9,
            "top": [["cat", 0.9], ["dog", 0.1]],
            "none_of_these": False,
            "nearest": "cat",
            "similarity": 0.8,
        }
    ]
    assert failures[0].reason == "b.png is empty (0 bytes)"
