"""Reason codes: why a candidate was or was not used. Codes are stable; sentences may improve."""

from __future__ import annotations

from gpuedge.core.record import Record

STATUSES = ("ok", "absent", "broken", "blocked", "wrong", "timeout", "crashed")

SENTENCES: dict[str, str] = {
    # probing
    "ok": "answered with the right numbers",
    "no-loader": "the API's loader library or Python package is not installed",
    "no-candidates": "no driver is installed for this API",
    "bad-manifest": "the driver's manifest cannot be read",
    "missing-library": "the driver's library is missing or cannot be loaded",
    "no-device": "the driver loads but offers no device",
    "no-compute": "the device has no compute queue",
    "no-context": "the driver makes no context of this level",
    "no-shaders": "the driver does not compile shaders of this level",
    "no-format": "no texture format of this level can be rendered to and read back unchanged",
    "no-highp": "fragment shaders compute with too few bits",
    "open-failed": "the driver refused to open the device",
    "kernel-failed": "the driver refused to build or run a kernel",
    "out-of-memory": "there was not enough memory",
    "device-lost": "the driver lost the device",
    "untouched-output": "the driver reported success but wrote nothing",
    "wrong-numbers": "the driver reported success but the numbers are wrong",
    "unstable-numbers": "two runs of the same kernel gave different numbers",
    "crashed": "the driver killed the probe process",
    "exited": "the driver ended the probe process without a result",
    "no-token": "the probe process ended without proving that it did the work",
    "deadline": "the driver did not answer before the deadline",
    "quirk": "the capability database blocks this driver",
    "forked": "the process was forked off after a driver was loaded, which drivers do not survive",
    "disabled": "switched off by a setting",
    "crash-blocklist": "using this driver ended earlier processes, so it is left alone for a while",
    "pinned": "ruled out by the setting 'pin'",
    "no-child": "no disposable process can be started from this application",
    # deciding
    "selected": "selected",
    "named": "asked for by name",
    "software": "a software rasteriser, excluded unless Policy(allow_software=True)",
    "slower": "predicted to be slower than the CPU path",
    "not-yet": "opening it does not pay yet",
    "opening": "being opened in the background",
    "open-late": "opening it had not ended in time, and is tried again",
    "open-stalled": "opening it did not end in time whenever it was tried, so it is left for now",
    "on-trial": "being compared with the CPU path",
    "not-best": "another device is faster",
    "other-route": "the same device is reached by a better API route",
    "not-named": "another device was asked for by name",
    "unsupported-op": "an operator of the model cannot run there",
    "does-not-fit": "the model needs more than the device offers",
    "measured-slower": "measured on this model, and slower than the CPU path",
    "takes-over": "the better side by now, so that it answers next",
    "too-little": "measured on this model, and not enough faster than the CPU path",
    "misses-deadline": "too slow for the deadline of the policy",
    "too-much-memory": "needs more device memory than the policy allows",
    "demoted": "the capability database puts it behind the others",
    "run-failed": "the device failed while running",
    "compile-failed": "the device failed while compiling",
    "device-hung": "the device did not finish a request, which was given up (watchdog_s)",
    "worker-died": "the process that the driver lives in ended",
    "drifted": "its results drifted from those of the CPU",
    "recovering": "the device failed and is being opened anew",
    "failed-often": "the device failed too often",
    "fallback": "the safe choice",
}


class Reason(Record):
    """A stable code and one sentence; `detail` carries the specifics of this case."""

    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in SENTENCES:
            raise ValueError(f"unknown reason code {self.code!r}")

    @property
    def sentence(self) -> str:
        """The code's sentence with the details of this case."""
        text = SENTENCES[self.code]
        return f"{text}: {self.detail}" if self.detail else text
