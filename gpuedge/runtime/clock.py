"""The clocks that measurements and choices go by; one place, so that a test can stop them."""

from __future__ import annotations

import time

now_ns = time.perf_counter_ns
"""Monotonic nanoseconds."""
