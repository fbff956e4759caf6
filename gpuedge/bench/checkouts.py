"""Checkouts of commits of a git repository, each in a worktree that goes again."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpuedge.bench.subjects import SubjectName
from gpuedge.core.errors import InputError, UsageError
from gpuedge.core.text import plain, shown
from gpuedge.safety import interpreter, temporary

GIT_S, SETUP_S = 300.0, 3600.0
"""Deadlines of a command of git, and of a checkout's own setup."""

MOST_SAID = 400
"""Characters of what a command printed last that a message shows."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository, and how its checkouts become builds.

    Attributes
    ----------
    folder : Path
    setup : str
        A shell command that is run in each checkout; empty where it is pure Python.
    python : str
        The interpreter, relative to the checkout if its setup makes one; empty for this one's.
    """

    folder: Path
    setup: str = ""
    python: str = ""

    def git(self, *arguments: str) -> str:
        """Return what a command of git prints. Raises UsageError (GE-200) where it fails."""
        if shutil.which("git") is None:
            raise UsageError("git is not installed.", asked_by="a commit", hint="install git")
        command = ["git", "-C", str(self.folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False,
                                  timeout=GIT_S, stdin=subprocess.DEVNULL)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"git failed: {error}.", asked_by=" ".join(command)) from None
        if done.returncode:
            raise UsageError("git failed.", asked_by=" ".join(command),
                             known=plain(done.stderr.strip()[-MOST_SAID:], None))  # fmt: skip
        return done.stdout

    def commit(self, revision: str) -> str:
        """Return the hash of a revision. Raises UsageError (GE-200)."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options",
                            f"{revision}^{{commit}}").strip()  # fmt: skip
        except UsageError as error:
            if not error.known:  # git says nothing of what is no commit
                error.what = f"{shown(revision)} names no commit of {self.folder.absolute()}."
            raise

    def between(self, good: str, bad: str) -> list[str]:
        """Return the commits from `good` to `bad`, both included, along first parents.

        Raises UsageError (GE-200) where they are one, or not related like that.
        """
        first, last = self.commit(good), self.commit(bad)
        if first == last:
            raise UsageError(f"{good} and {bad} are one commit.", asked_by="the command line")
        listed = self.git("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
        parent = self.git("rev-parse", f"{listed[0]}^").strip() if listed else ""
        if parent != first:
            raise UsageError(
                f"{good} is not an ancestor of {bad} along first parents.",
                asked_by="the command line",
                hint=f"git merge-base {good} {bad}",
            )
        return [first, *listed]

    def subject_line(self, commit: str) -> str:
        """Return the first line of a commit's message."""
        return self.git("log", "-1", "--format=%s", commit).strip()

    @contextmanager
    def checked_out(self, subject: SubjectName) -> Iterator[SubjectName]:
        """Check a subject's commit out, set it up, and return the subject with its tree.

        One without a commit is returned as it is. Meanwhile SIGTERM does what Ctrl-C does, for what
        it would leave is registered in the user's repository.

        Raises
        ------
        UsageError (GE-200)
            There is no such commit.
        InputError (GE-203)
            Its setup failed.
        """
        if not subject.commit:
            yield subject
            return
        commit = self.commit(subject.commit)
        with temporary.folder("gpuedge-checkout-") as folder:
            tree = folder / "tree"
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                self.git("worktree", "add", "--detach", "--quiet", str(tree), commit)
                if self.setup:
                    self._set_up(tree, commit)
                python = str(tree / self.python) if self.python else ""
                yield replace(subject, tree=str(tree), commit=commit, python=python)
            finally:
                with suppress(UsageError):  # it was not added; one that was added in part is locked
                    self.git("worktree", "remove", "--force", "--force", str(tree))
                signal.signal(signal.SIGTERM, before)

    def _set_up(self, tree: Path, commit: str) -> None:
        log = tree.parent / "setup"
        with log.open("wb") as file:
            try:
                done = subprocess.run(
                    self.setup, shell=True, cwd=tree, env=interpreter.environment(), check=False,
                    timeout=SETUP_S, stdin=subprocess.DEVNULL, stdout=file,
                    stderr=subprocess.STDOUT,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                done = -1
        if done:
            said = log.read_bytes()[-MOST_SAID:].decode(errors="replace")
            raise InputError(f"The setup of commit {commit[:12]} failed.", asked_by="--setup",
                             known=plain(said, None, lines=True))  # fmt: skip
