"""The clock of deadlines."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)

CLOCK_DRIFT = 0.001
"""How much the rates of this machine's clock and of the daemon's may differ: one part in a thousand."""


def now() -> float:
    """Returns seconds of a clock that never goes back, and continues while the machine is suspended where it can."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)
