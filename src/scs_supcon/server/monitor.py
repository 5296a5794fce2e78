"""Counters and durations of the server in the text format of Prometheus."""

import bisect
from collections import Counter

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """Counts of values up to each of some bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, title: str) -> list[str]:
        """Return the lines of a metric."""
        lines = [f"# HELP {name} {title}", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self.sum:.6f}", f"{name}_count {total}"]


class Monitor:
    """What the server has done since it started; changed by the event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images = 0
        self.unreadable = 0
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(BATCHES)

    def text(self, waiting: int) -> str:
        """Return all metrics; `waiting` is the number of images that wait for the model."""
        lines = [
            "# HELP scs_requests_total Requests by route and status.",
            "# TYPE scs_requests_total counter",
        ]
        for (route, status), count in sorted(self.requests.items()):
            lines.append(f'scs_requests_total{{route="{route}",status="{status}"}} {count}')
        for name, kind, title, value in (
            ("scs_images_total", "counter", "Images that the model has seen.", self.images),
            ("scs_unreadable_total", "counter", "Images that could not be read.", self.unreadable),
            ("scs_waiting_images", "gauge", "Images that wait for the model.", waiting),
        ):
            lines += [f"# HELP {name} {title}", f"# TYPE {name} {kind}", f"{name} {value}"]
        lines += self.seconds.lines("scs_predict_seconds", "Duration of requests with images.")
        lines += self.batches.lines("scs_batch_images", "Images in a batch of the model.")
        return "\n".join(lines) + "\n"
