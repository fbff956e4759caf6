"""The clocks that measurements and choices go by; one place, so that a test can stop them."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return monotonic nanoseconds."""
    return time.perf_counter_ns()


def epoch_s() -> int:
    """Return whole seconds since the epoch."""
    return int(time.time())
