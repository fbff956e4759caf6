"""One application that meets faulty drivers: probes them, uses what is left, and must not notice.

``python matrix_trials.py CHANNEL`` is a long-lived process that plays the application. It reads
trials as JSON lines from its standard input and answers each on the descriptor CHANNEL; whoever
started it (tools/fault_matrix.py, test_matrix.py) sees to it that it neither ends nor falls silent.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kit
from looks import wait_for_looks
from matrix_state import answered, images, left_behind, network, single_operations, state

import gpuedge
from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    NoUsableDeviceError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import SENTENCES

REQUESTS = 16
"""Requests of a trial in service; the fault comes at one of the first."""

LOOK_S = 90.0
"""How long what a deadline cut off may be looked at in the background (`probing.background`)."""

SEEDS = 5


@contextmanager
def variables(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for C libraries as well; put back what was there."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Have hosts that hang found out sooner than the minute that a real compiler may need."""
    import gpuedge.isolation.device as isolated

    before = isolated.WORKER_BUILD_S, isolated.WORKER_CALL_S
    isolated.WORKER_BUILD_S, isolated.WORKER_CALL_S = (min(s, seconds) for s in before)
    try:
        yield
    finally:
        isolated.WORKER_BUILD_S, isolated.WORKER_CALL_S = before


# --- trials ----------------------------------------------------------------------------------


class Application:
    """What stays between trials: the model, the right answers, and how the process looked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = str(self.temporary)
        os.environ.pop("GPUFAULT", None)
        self.kit = kit.build()
        self.model = network()
        self.answers: dict[int, Any] = {}
        self.operations: dict[int, list[Any]] = {}
        with gpuedge.Session(self.model, device="cpu") as session:
            for seed in range(1, SEEDS + 1):
                feeds = images(seed)
                inputs = [next(feeds) for _ in range(REQUESTS)]
                self.answers[seed] = [answered(session, x) for x in inputs]
                self.operations[seed] = single_operations(seed, "cpu")
        self.is_first = True
        self.early = ""  # what was said when the device could not be opened

    def run(self, trial: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one trial and return what came of it; `wrong` is empty if all was right."""
        own = self.folder / trial["id"]
        shutil.rmtree(own, ignore_errors=True)
        (own / "cache").mkdir(parents=True)
        start = time.monotonic()
        method = self.probe if trial["part"] == "probe" else self.serve
        with variables({"GPUEDGE_CACHE_DIR": str(own / "cache")}):
            result = method(trial, own)
        result["seconds"] = round(time.monotonic() - start, 3)
        result["is_used_up"] = result.get("is_used_up", False) or _has_driver()
        shutil.rmtree(own, ignore_errors=True)
        return result

    def _environment(self, trial: Mapping[str, Any], own: Path) -> dict[str, str]:
        made = self.kit.environment(trial["api"], trial["fault"])
        extra = {
            "GPUFAULT_LOG": str(own / "fired.log"),
            "GPUFAULT_SEED": str(trial["seed"]),
            "GPUFAULT_LOCK": str(own / "lock"),
        }
        return {**made, **extra, **trial.get("variables", {})}

    def probe(self, trial: Mapping[str, Any], own: Path) -> dict[str, Any]:
        """Probe a driver with a fault, then use whatever is chosen."""
        wrong: list[str] = []
        with variables(self._environment(trial, own)):
            before = state(self.temporary)
            start = time.monotonic()
            report = gpuedge.probe(
                refresh=True, backends=[trial["api"]], deadline_s=trial["deadline_s"]
            )
            took = time.monotonic() - start
            rows = _driver_rows([r for r in report.tried if r.backend == trial["api"]])
            found = sorted({f"{r.status}/{r.code}" for r in rows})
            if not rows or not {(r.status, r.code) for r in rows} <= _expected(trial):
                wrong.append(f"probe said {found}, {[r.reason for r in rows][:2]}")
            if not _fired(own) and trial["must_fire"]:
                wrong.append("the fault was not carried out")
            if took > trial["deadline_s"] + OVERRUN_S:
                wrong.append(f"took {took:.2f} s of {trial['deadline_s']} s")
            wrong += self._compute(trial, is_refused=all(r.status != "ok" for r in rows))
            wait_for_looks(LOOK_S)
            wrong += [f"left {what}" for what in self._left(before)]
        return {"wrong": wrong, "found": found, "probe_s": round(took, 3)}

    def _left(self, before: Mapping[str, Any]) -> list[str]:
        if self.is_first or _has_driver():  # what is made once, or belongs to a driver in use
            self.is_first = False
            before = {k: v for k, v in before.items() if not isinstance(v, int)}
        return left_behind(before, self.temporary)

    def _compute(self, trial: Mapping[str, Any], *, is_refused: bool) -> list[str]:
        """Run the model and single operations wherever `auto` puts them."""
        wrong: list[str] = []
        policy = gpuedge.Policy(allow_software=True, decide="load")
        seed = trial["seed"]
        with gpuedge.Session(self.model, device="auto", policy=policy) as session:
            feeds = images(seed)
            for right in self.answers[seed][:3]:
                got = answered(session, next(feeds))
                if got.tobytes() != right.tobytes():
                    wrong.append(f"the model gave {got[:3]} instead of {right[:3]}")
            chosen = session.explain().device
        if is_refused and chosen != "cpu":
            wrong.append(f"a refused driver was chosen: {chosen}")
        for at, got in enumerate(single_operations(seed, "auto")):
            if got.tobytes() != self.operations[seed][at].tobytes():
                wrong.append(f"operation {at} differs from the CPU's")
        return wrong

    def serve(self, trial: Mapping[str, Any], own: Path) -> dict[str, Any]:
        """Open a good driver that gets its fault in service, and make requests all the same."""
        environment = self._environment(trial, own)
        self._learn(trial["api"], environment, own)
        before = state(self.temporary)
        wrong: list[str] = []
        with variables(environment), _patience(trial["watchdog_s"]):
            health, codes, closing_s = self._requests(trial, wrong)
        if not _fired(own):
            wrong.append("the fault was not carried out")
        if not set(codes) <= set(trial["codes"]) or (trial["codes"] and not codes):
            details = [*[f.detail for f in health.failures][:2], self.early, health.reason]
            wrong.append(f"health says {codes} {details}, not {trial['codes']}")
        if trial["isolation"] == "process":
            wrong += [f"left {what}" for what in self._left(before)]
            if _has_driver():
                wrong.append("the driver is in the application's own process")
        return {
            "wrong": wrong, "found": codes or [health.state], "closing_s": closing_s,
            "requests": [health.on_device, health.on_cpu], "is_used_up": True,
        }  # fmt: skip

    def _learn(self, api: str, environment: Mapping[str, str], own: Path) -> None:
        """Put the verdict of a good driver into the trial's cache; probe it where none has."""
        names = ("VK_DRIVER_FILES", "GPUEDGE_EGL", "__EGL_VENDOR_LIBRARY_FILENAMES")
        key = f"{api}-" + "-".join(Path(environment.get(n, "")).stem for n in names)
        known, mine = self.folder.parent / "verdicts" / key, own / "cache"
        clean = {n: v for n, v in environment.items() if not n.startswith("GPUFAULT") or n in KEPT}
        with variables(clean):
            os.environ.pop("GPUFAULT", None)
            if known.is_dir():
                shutil.copytree(known, mine, dirs_exist_ok=True)
            report = gpuedge.probe(backends=[api], deadline_s=60)
            if not report.best:
                raise RuntimeError(f"the good driver is refused: {report}")
            if not known.is_dir():
                beside = known.with_name(f"{key}.{os.getpid()}")
                shutil.copytree(mine, beside)
                try:
                    beside.rename(known)
                except OSError:
                    shutil.rmtree(beside)

    def _requests(self, trial: Mapping[str, Any], wrong: list[str]) -> tuple[Any, list[str], float]:
        policy = gpuedge.Policy(
            crosscheck=1.0 if trial["is_data"] else 0.0, watchdog_s=trial["watchdog_s"]
        )
        session, early = self._open(trial, policy)
        feeds = images(trial["seed"])
        for at, right in enumerate(self.answers[trial["seed"]]):
            got = answered(session, next(feeds))
            if got.tobytes() != right.tobytes():
                wrong.append(f"request {at} got {got[:3]} instead of {right[:3]}")
        health = session.health
        codes = {f.code for f in health.failures}
        codes |= early
        if not health.failed:  # it failed before the first request: the reason tells of it
            codes |= {code for code in TELLING if SENTENCES[code] in health.reason}
            codes |= {c.code for c in session.explain().record.candidates} & set(TELLING)
        start = time.monotonic()
        session.close()
        gpuedge_close_all()
        return health, sorted(codes), round(time.monotonic() - start, 3)

    def _open(self, trial: Mapping[str, Any], policy: gpuedge.Policy) -> tuple[Any, set[str]]:
        """Open the device by name; where it fails that early, go on with whatever is left."""
        try:
            session = gpuedge.Session(
                self.model, device=trial["api"], isolation=trial["isolation"], policy=policy,
                fallback="cpu",
            )  # fmt: skip
        except (DeviceError, NoUsableDeviceError) as error:
            codes = {code for code in TELLING if SENTENCES[code] in str(error)}
            if isinstance(error, DeviceError) and error.reason is not None:
                codes.add(error.reason.code)
            elif not codes:
                named = {OutOfMemoryError: "out-of-memory", DeviceLostError: "device-lost"}
                codes = {named.get(type(error), "open-failed")}
            self.early = str(error)
            return gpuedge.Session(self.model, device="auto"), codes
        return session, set()


OVERRUN_S = 2.0
"""Above the deadline: seven applications share the machine. Tests of probing are tighter."""

TELLING = (
    "worker-died", "device-hung", "device-lost", "out-of-memory", "compile-failed", "run-failed",
    "open-failed", "drifted",
)  # fmt: skip
"""Codes whose sentences a reason may begin with."""

KEPT = ("GPUFAULT_VENDOR", "GPUFAULT_MANIFEST", "GPUFAULT_DRIVER", "GPUFAULT_TEXELS")


def gpuedge_close_all() -> None:
    """Close pooled devices, as leaving the process does."""
    from gpuedge.runtime.devices import POOL

    POOL.close()


def _driver_rows(rows: list[Any]) -> list[Any]:
    """Leave out that another API under WebGPU has no device, which is so by the environment."""
    empty = ("absent", "no-device")
    return [r for r in rows if (r.status, r.code) != empty] or rows


def _expected(trial: Mapping[str, Any]) -> set[tuple[str, str]]:
    own = {(trial["status"], code) for code in trial["codes"]}
    return own | {(status, code) for status, code in trial["others"]}


def _fired(own: Path) -> bool:
    log = own / "fired.log"
    return log.is_file() and log.stat().st_size > 0


def _has_driver() -> bool:
    """Tell whether a library of the kit was loaded into this very process."""
    return "libgpufault_" in Path("/proc/self/maps").read_text(errors="replace")


def main() -> None:
    """Serve trials until the standard input ends."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    os.set_inheritable(answers.fileno(), False)
    folder = Path(os.environ["MATRIX_FOLDER"])
    trace = open(folder / "crash.txt", "w")  # noqa: SIM115 - for as long as the process lives
    faulthandler.enable(trace)
    application = Application(folder)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        trial = json.loads(line)
        try:
            result = application.run(trial)
        except BaseException as error:
            text = "".join(traceback.format_exception(error))[-3000:]
            result = {"wrong": [f"raised {type(error).__name__}: {error}"], "trace": text,
                      "found": ["raised"], "is_used_up": True}  # fmt: skip
        result["threads"] = [t.name for t in threading.enumerate()]
        answers.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
