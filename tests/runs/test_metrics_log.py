import csv
from pathlib import Path

import pytest

from scs_supcon.runs.metrics_log import MetricsLog


def read(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def fill(log, epochs, stage="pretrain"):
    for epoch in epochs:
        log.append(stage, epoch, 10 * epoch, {"loss": 1 / epoch, "val/acc1": 0.1 + 0.2})


def points(folder, stage, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / stage))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


def test_each_value_is_one_line(tmp_path):
    log = MetricsLog(tmp_path)
    fill(log, [1, 3])
    log.close()
    assert (tmp_path / "metrics.csv").read_bytes() == (
        b"stage,epoch,step,metric,value\n"
        b"pretrain,1,10,loss,1.0\n"
        b"pretrain,1,10,val/acc1,0.30000000000000004\n"
        b"pretrain,3,30,loss,0.3333333333333333\n"
        b"pretrain,3,30,val/acc1,0.30000000000000004\n"
    )


def test_a_rewound_log_ends_with_the_same_bytes(tmp_path):
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    for folder in (uninterrupted, resumed):
        folder.mkdir()
    log = MetricsLog(uninterrupted)
    fill(log, range(1, 6))
    log.close()

    log = MetricsLog(resumed)
    fill(log, [1, 2])
    length, digest = log.flush()
    fill(log, [3, 4])
    log.close()
    with Path(resumed / "metrics.csv").open("a") as file:
        file.write("pretrain,5,5")  # killed while writing a line
    log = MetricsLog(resumed)
    log.rewind(length, digest)
    fill(log, [3, 4, 5])
    log.close()
    assert (resumed / "metrics.csv").read_bytes() == (uninterrupted / "metrics.csv").read_bytes()
    assert points(resumed, "pretrain", "loss") == points(uninterrupted, "pretrain", "loss")


def test_each_stage_has_its_own_tensorboard_folder(tmp_path):
    log = MetricsLog(tmp_path)
    fill(log, [1, 2])
    fill(log, [1], "probe")
    length, digest = log.flush()
    log.close()
    log = MetricsLog(tmp_path)
    log.rewind(length, digest)
    fill(log, [2], "probe")
    log.close()
    assert points(tmp_path, "pretrain", "loss") == [10, 20]
    assert points(tmp_path, "probe", "loss") == [10, 20]


def test_an_empty_log_can_be_rewound(tmp_path):
    log = MetricsLog(tmp_path)
    log.rewind(0)
    assert log.flush()[0] == 0
    fill(log, [1])
    log.rewind(0)
    fill(log, [1])
    assert len(read(tmp_path)) == 2
    log.close()


def test_missing_lines_are_reported_with_a_warning(tmp_path):
    log = MetricsLog(tmp_path)
    with pytest.warns(RuntimeWarning, match="shorter than at the last checkpoint"):
        log.rewind(100)


def test_changed_lines_are_reported_with_a_warning(tmp_path):
    log = MetricsLog(tmp_path)
    fill(log, [1, 2])
    length, digest = log.flush()
    content = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").write_bytes(content[:-3] + b"\xff7\n")
    with pytest.warns(RuntimeWarning, match="has changed since the last checkpoint"):
        log.rewind(length, digest)
    log.close()
