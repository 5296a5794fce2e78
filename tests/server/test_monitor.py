"""The numbers that Prometheus reads."""

from scs_supcon.server.monitor import Histogram, Monitor


def test_buckets_count_values_up_to_their_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    assert histogram.lines("time", "Seconds.") == [
        "# HELP time Seconds.",
        "# TYPE time histogram",
        'time_bucket{le="1.0"} 2',
        'time_bucket{le="2.0"} 3',
        'time_bucket{le="+Inf"} 4',
        "time_sum 10.000000",
        "time_count 4",
    ]


def test_all_counters_are_listed():
    monitor = Monitor()
    monitor.requests["/v1/predict", 200] += 2
    monitor.images, monitor.unreadable = 5, 1
    monitor.batches.observe(3)
    lines = monitor.text(waiting=7).splitlines()
    for line in (
        'scs_requests_total{route="/v1/predict",status="200"} 2',
        "scs_images_total 5",
        "scs_unreadable_total 1",
        "scs_waiting_images 7",
        'scs_batch_images_bucket{le="2"} 0',
        'scs_batch_images_bucket{le="4"} 1',
        "scs_batch_images_count 1",
        "scs_predict_seconds_count 0",
    ):
        assert line in lines
