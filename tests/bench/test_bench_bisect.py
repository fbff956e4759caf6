"""The commit of a slow-down, found in scratch repositories with a sleep in one commit."""

from __future__ import annotations

import json
import math
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import git, repository

from gpuedge.bench import bisection
from gpuedge.bench.bisection import Bisection
from gpuedge.bench.checkouts import Repository
from gpuedge.bench.estimates import Ratio, paired
from gpuedge.bench.subjects import SubjectName
from gpuedge.cli import main as cli
from gpuedge.core.errors import InputError, UsageError

RNG = np.random.default_rng(5)


def search(count: int, first_slow: int, broken: tuple[int, ...] = (), noise: float = 0.01
           ) -> tuple[bisection.FoundCommit, int]:  # fmt: skip
    """Search commits "0" to `count`; those from `first_slow` on take 10 % longer."""

    def measure(before: str, after: str, border: float | None) -> Ratio:
        if int(after) in broken:
            raise InputError("broken")
        level = 0.1 * ((int(after) >= first_slow) - (int(before) >= first_slow))
        return paired(RNG.normal(level, noise, 12), bisection.LEVEL)

    found = Bisection(list(map(str, range(count + 1))), measure).run()
    return found, len(found.steps)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100])
def test_every_place_is_found_in_few_steps(count: int) -> None:
    for first_slow in range(1, count + 1, 1 + count // 10):
        found, steps = search(count, first_slow)
        assert found.commit == str(first_slow) and found.before == str(first_slow - 1)
        assert found.is_confirmed and steps <= math.ceil(math.log2(count)) + 2


def test_commits_that_do_not_run_are_passed_over() -> None:
    found, _ = search(16, 11, broken=(8, 9))
    assert found.commit == "11" and found.is_confirmed and set(found.untestable) <= {"8", "9"}
    found, _ = search(16, 11, broken=(10, 11))
    assert not found.is_confirmed and (found.before, found.commit) == ("9", "12")


def test_where_nothing_is_slower_nothing_is_searched() -> None:
    with pytest.raises(UsageError, match="not slower"):
        search(16, 99)


def test_gradual_slow_downs_are_not_confirmed() -> None:
    def measure(before: str, after: str, border: float | None) -> Ratio:
        return paired(RNG.normal(0.02 * (int(after) - int(before)), 0.002, 12), bisection.LEVEL)

    assert not Bisection(list(map(str, range(17))), measure).run().is_confirmed


@pytest.mark.parametrize("count", [1, pytest.param(16, marks=pytest.mark.long)])
def test_a_planted_sleep_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    slow = 1 if count == 1 else 11
    bodies = ["time.sleep(0.002)"] * slow + ["time.sleep(0.006)"] * (count + 1 - slow)
    commits = repository(tmp_path / "r", bodies)
    arguments = ["--repository", str(tmp_path / "r"), "--", "work:step"]
    assert cli.main(["bench", "bisect", commits[0], "main", "--json", *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["commit"] == commits[slow] and body["before"] == commits[slow - 1]
    assert body["message"] == f"commit {slow}" and len(body["steps"]) <= math.log2(count) + 2
    assert 1.5 < body["ratio"]["value"] < 4 and body["is_confirmed"]
    assert len(git(tmp_path / "r", "worktree", "list").splitlines()) == 1, "no checkout stays"


def test_sigterm_leaves_no_checkout_either(tmp_path: Path) -> None:
    (commit,) = repository(tmp_path / "r", ["pass"])
    before, made = signal.getsignal(signal.SIGTERM), Repository(tmp_path / "r")
    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        for text in "ab":
            stack.enter_context(made.checked_out(SubjectName(text, commit=commit)))
        assert len(git(tmp_path / "r", "worktree", "list").splitlines()) == 3
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(git(tmp_path / "r", "worktree", "list").splitlines()) == 1


def test_a_checkout_that_is_cut_short_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (commit,) = repository(tmp_path / "r", ["pass"])
    plain = Repository.git

    def killed(self: Repository, *arguments: str) -> str:
        done = plain(self, *arguments)
        if arguments[1] == "add":  # git locks what it has not filled yet
            plain(self, "worktree", "lock", arguments[-2])
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Repository, "git", killed)
    with (
        pytest.raises(KeyboardInterrupt),
        Repository(tmp_path / "r").checked_out(SubjectName("x", commit=commit)),
    ):
        pass
    assert len(git(tmp_path / "r", "worktree", "list").splitlines()) == 1


def test_setup_is_run_in_every_checkout(tmp_path: Path) -> None:
    (commit,) = repository(tmp_path / "r", ["pass"])
    made = Repository(tmp_path / "r", "echo built > made.txt", "bin/python")
    with made.checked_out(SubjectName("x", commit="main")) as subject:
        tree = Path(subject.tree)
        assert (tree / "made.txt").read_text() == "built\n" and subject.commit == commit
        assert subject.python == str(tree / "bin" / "python")
    assert not tree.exists()
    failing = Repository(tmp_path / "r", "echo no compiler; exit 3")
    with (
        pytest.raises(InputError, match="setup of commit") as caught,
        failing.checked_out(SubjectName("x", commit="main")),
    ):
        pass
    assert "no compiler" in str(caught.value.known)
    assert len(git(tmp_path / "r", "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("nothing", "main", "'nothing' names no commit of"),
        ("main", "nothing", "'nothing' names no commit of"), ("main", "main", "one commit"),
        ("main", "main~1", "not an ancestor"), ("--help", "main", "names no commit"),
    ],
)  # fmt: skip
def test_commits_are_checked_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], good: str, bad: str, words: str
) -> None:
    repository(tmp_path / "r", ["pass", "pass"])
    arguments = ["--repository", str(tmp_path / "r"), "--", good, bad, "work:step"]
    assert cli.main(["bench", "bisect", *arguments]) == 2
    assert words in capsys.readouterr().err
