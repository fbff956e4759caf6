"""tools/setup.sh on machines of all kinds, played by a folder of stand-ins for system commands."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "env", "cat", "cut", "dirname", "sha256sum", "rm", "touch", "grep", "printf", "true")


class Machine:
    """A checkout and a PATH that holds only what is put there."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.bin = folder / "bin"
        self.log = folder / "log"
        (self.checkout / "tools").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools" / "setup.sh", self.checkout / "tools")
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.command("python3", f'exec {sys.executable} "$@"')

    def command(self, name: str, body: str, folder: Path | None = None) -> None:
        """Put a stand-in on the PATH, or into another folder; each call is logged."""
        file = (folder or self.bin) / name
        file.unlink(missing_ok=True)
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.log}"\n{body}\n', encoding="utf-8")
        file.chmod(0o755)

    def debian(self, *, root: bool, sudo: bool = False, installed: str = "") -> None:
        """Become a Debian whose apt-get installs whatever it is told to."""
        have = self.bin / "have"
        have.write_text(installed.replace(" ", "\n") + "\n", encoding="utf-8")
        self.command("id", f"echo {0 if root else 1000}")
        if sudo:
            self.command("sudo", 'shift\nexec "$@"')
        self.command(
            "dpkg-query",
            f'for p; do :; done; grep -qx -- "$p" {have} && printf installed || exit 1',
        )
        self.command(
            "apt-get",
            f'[ "$1" = update ] && exit 0\nfor p; do case $p in -*) ;; *) echo "$p" >>{have} ;; '
            "esac; done",
        )

    def set_up(self, purpose: str = "test") -> None:
        """Pretend that the environment was made for this state of the checkout."""
        text = (self.checkout / "pyproject.toml").read_bytes()
        key = hashlib.sha256(text + f"{self.checkout.resolve()}\n".encode()).hexdigest()[:16]
        self.environment = self.checkout / ".venv" / "bin"
        self.environment.mkdir(parents=True)
        (self.environment.parent / f".setup-{purpose}-{key}").touch()
        self.command("python", "exit 0", self.environment)

    def run(self, purpose: str = "test") -> subprocess.CompletedProcess[str]:
        """Run the script with nothing but this machine's commands."""
        return subprocess.run(
            [self.bin / "sh", self.checkout / "tools" / "setup.sh", purpose],
            env={"PATH": str(self.bin), "HOME": str(self.checkout)},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    def calls(self, name: str) -> list[str]:
        """Return the logged calls of a stand-in."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line for line in lines if line.split()[0] == name]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_rights_it_says_what_is_missing_and_goes_on(machine: Machine) -> None:
    machine.debian(root=False, installed="libvulkan1")
    machine.set_up()
    done = machine.run()
    assert done.returncode == 0
    advice = next(line for line in done.stderr.splitlines() if "to install them" in line)
    assert "sudo apt-get update && sudo apt-get install" in advice
    wanted = ("mesa-vulkan-drivers", "libgles2", "libgl1-mesa-dri", "nodejs", "npm")
    for package in (*wanted, "vulkan-validationlayers", "spirv-tools", "glslang-tools"):
        assert package in advice.split()
    assert "libvulkan1" not in advice
    assert machine.calls("apt-get") == []


@pytest.mark.parametrize("sudo", [False, True])
def test_with_rights_it_installs_what_is_missing(machine: Machine, sudo: bool) -> None:
    machine.debian(root=not sudo, sudo=sudo, installed="libegl1")
    machine.set_up()
    done = machine.run()
    assert done.returncode == 0
    (call,) = machine.calls("apt-get")
    assert "mesa-vulkan-drivers" in call
    assert "--no-install-recommends" in call
    assert "libegl1 " not in call
    assert "missing" not in done.stderr


def test_second_run_asks_apt_for_nothing(machine: Machine) -> None:
    machine.debian(root=True)
    machine.set_up()
    machine.run()
    before = machine.calls("apt-get")
    done = machine.run()
    assert machine.calls("apt-get") == before
    assert done.returncode == 0


def test_one_package_that_apt_lacks_does_not_cost_the_others(machine: Machine) -> None:
    machine.debian(root=True)
    have = machine.bin / "have"
    machine.command(
        "apt-get",
        '[ "$1" = update ] && exit 0\ncase "$*" in *chromium*) exit 100 ;; esac\n'
        f'for p; do case $p in -*) ;; *) echo "$p" >>{have} ;; esac; done',
    )
    machine.set_up()
    done = machine.run()
    assert done.returncode == 0
    assert "still missing: chromium" in done.stderr
    assert "libegl1" in have.read_text(encoding="utf-8").split()


def test_demo_needs_no_test_tools(machine: Machine) -> None:
    machine.debian(root=False)
    machine.set_up("demo")
    done = machine.run("demo")
    assert done.returncode == 0
    assert "mesa-vulkan-drivers" in done.stderr
    for package in ("spirv-tools", "nodejs", "npm", "chromium"):
        assert package not in done.stderr
    assert machine.calls("python") == []


@pytest.mark.parametrize(
    ("purpose", "words"),
    [("demo", "--editable .[all,examples]"), ("test", "--editable .[all,farm] --group")],
)
def test_everything_of_the_package_is_installed(machine: Machine, purpose: str, words: str) -> None:
    machine.debian(root=False)
    machine.set_up("other")  # a Python, and nothing else
    assert machine.run(purpose).returncode == 0
    assert [call for call in machine.calls("python") if words in call]


def test_tests_fetch_the_drivers_that_no_package_has(machine: Machine) -> None:
    machine.debian(root=False)
    machine.set_up()
    assert machine.run().returncode == 0
    drivers, openvino = machine.calls("python")
    assert drivers == "python tools/drivers.py"
    assert " --target .drivers/openvino openvino==" in openvino


def test_drivers_that_cannot_be_fetched_do_not_stop_the_set_up(machine: Machine) -> None:
    machine.debian(root=False)
    machine.set_up()
    machine.command("python", "exit 1", machine.environment)
    done = machine.run()
    assert done.returncode == 0
    assert "going on with the drivers that are there" in done.stderr


def test_node_from_elsewhere_is_not_doubled(machine: Machine) -> None:
    machine.debian(root=True)
    for tool in ("node", "npm"):
        machine.command(tool, "exit 0")
    machine.set_up()
    machine.run()
    (call,) = machine.calls("apt-get")
    assert {"nodejs", "npm"} & set(call.split()) == set()
    assert "glslang-tools" in call.split()


def test_environment_for_tests_serves_the_demo_too(machine: Machine) -> None:
    machine.debian(root=False)
    machine.set_up("test")
    assert machine.run("demo").returncode == 0


def test_other_systems_go_on(machine: Machine) -> None:
    machine.command("id", "echo 0")
    machine.set_up()
    done = machine.run()
    assert done.returncode == 0
    assert "not a Debian system" in done.stderr


def test_old_python_is_refused_with_a_remedy(machine: Machine) -> None:
    machine.debian(root=False)
    machine.command("python3", "exit 1")
    done = machine.run()
    assert done.returncode == 1
    assert "PYTHON=" in done.stderr


def test_python_without_venv_is_refused_with_a_remedy(machine: Machine) -> None:
    machine.debian(root=False)
    machine.command(
        "python3",
        f'case "$*" in *ensurepip*|*virtualenv*) exit 1 ;; esac\nexec {sys.executable} "$@"',
    )
    done = machine.run()
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert version in done.stderr


def test_unknown_purpose_is_refused(machine: Machine) -> None:
    assert machine.run("lunch").returncode == 2


def test_make_help_names_every_target() -> None:
    done = subprocess.run(
        ["make", "-C", ROOT, "help"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    targets = ("demo", "test", "test-arm64", "drivers", "conformance", "lint", "bench", "clean")
    for target in targets:
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(
    ("target", "purpose"), [("lint", "lint"), ("test", "test"), ("test-arm64", "arm64")]
)
def test_target_sets_up_what_it_needs(target: str, purpose: str) -> None:
    command = ["make", "-n", "-C", str(ROOT), target]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert f"tools/setup.sh {purpose}\n" in done.stdout


def test_arm64_takes_an_emulator_and_no_driver(machine: Machine) -> None:
    machine.debian(root=True)
    machine.set_up("test")
    assert machine.run("arm64").returncode == 0
    (call,) = machine.calls("apt-get")
    assert call.split()[-1] == "qemu-user-static" and "mesa" not in call
    assert machine.calls("python") == []


@pytest.mark.parametrize("purpose", ["lint", "test"])
def test_lint_uses_the_environment_of_the_tests_and_fetches_no_driver(
    machine: Machine, purpose: str
) -> None:
    machine.debian(root=True)
    machine.set_up("test")
    done = machine.run(purpose)
    assert done.returncode == 0, done.stderr
    fetched = [call for call in machine.calls("python") if "tools/drivers.py" in call]
    assert len(fetched) == (purpose == "test")
    assert bool(machine.calls("apt-get")) == (purpose == "test")
    assert "installing gpuedge" not in done.stderr  # it is there


def test_environment_made_for_lint_serves_the_tests(machine: Machine) -> None:
    machine.debian(root=True)
    machine.set_up("demo")  # a Python, without what the tests need
    assert "installing gpuedge" in machine.run("lint").stderr
    (call,) = (c for c in machine.calls("python") if "--editable" in c)
    assert "--group dev" in call
    assert "installing gpuedge" not in machine.run("test").stderr
