"""The fault kit for Vulkan and wgpu: faults fire where they say, and a probe knows each by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import daily
import kit
import kit_vulkan
import pytest
from kit import Cell, Fault, Kit
from required import absent

import gpuedge

pytestmark = daily.day(3, of=4)

PATIENT_S, SHORT_S = 40.0, 6.0
"""Deadlines: one that only a hang reaches, and one for hangs."""

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The kit, compiled."""
    if not kit_vulkan.good_manifest(None).is_file():
        absent("lavapipe is not installed: apt-get install -y mesa-vulkan-drivers libvulkan1")
    try:
        return kit.build(tmp_path_factory.mktemp("kit"))
    except kit.BuildError as error:
        if "no C compiler" not in str(error):
            raise
        absent(str(error))
        raise


CHOSEN = (
    # ends of the process, at every point
    ("segv@load", "vulkan"),
    ("abort@create", "wgpu"),
    ("quit0@read", "wgpu"),
    ("fpe@teardown", "vulkan"),
    # time
    ("hang@submit:3", "vulkan"),
    ("leak-lock@create", "wgpu"),
    # harm done to the process
    ("flood@submit", "vulkan"),
    ("close-fds@compile", "vulkan"),
    ("daemon@load", "vulkan"),
    # what names the driver
    ("missing-symbol@load", "vulkan"),
    # numbers returned
    ("lost@submit:3", "vulkan"),
    ("oom-device@allocate:1+", "vulkan"),
    ("code17@enumerate:1+", "vulkan"),
    # numbers computed
    ("wrong@compile:1+", "wgpu"),
    ("nan@read:3", "wgpu"),
    ("stale@read:2+", "vulkan"),
    # lists and strings
    ("devices-incomplete@enumerate:1+", "vulkan"),
    ("name-json@enumerate:1+", "vulkan"),
    ("ill@instance", "vulkan"),
    ("bus@compile", "wgpu"),
    ("stackoverflow@allocate", "vulkan"),
    ("exit0@submit", "vulkan"),
    ("exit0@finish", "wgpu"),
    ("denormals@create", "wgpu"),
    ("signal-mask@create", "wgpu"),
    ("wrong-format@load", "wgpu"),
    ("oom-device@create", "wgpu"),
    ("compile-failed@compile", "vulkan"),
    ("untouched-output@compile:1+", "wgpu"),
    ("untouched-output@submit:1+", "vulkan"),
    ("unstable-zero@read:1+", "vulkan"),
    ("queues-huge@enumerate:1+", "vulkan"),
    ("memory-index@enumerate:1+", "vulkan"),
)
"""Cells of each family of faults; `tools/fault_matrix.py` runs all there are."""

DAYS = 4
"""So many days it takes until each of them was one of the day."""

VERDICTS = {
    "fpe@teardown vulkan": ("crashed", "crashed"),
    "stackoverflow@allocate vulkan": ("crashed", "crashed"),
    "ill@instance vulkan": ("crashed", "crashed"),
    "hang@submit:3 vulkan": ("timeout", "deadline"),
}
"""Verdicts of cells that `kit.cells` does not have."""


def cell_of(text: str, api: str) -> Cell:
    known = {str(cell): cell for cell in kit_vulkan.cells()}
    if (found := known.get(f"{text} {api}")) is not None:
        return found
    status, code = VERDICTS[f"{text} {api}"]
    return Cell(Fault.parse(text), api, status, (code,))


def put_in_the_way(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.driver
@pytest.mark.parametrize(
    ("text", "api"),
    daily.some(CHOSEN, DAYS),
    ids=lambda value: value,
)
def test_probe_names_the_fault(
    text: str, api: str, built: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = cell_of(text, api)
    log = tmp_path / "fired"
    put_in_the_way(monkeypatch, built.environment(api, cell.fault))
    monkeypatch.setenv("GPUFAULT_LOG", str(log))
    monkeypatch.setenv("GPUFAULT_SECONDS", "5")
    late = cell.status == "timeout"
    report = gpuedge.probe(refresh=True, deadline_s=SHORT_S if late else PATIENT_S)
    row = report.tried[0]
    assert cell.accepts(row.status, row.code), row.reason
    if cell.fault.name != "wrong-format":  # no code of the kit runs there
        fired = log.read_text().splitlines()[0].split()[0]
        assert fired == f"{cell.fault.name}@{cell.fault.point}"
        pids = {int(line.split()[2]) for line in log.read_text().splitlines()}
        assert os.getpid() not in pids
    if not late:
        assert row.evidence.get("is_unfinished") is not True


@pytest.mark.driver
@pytest.mark.parametrize("api", ["vulkan", "wgpu"])
def test_without_a_fault_both_carriers_pass_everything_on(
    api: str, built: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "fired"
    put_in_the_way(monkeypatch, built.environment(api, "nothing@load:1+"))  # the driver
    put_in_the_way(monkeypatch, {**_layer_of(built), "GPUFAULT_LOG": str(log)})
    row = gpuedge.probe(refresh=True, deadline_s=PATIENT_S).tried[0]
    assert (row.status, row.code) == ("ok", "ok"), row.reason
    # Both are loaded, and nowhere else does a fault of that name act.
    assert len(log.read_text().splitlines()) >= 2


REPEATED = """
import os
import numpy as np
from gpuedge import backends
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.probing.kat import elementwise_graph
backend = backends.load(os.environ["GPUEDGE_BACKENDS"])
info = backend.enumerate(backend.candidates(os.environ)[0])[0]
device = backend.open(info)
graph, ones = elementwise_graph((4, 4)), np.ones((4, 4), np.float32)
for _ in range(5):
    executable = GpuExecutor(device, "test").compile(graph)
    (found,) = executable.run({name: ones for name in "abc"}).values()
    print((found == 2.0).all())
    executable.close()
device.close()
"""


@pytest.mark.driver
@pytest.mark.parametrize("api", ["vulkan", "wgpu"])
def test_result_is_spoiled_where_memory_held_the_same_before(
    api: str, built: Kit, tmp_path: Path
) -> None:
    """Each run has buffers of its own, in the place of those before, and gives the same numbers."""
    read = 4 if api == "wgpu" else 3  # there opening the device asks a kernel for its subgroup
    environ = {**os.environ, **built.environment(api, f"nan@read:{read}")}
    done = subprocess.run(
        [sys.executable, "-c", REPEATED],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "False", "True", "True"], done.stderr


def _layer_of(built: Kit) -> dict[str, str]:
    whole = built.environment("vulkan", "nothing@submit")
    return {name: whole[name] for name in ("VK_LAYER_PATH", "VK_INSTANCE_LAYERS")}


# --- the header ---------------------------------------------------------------------------------

CALLS = 400
PROGRAM = f"""
#include "fault.h"
int main(void) {{
    for (int call = 1; call <= {CALLS}; call++) {{
        fault_due("elsewhere");
        if (fault_due("submit")) printf("%d\\n", call);
    }}
    return 0;
}}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, built: Kit) -> Path:
    """A program that says at which calls a fault is due."""
    folder = tmp_path_factory.mktemp("program")
    source, made = folder / "main.c", folder / "main"
    source.write_text(PROGRAM)
    command = ["cc", "-I", str(HERE), str(source), "-o", str(made), "-pthread"]
    subprocess.run(command, check=True, timeout=280)
    return made


def due(program: Path, fault: str, **variables: str) -> list[int]:
    environ = {"GPUFAULT": fault, **variables}
    done = subprocess.run(
        [program], env=environ, capture_output=True, text=True, check=True, timeout=280
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nothing@submit", [1]),
        ("nothing@submit:7", [7]),
        ("nothing@submit:398+", [398, 399, 400]),
        ("nothing@read", []),
        ("nothing@submit~0", []),
        ("nothing@submit~1", list(range(1, CALLS + 1))),
        ("", []),
    ],
)
def test_calls_at_which_a_fault_is_due(program: Path, fault: str, expected: list[int]) -> None:
    assert due(program, fault) == expected


def test_chance_is_drawn_from_the_seed(program: Path) -> None:
    drawn = [due(program, "nothing@submit~0.25", GPUFAULT_SEED=str(n)) for n in range(8)]
    assert drawn[3] == due(program, "nothing@submit~0.25", GPUFAULT_SEED="3")
    assert len({tuple(one) for one in drawn}) == 8
    # 3200 draws of 0.25: 800 expected, standard deviation sqrt(3200 * 0.25 * 0.75) = 24.5.
    assert abs(sum(map(len, drawn)) - 800) < 6 * 24.5


@pytest.mark.parametrize("text", ["segv", "@load", "segv@", "segv@load:0", "a@b:2-", "a@b~1.5"])
def test_text_that_is_no_fault_is_refused(program: Path, text: str) -> None:
    environ = {"GPUFAULT": text}
    done = subprocess.run(
        [program], env=environ, capture_output=True, text=True, check=False, timeout=280
    )
    assert (done.returncode, done.stdout) == (97, "")
    assert text in done.stderr


# --- the table ------------------------------------------------------------------------------------


def test_table_of_cells_is_sound() -> None:
    cells = kit_vulkan.cells()
    names = [str(cell) for cell in cells]
    assert len(names) == len(set(names)) >= 300
    for cell in cells:
        kind = kit.FAULTS[cell.fault.name]
        assert cell.fault.point in kind.points, cell
        assert cell.api in kind.apis, cell
        assert Fault.parse(str(cell.fault)) == cell.fault
        assert cell.status in gpuedge.core.reasons.STATUSES, cell
        assert set(cell.codes) <= set(gpuedge.core.reasons.SENTENCES), cell
    shown = {cell.fault.name for cell in cells}
    faulty = {name for name, kind in kit.FAULTS.items() if "vulkan" in kind.apis}
    # Whether a probe's work still runs when it is waited for is a matter of luck.
    assert shown == faulty - {"nothing", "lost-running"}


def test_source_that_does_not_compile_says_why(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { return nothing; }\n")
    with pytest.raises(kit.BuildError, match=r"broken\.c does not compile:(.|\n)*nothing"):
        kit._compile("cc", source, tmp_path / "broken.so", ())


def test_without_a_compiler_the_kit_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kit.BuildError, match="apt-get install"):
        kit.build(tmp_path)
