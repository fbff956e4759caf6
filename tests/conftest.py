"""Options and isolation that the whole suite shares, and a look at what a run leaves behind.

Everything runs with a temporary folder of its own, so that what is in it at the end, and which
processes were started with it, is this run's and nobody else's.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from zlib import crc32

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them",
    )
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="run one in N of the chosen tests, always the same ones, none that may take long",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the sample: by a hash of a test's name, so that no other test's coming changes it."""
    count = config.getoption("--sample")
    if count > 1:
        kept = [i for i in items if crc32(i.nodeid.encode()) % count == 0 and not is_endless(i)]
        config.hook.pytest_deselected(items=[i for i in items if i not in set(kept)])
        items[:] = kept


def is_endless(item: pytest.Item) -> bool:
    """Say whether a test has asked for more than ten minutes."""
    limit = item.get_closest_marker("timeout")
    return limit is not None and limit.args[0] > 600


GONE_S = 30.0
"""How long a process that was told to end may take on a busy machine."""

SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = pytest.StashKey[Path]()
LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this run, its workers and all that they start a temporary folder; once, not in workers.

    Pytest keeps its own folders where it always does.
    """
    if hasattr(config, "workerinput"):
        return
    before = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)
    folder = config.stash[TEMPORARY] = Path(tempfile.mkdtemp(prefix="tests-of-gpuedge-"))
    folder.chmod(0o1777)  # as the usual one: tests look at files as another user, too
    os.environ["TMPDIR"] = str(folder)
    os.environ.setdefault("TESTS_DAY", str(date.today().toordinal()))  # one day for all workers
    tempfile.tempdir = None


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what thousands of tests consist of: it stays."""
    gc.collect()
    gc.freeze()


def processes_with(folder: Path) -> list[str]:
    """Return the running processes that were started with a temporary folder, but for this one."""
    wanted, found = b"TMPDIR=" + os.fsencode(folder), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = wanted in (place / "environ").read_bytes().split(b"\0")
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if is_ours and place.name != str(os.getpid()):
            found.append(f"process {place.name}: {command[:200]}")
    return found


def left_behind(folder: Path) -> list[str]:
    """Return what a run left in its temporary folder, running, or in shared memory."""
    found = [
        f"{path.name} in the temporary folder, with {[p.name for p in path.glob('*')]}"
        for path in folder.glob("gpuedge*")
    ]
    shared = SHARED_MEMORY.glob("*gpuedge*") if SHARED_MEMORY.is_dir() else ()
    return found + [f"{path} in shared memory" for path in shared] + processes_with(folder)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if it left anything behind."""
    folder = session.config.stash.get(TEMPORARY, None)
    if folder is None:
        return
    ends = time.monotonic() + GONE_S
    while (found := left_behind(folder)) and time.monotonic() < ends:
        time.sleep(0.2)
    session.config.stash[LEFT] = found
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left behind."""
    for line in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND: {line}", red=True)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's caches out of the tests, and the tests out of the user's caches."""
    folder = tmp_path_factory.mktemp("gpuedge-cache")
    before = os.environ.get("GPUEDGE_CACHE_DIR")
    os.environ["GPUEDGE_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["GPUEDGE_CACHE_DIR"]
    else:
        os.environ["GPUEDGE_CACHE_DIR"] = before
