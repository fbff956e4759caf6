"""What is no fault is refused, by the kit and by its C side; the log tells only what happened."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import kit
import kit_gl
import pytest
from kit import Fault, Kit

HERE = Path(__file__).parent

PROGRAM = """
#define FAULT_MORE_NAMES "sulk",
#define FAULT_MORE_POINTS "elsewhere",
#include "fault.h"
int main(void) {
    fault_point("submit");
    uint64_t call = fault_is("sulk") ? fault_due("elsewhere") : 0;
    if (call != 0) fault_log("elsewhere", call);
    puts("went on");
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that comes by one point of the kit, and by one of its own."""
    folder = tmp_path_factory.mktemp("program")
    source, made = folder / "main.c", folder / "main"
    source.write_text(PROGRAM)
    command = ["cc", "-I", str(HERE), str(source), "-o", str(made), "-pthread"]
    subprocess.run(command, check=True, timeout=280)
    return made


def went(program: Path, fault: str, log: Path) -> subprocess.CompletedProcess[str]:
    environ = {"GPUFAULT": fault, "GPUFAULT_LOG": str(log), "GPUFAULT_SECONDS": "0"}
    return subprocess.run(
        [program], env=environ, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.mark.parametrize(
    ("api", "fault", "says"),
    [
        ("vulkan", "nope@submit", "vulkan has no fault 'nope'; there are nothing, segv"),
        ("vulkan", "lost@nowhere", "vulkan has lost at instance, .*, submit, read only"),
        ("vulkan", "lost@load", "vulkan has lost at instance"),
        ("wgpu", "wrong@submit", "wgpu has wrong at compile, read only"),
        ("gles31", "wrong@submit", "gles31 has wrong at compile, read only"),
        ("gles30", "map-failed@read", "gles30 has no fault 'map-failed'"),
        ("vulkan", "reset@submit", "vulkan has no fault 'reset'"),
        ("vulkan", "exitt@load", "no fault 'exitt'"),
        ("vulkan", "segv@load~1.5", "from 0 to 1"),
        ("vulkan", "segv", "not name@point"),
    ],
)
def test_combination_that_does_not_exist_is_refused(
    api: str, fault: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        Kit(tmp_path).environment(api, fault)


@pytest.mark.parametrize("api", ["metal", "vk", "", "gles", "gles32"])
def test_api_that_does_not_exist_is_refused(api: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="api must be one of vulkan, wgpu, gles31, gles30, gles20"):
        Kit(tmp_path).environment(api, "segv@load")


def test_good_driver_that_is_not_there_is_named(tmp_path: Path) -> None:
    base = {"VK_DRIVER_FILES": str(tmp_path / "radeon.json")}
    with pytest.raises(ValueError, match=r"VK_DRIVER_FILES names .*radeon\.json"):
        Kit(tmp_path).environment("vulkan", "lost@submit", base)
    (tmp_path / "radeon.json").write_text('{"ICD": {}}')
    with pytest.raises(ValueError, match=r"radeon\.json is no manifest .*library_path"):
        Kit(tmp_path).environment("vulkan", "segv@load", base)


def test_every_cell_is_one_that_exists() -> None:
    for cell in kit.cells():
        assert cell.fault.point in kit.points(cell.api, cell.fault.name), str(cell)
    numbers = ["exit7@load", "quit12@read", "code-1000123@submit", "code99@compile:3+"]
    for text in numbers:
        kit.check("vulkan", Fault.parse(text))
        kit.check("gles20", Fault.parse(text))


@pytest.mark.parametrize("text", ["nope@read", "lost@nowhere", "codex@read", "exit@load"])
def test_c_side_ends_the_process_where_it_knows_no_such_thing(
    program: Path, text: str, tmp_path: Path
) -> None:
    done = went(program, text, tmp_path / "log")
    assert (done.returncode, done.stdout) == (97, "")
    unknown = text.split("@")[1 if text == "lost@nowhere" else 0]
    assert f"'{unknown}'" in done.stderr
    assert not (tmp_path / "log").exists()


def test_c_side_knows_every_name_and_point_that_the_kit_does(program: Path, tmp_path: Path) -> None:
    texts = [f"{name}@unload" for name in {**kit.FAULTS, **kit_gl.FAULTS}]
    for text in [*texts, *(f"nothing@{point}" for point in kit.POINTS), "sulk@elsewhere"]:
        done = went(program, text, tmp_path / "log")
        assert (done.returncode, done.stdout) == (0, "went on\n"), (text, done.stderr)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nothing@submit", ["nothing@submit", "1"]),
        ("slow@submit", ["slow@submit", "1"]),
        ("sulk@elsewhere", ["sulk@elsewhere", "1"]),
        ("lost@submit", []),  # due, but this program has no number to return
        ("sulk@submit", []),
        ("nothing@submit:2", []),
    ],
)
def test_log_has_only_what_was_carried_out(
    fault: str, expected: list[str], program: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    done = went(program, fault, log)
    assert done.stdout == "went on\n", done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    assert [word for line in lines for word in line.split()[:2]] == expected
    assert all(line.split()[2] != str(os.getpid()) for line in lines)
