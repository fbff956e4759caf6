"""Which part of a long test runs today: another one each day; `make test-long` runs all of them."""

from __future__ import annotations

import os
from datetime import date


def turn(count: int) -> int:
    """Return today's number below `count`: each comes up on one of so many days.

    ``TESTS_DAY=739581`` runs what ran on that day (`date.toordinal`).
    """
    return int(os.environ.get("TESTS_DAY") or date.today().toordinal()) % count
