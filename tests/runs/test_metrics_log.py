import csv
from pathlib import Path

import pytest

from scs_supcon.runs.metrics_log import MetricsLog


def read(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def fill(journal, epochs, stage="pretrain"):
    for epoch in epochs:
        journal.append(stage, epoch, 10 * epoch, {"loss": 1 / epoch, "val/acc1": 0.1 + 0.2})


def points(folder, stage, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / stage))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


def test_one_line_for_each_number(tmp_path):
    journal = MetricsLog(tmp_path)
    fill(journal, [1, 3])
    journal.close()
    assert (tmp_path / "metrics.csv").read_bytes() == (
        b"stage,epoch,step,metric,value\n"
        b"pretrain,1,10,loss,1.0\n"
        b"pretrain,1,10,val/acc1,0.30000000000000004\n"
        b"pretrain,3,30,loss,0.3333333333333333\n"
        b"pretrain,3,30,val/acc1,0.30000000000000004\n"
    )


def test_rewound_and_written_again_it_is_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    journal = MetricsLog(whole)
    fill(journal, range(1, 6))
    journal.close()

    journal = MetricsLog(parts)
    fill(journal, [1, 2])
    length = journal.flush()
    fill(journal, [3, 4])
    journal.close()
    with Path(parts / "metrics.csv").open("a") as file:
        file.write("pretrain,5,5")  # killed within a line
    journal = MetricsLog(parts)
    journal.rewind(length)
    fill(journal, [3, 4, 5])
    journal.close()
    assert (parts / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert points(parts, "pretrain", "loss") == points(whole, "pretrain", "loss")


def test_the_stages_have_boards_of_their_own(tmp_path):
    journal = MetricsLog(tmp_path)
    fill(journal, [1, 2])
    fill(journal, [1], "probe")
    length = journal.flush()
    journal.close()
    journal = MetricsLog(tmp_path)
    journal.rewind(length)
    fill(journal, [2], "probe")
    journal.close()
    assert points(tmp_path, "pretrain", "loss") == [10, 20]
    assert points(tmp_path, "probe", "loss") == [10, 20]


def test_nothing_to_rewind(tmp_path):
    journal = MetricsLog(tmp_path)
    journal.rewind(0)
    assert journal.flush() == 0
    fill(journal, [1])
    journal.rewind(0)
    fill(journal, [1])
    assert len(read(tmp_path)) == 2
    journal.close()


def test_lost_lines_are_told(tmp_path):
    journal = MetricsLog(tmp_path)
    with pytest.warns(RuntimeWarning, match="shorter than at the last checkpoint"):
        journal.rewind(100)
