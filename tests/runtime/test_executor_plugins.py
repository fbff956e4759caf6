"""Executors of another package: probed, opened, chosen and left as GPUs are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import daily
import executor_fakes
import pytest

HERE = Path(__file__).parent
START = """
import os
os.environ["APPLICATION"] = str(os.getpid())
import sys, numpy as np, onnx, gpuedge
from onnx import helper

def model(*ops, shape=(2, 3)):
    names = ["x", *(f"v{i}" for i in range(1, len(ops))), "y"]
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in zip(ops, names, names[1:])]
    sides = [helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

x = np.float32([[-1, 2, -3], [4, -5, 6]])
right = np.maximum(x, 0) * -1
MODEL = model("Relu", "Neg")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the fakes."""
    folder = tmp_path_factory.mktemp("site")
    executor_fakes.install(folder)
    return folder


def ran(package: Path, program: str, cache: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run a program with the fakes installed."""
    environ = {
        **os.environ, "GPUEDGE_BACKENDS": "", "GPUEDGE_CACHE_DIR": str(cache), "GPUEDGE_DEVICE": "",
        "PYTHONPATH": os.pathsep.join([str(package), str(HERE), str(HERE.parents[1])]), **variables,
    }  # fmt: skip
    for name in ("PYTHONDONTWRITEBYTECODE", "GPUEDGE_DEVICE"):
        environ.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", START + program],
        capture_output=True, text=True, timeout=280, check=False, env=environ,
    )  # fmt: skip


def done(package: Path, program: str, cache: Path, **variables: str) -> list[str]:
    """Run a program that ends well; return the lines that it prints."""
    run = ran(package, program, cache, **variables)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


# -- probing -----------------------------------------------------------------------------------

PROBE = """
report = gpuedge.probe(backends=sys.argv[1:] or {names!r}, deadline_s=60)
for row in report.tried:
    print(row.backend, row.status, row.code, row.evidence.get("step"), row.reason, sep="|")
"""


def probed(package: Path, cache: Path, *names: str) -> dict[str, list[str]]:
    """Probe some fakes; return status, code, step and reason of each."""
    lines = done(package, PROBE.format(names=list(names)), cache)
    rows = [line.split("|", 4) for line in lines]
    assert [row[0] for row in rows] == list(names)
    return {name: row for name, *row in rows}


def test_right_executors_are_usable_and_others_cost_their_own_row(
    package: Path, tmp_path: Path
) -> None:
    rows = probed(package, tmp_path, "right", "no_module", "no_class", "refuses", "part", "kept")
    assert rows["right"] == ["ok", "ok", "None", "answered with the right numbers"]
    assert rows["part"][0] == rows["kept"][0] == "ok"
    for name, text in {
        "no_module": "No module named 'module_that_is_not_there'",
        "no_class": "AttributeError",
    }.items():
        assert rows[name][:2] == ["broken", "open-failed"] and text in rows[name][3], rows[name]
    assert rows["refuses"][:2] == ["broken", "kernel-failed"]
    assert "it runs no known answer: it has no Mul" in rows["refuses"][3]


@daily.day(0, of=4)
def test_what_lists_nonsense_costs_its_own_row(package: Path, tmp_path: Path) -> None:
    rows = probed(package, tmp_path, "lists_many", "lists_odd", "lists_mute", "leave_load", "right")
    for name, text in {
        "lists_many": "ValueError: it lists more than 256 drivers",
        "lists_odd": "key: ",
        "lists_mute": "SpeechlessError",
        "leave_load": "SystemExit: no load today",
    }.items():
        assert rows[name][:2] == ["broken", "open-failed"] and text in rows[name][3], rows[name]
    assert rows["right"][0] == "ok"


BROKEN = {
    "encoding": b"[gpuedge.executors]\nbad = x:Y\xff\n",
    "line": b"[gpuedge.backends]\njustaword\n",
    "value": b"[gpuedge.printers]\nbad = a b c:!!\n",
}
MACHINE = """
from gpuedge.cli.main import main
for verb in (["probe"], ["db", "why", "--device", "right:0"], ["doctor"]):
    print("exit code", main(verb))
try:
    gpuedge.relu(x, device="absent")
except gpuedge.UnknownDeviceError:
    print("unknown")
"""


@daily.day(3, of=4)
def test_damaged_packages_cost_themselves_only(tmp_path: Path) -> None:
    executor_fakes.install(tmp_path, "right")
    for name, text in BROKEN.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_bytes(text)
    lines = done(tmp_path, MACHINE, tmp_path / "cache", VK_DRIVER_FILES="/nonexistent")
    assert lines.count("exit code 0") == 3 and lines[-1] == "unknown", lines
    assert any("fake right (right:0)" in line for line in lines)
    told = "".join(line.split("│")[-2] if "│" in line else line for line in lines)
    assert all(f"{name}-1.0.dist-info" in told for name in BROKEN), told


LIED = {
    "shape": "not float32[2,7,97,3]", "dtype": "is float64[", "nan": "elementwise",
    "wrong": "elementwise", "nothing": "NoneType, no array", "none": "not NoneType",
    "list": "not list",
}  # fmt: skip


@daily.day(0, of=4)
def test_wrong_answers_condemn_an_executor(package: Path, tmp_path: Path) -> None:
    names = [f"lies_{lie}" for lie in (*LIED, "unstable")]
    rows = probed(package, tmp_path, *names)
    for lie, text in LIED.items():
        status, code, _, reason = rows[f"lies_{lie}"]
        assert (status, code) == ("wrong", "wrong-numbers") and text in reason, reason
    assert rows["lies_unstable"][0] == "wrong"


CODES = {"load": "open-failed", "open": "open-failed", "supports": "compile-failed",
         "compile": "compile-failed", "run": "run-failed", "close": "device-lost"}  # fmt: skip
TOLD = {"load": "enumerate", "supports": "build", "compile": "build"}


@daily.day(3, of=4)
def test_what_raises_is_broken_and_says_so(package: Path, tmp_path: Path) -> None:
    names = [f"raise_{step}" for step in executor_fakes.STEPS] + ["missing_load", "missing_run"]
    rows = probed(package, tmp_path, *names)
    for step in executor_fakes.STEPS:
        status, code, _, reason = rows[f"raise_{step}"]
        assert (status, code) == ("broken", CODES[step]), rows[f"raise_{step}"]
        assert f"no {step} today" in reason, reason
    for step in ("load", "run"):
        assert "a_package_that_is_not_there" in rows[f"missing_{step}"][3]


def test_what_kills_its_process_has_a_row_of_its_own(package: Path, tmp_path: Path) -> None:
    names = [f"kill_{step}" for step in executor_fakes.STEPS] + ["exit_run", "right"]
    rows = probed(package, tmp_path, *names)
    for step in executor_fakes.STEPS:
        status, code, at, _ = rows[f"kill_{step}"]
        assert (status, code, at) == ("crashed", "crashed", TOLD.get(step, step)), step
    assert rows["exit_run"][:3] == ["crashed", "exited", "run"]
    assert rows["right"][0] == "ok"


@pytest.mark.long
def test_what_hangs_is_given_up_and_has_a_row_of_its_own(package: Path, tmp_path: Path) -> None:
    names = [f"hang_{step}" for step in executor_fakes.STEPS] + ["right"]
    rows = probed(package, tmp_path, *names)
    for step in executor_fakes.STEPS:
        status, code, at, reason = rows[f"hang_{step}"]
        assert (status, code, at) == ("timeout", "deadline", TOLD.get(step, step)), reason
        assert "it hung" in reason
    assert rows["right"][0] == "ok"


# -- a device by name --------------------------------------------------------------------------


def test_named_executor_runs_whole_models_and_names_itself(package: Path, tmp_path: Path) -> None:
    program = """
with gpuedge.Session(MODEL, device="right", fallback="error") as session:
    assert session.run({"x": x})["y"].tobytes() == right.astype(np.float32).tobytes()
    (row,) = session.placement
    print(row.device, row.kernel, row.ops)
    print(session.health.state, session.health.on_device, session.health.crosschecks)
    print(session.explain().device, session.profile({"x": x})["steps"][0]["kernel"])
with gpuedge.open("right") as device:
    print(device, device.caps, gpuedge.relu(x, device=device).tolist())
    a = gpuedge.array(x, device=device)
    print((a + a).numpy().tolist())
"""
    assert done(package, program, tmp_path) == [
        "right:0 Fake ('Relu', 'Neg')", "ok 1 1", "right:0 Fake",
        "Device('right:0', 'fake right') None [[0.0, 2.0, 0.0], [4.0, 0.0, 6.0]]",
        "[[-2.0, 4.0, -6.0], [8.0, -10.0, 12.0]]",
    ]  # fmt: skip


@daily.day(1, of=4)
def test_what_an_executor_refuses_runs_on_the_cpu(package: Path, tmp_path: Path) -> None:
    program = """
mixed = model("Relu", "Sigmoid", "Neg")
with gpuedge.Session(mixed, device="part") as session:
    got = session.run({"x": x})["y"]
    print([(row.device, row.ops) for row in session.placement], session.health.crosschecks_failed)
    assert np.allclose(got, -1 / (1 + np.exp(-np.maximum(x, 0).astype(float))), atol=1e-6)
try:
    gpuedge.Session(mixed, device="part", fallback="error")
except gpuedge.UnsupportedOpError as error:
    print("it has no Sigmoid" in str(error))
"""
    assert done(package, program, tmp_path) == [
        "[('part:0', ('Relu',)), ('cpu', ('Sigmoid',)), ('part:0', ('Neg',))] 0", "True",
    ]  # fmt: skip


@daily.day(2, of=4)
def test_memory_of_an_executor_never_becomes_the_callers(package: Path, tmp_path: Path) -> None:
    program = """
for name in ("kept", "owned"):
    with gpuedge.Session(MODEL, device=name, fallback="error") as session:
        first = session.run({"x": x})["y"]
        session.run({"x": x * 2})
        print(first.tolist() == right.tolist(), first.flags.writeable)
with gpuedge.Session(MODEL, device="later_writes") as session:
    print(session.run({"x": x})["y"].tolist() == right.tolist(), x[0, 0] == -1)
    print(session.health.failures[0].detail)
"""
    assert done(package, program, tmp_path) == [
        "True True", "True True", "True True", "ValueError: assignment destination is read-only",
    ]  # fmt: skip


@daily.day(1, of=4)
def test_isolation_is_refused(package: Path, tmp_path: Path) -> None:
    program = """
try:
    gpuedge.Session(MODEL, device="right", isolation="process")
except gpuedge.UsageError as error:
    print(error.code, error.what, error.known, sep="|")
with gpuedge.config(backends=["right"], isolation="process"), gpuedge.Session(MODEL) as session:
    session.run({"x": x})
    (row,) = [row for row in session.explain().rows if row.device == "right:0"]
    print(row.status, row.code, row.reason)
"""
    why = "worker processes carry kernels, not graphs, so that executors of plug-ins stay here"
    assert done(package, program, tmp_path) == [
        f"GE-200|right:0 runs in this process only.|{why}",
        f"rejected disabled {why}",
    ]


@daily.day(2, of=4)
def test_float16_arithmetic_is_refused(package: Path, tmp_path: Path) -> None:
    program = """
try:
    gpuedge.Session(MODEL, device="right", policy=gpuedge.Policy(arithmetic="float16"))
except gpuedge.KernelLimitError as error:
    print(error.known)
"""
    assert done(package, program, tmp_path) == [
        "an executor of a plug-in computes as its runtime does"
    ]


# -- failures in service -----------------------------------------------------------------------

FAULT = """
policy = gpuedge.Policy(watchdog_s={watchdog})
with gpuedge.Session(MODEL, device={name!r}, policy=policy) as session:
    assert session.run({{"x": x}})["y"].tobytes() == right.astype(np.float32).tobytes()
    health = session.health
    print(health.on_device, health.on_cpu, health.failures[-1].code, health.failures[-1].detail,
          sep="|")
    assert session.run({{"x": x}})["y"].tobytes() == right.astype(np.float32).tobytes()
try:
    gpuedge.Session(MODEL, device={name!r}, policy=policy, fallback="error").run({{"x": x}})
except gpuedge.DeviceError as error:
    print(type(error).__name__)
except gpuedge.NoUsableDeviceError:
    print("no more")
os._exit(0)  # a thread is stuck
"""
FAULTS = {
    "raise_run": ("run-failed", "FakeError: no run today"),
    "missing_run": ("run-failed", "ModuleNotFoundError"),
    "raise_compile": ("compile-failed", "FakeError: no compile today"),
    "raise_supports": ("compile-failed", "FakeError: no supports today"),
    "lies_shape": ("wrong-numbers", "the output 'y' is float32[6,1], not float32[2,3]"),
    "lies_dtype": ("wrong-numbers", "the output 'y' is float64[2,3], not float32[2,3]"),
    "lies_nothing": ("wrong-numbers", "the output 'y' is NoneType, no array"),
    "lies_mapping": ("run-failed", "FakeError: no look-ups today"),
    "lies_speechless": ("run-failed", "SpeechlessError"),
    "leave_run": ("run-failed", "SystemExit: no run today"),
    "leave_supports": ("compile-failed", "SystemExit: no supports today"),
    "leave_compile": ("compile-failed", "SystemExit: no compile today"),
    "hang_run": ("device-hung", "did not answer within"),
}


@pytest.mark.parametrize("fault", daily.some(FAULTS))
def test_request_that_an_executor_fails_is_answered_by_the_cpu(
    package: Path, tmp_path: Path, fault: str
) -> None:
    program = FAULT.format(name=f"later_{fault}", watchdog=0.3 if "hang" in fault else None)
    first, second = done(package, program, tmp_path)
    on_device, on_cpu, code, detail = first.split("|", 3)
    assert (on_device, on_cpu) == ("0", "1")
    assert code == FAULTS[fault][0] and FAULTS[fault][1] in detail, first
    assert second.endswith("Error") or second == "no more"


@pytest.mark.parametrize("fault", daily.some(["leave", "mute"]))
def test_device_that_does_not_open_is_an_error_of_ours(
    package: Path, tmp_path: Path, fault: str
) -> None:
    program = f"""
for fallback in ("cpu", "error"):
    try:
        gpuedge.Session(MODEL, device="later_{fault}_open", fallback=fallback)
    except gpuedge.DriverError as error:
        print(error.code, error.reason.code, error.known)
print(gpuedge.relu(x, device="right").tolist() == np.maximum(x, 0).tolist())
"""
    said = {"leave": "SystemExit: no open today", "mute": "SpeechlessError"}[fault]
    assert done(package, program, tmp_path) == [f"GE-405 open-failed {said}"] * 2 + ["True"]


@pytest.mark.parametrize("lie", daily.some(["nan", "wrong"]))
def test_wrong_numbers_are_found_by_the_crosscheck(package: Path, tmp_path: Path, lie: str) -> None:
    program = f"""
with gpuedge.Session(MODEL, device="later_lies_{lie}") as session:
    assert session.run({{"x": x}})["y"].tobytes() == right.astype(np.float32).tobytes()
    print(session.health.state, session.health.crosschecks_failed, session.explain().device)
"""
    assert done(package, program, tmp_path) == ["demoted 1 cpu"]


@daily.day(1, of=4)
def test_hang_while_compiling_is_given_up(package: Path, tmp_path: Path) -> None:
    program = """
import gpuedge.safety.watchdog as watchdog
watchdog.RUN_LIMIT_S = 0.5
with gpuedge.Session(MODEL, device="later_hang_compile") as session:
    assert session.run({"x": x})["y"].tobytes() == right.astype(np.float32).tobytes()
    print(session.health.failures[-1].code)
os._exit(0)
"""
    assert done(package, program, tmp_path) == ["device-hung"]


@daily.day(2, of=4)
def test_crash_in_the_application_is_remembered(package: Path, tmp_path: Path) -> None:
    program = """
with gpuedge.Session(MODEL, device="later_kill_run") as session:
    session.run({"x": x})
"""
    for _ in range(2):
        assert ran(package, program, tmp_path).returncode == -11
    after = ran(package, program, tmp_path)
    assert after.returncode == 1 and "NoUsableDeviceError" in after.stderr
    assert "gpuedge cache clear --crashes" in after.stderr
    told = "using this driver ended earlier processes"
    (row,) = probed(package, tmp_path, "later_kill_run").values()
    assert row[:2] == ["blocked", "crash-blocklist"] and told in row[3]


# -- auto --------------------------------------------------------------------------------------

AUTO = """
import time
big = model(*["Erf"] * 30, shape=({size}, {size}))
x = np.ones(({size}, {size}), np.float32)
ends = time.monotonic() + 60
with gpuedge.config(backends=[{name!r}]), gpuedge.Session(big) as session:
    expected = gpuedge.Session(big, device="cpu").run({{"x": x}})["y"]
    while time.monotonic() < ends:
        assert session.run({{"x": x}})["y"].tobytes() == expected.tobytes()
        (row,) = [r for r in session.explain().rows if r.device != "cpu"]
        if row.code in ("selected", "slower", "measured-slower", "too-little", "unsupported-op",
                        "drifted"):
            break
    print(session.explain().device, row.code, session.health.state, session.health.failed)
    print(row.reason)
"""


@pytest.mark.parametrize(
    ("name", "size", "told"),
    [
        ("quick", 800, "quick:0 selected ok 0"),
        pytest.param("slow", 300, "cpu measured-slower cpu 0", marks=pytest.mark.long),
        pytest.param("later_lies_wrong", 300, "cpu drifted cpu 1", marks=pytest.mark.long),
        ("later_refuses", 300, "cpu unsupported-op cpu 1"),
    ],
)
def test_auto_takes_what_is_faster_and_right(
    package: Path, tmp_path: Path, name: str, size: int, told: str
) -> None:
    assert done(package, AUTO.format(name=name, size=size), tmp_path)[0] == told


def test_executors_that_are_not_named_are_not_looked_at(package: Path, tmp_path: Path) -> None:
    program = """
print("executor_fakes" in sys.modules, {row.backend for row in gpuedge.probe().tried} & {"right"})
"""
    assert done(package, program, tmp_path, VK_DRIVER_FILES="/nonexistent") == ["False set()"]


@daily.day(1, of=4)
def test_what_is_about_kernels_says_that_there_are_none(package: Path, tmp_path: Path) -> None:
    program = """
try:
    gpuedge.check(MODEL, device="right")
except gpuedge.NoUsableDeviceError as error:
    print(error.what)
with gpuedge.config(backends=["right"]):
    print([device.device for device in gpuedge.check(MODEL).devices])
"""
    assert done(package, program, tmp_path) == [
        "The device right:0 takes whole graphs: no kernels can be planned for it.", "[]",
    ]  # fmt: skip


@pytest.mark.parametrize("harm", daily.some(["raise", "hang"]))
def test_executor_that_does_not_close_holds_up_nothing(
    package: Path, tmp_path: Path, harm: str
) -> None:
    program = f"""
import logging, gpuedge.executors.plugin as plugin
logging.basicConfig(stream=sys.stdout, format="%(message)s")
plugin.CLOSE_FAILED_S = 0.3
with gpuedge.open("later_{harm}_close") as device:
    assert gpuedge.relu(x, device=device)[0, 1] == 2
print(device.executor.released, device.executor.is_hung)
"""
    *_, first, second = done(package, program, tmp_path)  # a slow machine's probe warns
    assert first.startswith(f"later_{harm}_close:0: it did not close: ")
    assert second == f"True {harm == 'hang'}"


@daily.day(2, of=4)
def test_policies_about_kernels_change_nothing(package: Path, tmp_path: Path) -> None:
    program = """
for field in ({"tune": "fast"}, {"storage": "float16"}, {"storage": "fixed16"},
              {"rewrites": False}, {"max_memory_bytes": 1}):
    policy = gpuedge.Policy(**field)
    with gpuedge.Session(MODEL, device="right", fallback="error", policy=policy) as session:
        assert session.run({"x": x})["y"].tobytes() == right.astype(np.float32).tobytes(), field
        print(session.placement[0].device)
"""
    assert done(package, program, tmp_path) == ["right:0"] * 5
