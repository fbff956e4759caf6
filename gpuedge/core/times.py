"""How long things may take: every time after which something is given up, in seconds.

What is measured, retried or fitted has its times elsewhere (`gpuedge.decide.options`), and so has
how often something is looked at, which bounds nothing.
"""

from __future__ import annotations

# -- runs on a device (`gpuedge.safety.watchdog`)

RUN_LIMIT_S = 60.0
"""The least a first run may take: drivers compile during it, software rasterisers need seconds."""

MOST_S = 3600.0
"""The most that any run may take."""

FLOOR_S = 2.0
"""The least a run may take before its device counts as hung: shorter gaps are the system's."""

STILL_S = 1.0
"""A process that was idle for so long shows no sign of life."""

MARGIN_S = 0.5
"""What a device's own watchdog gets beyond its time where another process or thread watches too: it
ends a run in a better way."""

STOPPED_S = 1.0
"""A wait that took so much longer than it was told to: the whole process stood still meanwhile."""

COPY_TIMEOUT_S = 60.0
"""How long a copy between device and host may take."""

# -- finding, opening and closing devices

LISTING_S = 2.0
"""How long a plug-in may take to be imported and to list its drivers, which loads none. That is
done in the application, before any child process; our own backends take milliseconds."""

NAMED_S = 60.0
"""Deadline of another probe where that of the first was too short for a device that was named."""

ADVISED_S = 600
"""Deadline to advise where these were too short: on a slow or busy machine a driver's first start
takes minutes. One that hangs is found in some seconds whatever the deadline is."""

STALL_S = 20.0
"""A step of a job in the background, such as opening a device, that takes longer is not waited
for."""

AWAY_S = 20.0
"""How long a device whose opening stalled may take to come back, before whoever asks for it is told
that it hangs."""

LOAD_S = 2.0
"""How long ``Policy(decide="load")`` may take before the first request."""

CLOSE_TIMEOUT_S = 5.0
"""How long closing a device waits for work in flight."""

CLOSE_FAILED_S, REOPEN_S = 10.0, 60.0
"""How long closing a device that failed, and opening it anew, may take before it counts as hung."""

RETURN_S = 20.0
"""How long a request that takes no other device waits for one that is being opened anew."""

# -- workers (``isolation="process"``)

WORKER_OPEN_S = 30.0
"""Time for starting a worker and opening its device."""

WORKER_CALL_S = 10.0
"""Time for a call of a worker that computes nothing."""

WORKER_BUILD_S = 60.0
"""Time for compiling a kernel and for recording work."""

WORKER_IDLE_S = 10.0
"""How long a worker may be idle in a call where no policy says how long the device may take."""

WORKER_CLOSE_S = 2.0
"""How long a worker may take to close its device."""

WORKER_ENDING_S = 0.5
"""How long a worker that closed its pipe gets to be gone, so that its own ending is seen."""

# -- sessions

LEAVE_S = 5.0
"""How long closing a session waits for requests that are under way in other threads."""

FORK_S = 1.0
"""How long a fork waits for the step under way in the background: modules that a thread imported
when the process was forked can never be imported in the child."""

# -- the end of the interpreter

REQUESTS_END_S, CANCELLED_S = 5.0, 1.0
"""How long it waits for requests under way, all sessions together, and after that for runs on the
CPU that were told to stop."""

STEP_END_S = 2.0
"""How long it waits for the step under way in the background."""

DEVICE_END_S = 2.0
"""How long it waits for a device to be given back."""

PROBE_END_S = 2.0
"""What it waits for a probe in the background to end its processes; that takes 0.1 s."""
