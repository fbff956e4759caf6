"""Where results of a run are kept: a folder, or any place that fsspec has an address for.

    run.json                 what is run
    devices/KEY.json         a device that was announced
    shards/KEY.IofN.jsonl    the results of a shard, as ``gpuedge conformance run --jsonl`` has them
    checks/KEY.IofN.jsonl    the same of a second device
    refused/...              replies that were not believed, and why
    summaries/TIME.json      what each session said at its end

Each file is written once, under another name first, and never changed: one that is there is whole,
and its name says what it is of, so nothing is lost or doubled by whatever ends a session.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from gpuedge.conformance.results import Results
from gpuedge.core.errors import FarmError, InputError
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.core.text import encoded
from gpuedge.farm.tasks import FarmRun, FarmTask, Maker, maker, parsed
from gpuedge.safety.packages import needed

RUN, PENDING = "run.json", ".pending"


class RunStore:
    """A store at an address: a path of this machine, or such as ``s3://bucket/run``.

    Raises InputError (GE-203) for an address that nothing is known of or that names no folder,
    FarmError (GE-407) where the store cannot be reached.
    """

    def __init__(self, url: str) -> None:
        with needed("fsspec", "gpuedge farm"):
            import fsspec
            from fsspec.implementations.local import LocalFileSystem
        self.url = url
        try:
            if not url.rpartition(":")[2].strip("/"):
                raise ValueError("it names no folder")
            self._files, self._root = fsspec.core.url_to_fs(url)
            self._is_local = isinstance(self._files, LocalFileSystem)
            root = Path(self._root)
            for place in (root, *root.parents) if self._is_local else ():
                if place.exists() and not place.is_dir():
                    raise NotADirectoryError(f"{place} is a file")
        except (ImportError, ValueError, OSError) as error:
            raise InputError(
                f"{url or 'An empty name'} is no place to keep results.", asked_by="the store",
                known=str(error), hint="a folder, or an address that fsspec has a package for",
            ) from None  # fmt: skip

    def holds(self, path: str) -> bool:
        """Tell whether a path of this machine lies in the store."""
        return self._is_local and Path(path).resolve().is_relative_to(Path(self._root).resolve())

    @contextmanager
    def _reached(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each kind of store has errors of its own
            cure = "allow access to it" if isinstance(error, PermissionError) else "make room"
            raise FarmError(
                f"The store {self.url} cannot be {doing}.",
                asked_by="the store",
                known=f"{type(error).__name__}: {error}",
                hint=f"what it holds is whole; {cure} or bring it back, then "
                "gpuedge farm run --resume",
            ) from error

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the store, without their ends."""
        with self._reached("read"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        names = (posixpath.basename(path.rstrip("/")) for path in found)
        return sorted(name.rpartition(".")[0] for name in names if not name.startswith("."))

    def text(self, name: str) -> str | None:
        """Return the text of a file; None where there is none."""
        with self._reached("read"):
            try:
                return self._files.cat_file(self._path(name)).decode(errors="replace")  # type: ignore[no-any-return]
            except FileNotFoundError:
                return None

    def put(self, name: str, text: str) -> bool:
        """Write a file that is not there, in one step; return whether it was not.

        Where the store is a folder, only one of several writers can; elsewhere the first is kept as
        far as the store lets that be told.
        """
        path, pending = self._path(name), self._path(f"{PENDING}-{uuid4().hex}")
        with self._reached("written"):
            if name != RUN and not self._files.exists(self._path(RUN)):
                raise FileNotFoundError(f"{RUN} is gone")  # nobody makes half a store anew
            self._files.makedirs(posixpath.dirname(path), exist_ok=True)
            if self._files.exists(path):
                return False
            if not self._is_local:
                self._files.pipe_file(path, encoded(text))  # objects appear whole
                return True
            return _linked(pending, path, encoded(text))

    def move(self, name: str, new: str) -> None:
        """Give a file another name."""
        with self._reached("written"):
            self._files.makedirs(posixpath.dirname(self._path(new)), exist_ok=True)
            self._files.mv(self._path(name), self._path(new))

    def run(self) -> FarmRun | None:
        """Return the run that this is the store of; None where there is none yet.

        Raises InputError (GE-203) where it is another version's, or damaged.
        """
        text = self.text(RUN)
        if text is None:
            return None
        try:
            return read(FarmRun, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{self.url} holds no run that can be read.", asked_by="the store", known=str(error)
            ) from None

    def begin(self, run: FarmRun) -> None:
        """Make this the store of a run. Raises InputError (GE-203) where it is one already."""
        if not self.put(RUN, json.dumps(plain(run), indent=1)):
            raise InputError(
                f"{self.url} holds a run already.",
                asked_by="--store",
                hint="--resume goes on with it; another run needs another store",
            )

    def results(self, task: str) -> Results | None:
        """Return the results of a shard by its name; None where there are none.

        Raises InputError (GE-203) where they are damaged.
        """
        text = self.text(f"{task}.jsonl")
        try:
            return None if text is None else parsed(text)
        except UnfitError as error:
            raise InputError(
                f"{self.url} holds a shard that is damaged: {task}.jsonl.",
                asked_by="the store",
                known=str(error),
                hint="gpuedge farm run --resume puts it aside and runs it again",
            ) from None

    def maker_of(self, task: FarmTask) -> Maker | None:
        """Return what did a shard; None where it is not done.

        A file that is not whole is put aside: a crash cut it.
        """
        text = self.text(f"{task.id}.jsonl")
        if text is None:
            return None
        try:
            results = parsed(text)
            if results.rows.keys() == set(task.ids):
                return maker(results)
            why = "it has other cases"
        except (UnfitError, KeyError, TypeError) as error:
            why = str(error)
        self.refuse(task, f"the file in the store is not whole: {why}")
        return None

    def refuse(self, task: FarmTask, why: str, reply: str | None = None) -> None:
        """Keep a reply that is not believed, with the reason; without one, the file that was."""
        name = f"refused/{task.id.replace('/', '.')}.{uuid4().hex[:8]}"
        if reply is None:
            self.move(f"{task.id}.jsonl", f"{name}.jsonl")
        else:
            self.put(f"{name}.jsonl", reply)
        self.put(f"{name}.json", json.dumps({"task": task.id, "why": why}))

    def documents(self, folder: str) -> list[dict[str, Any]]:
        """Return the JSON objects in a folder; what is damaged is left out."""
        found = []
        for name in self.names(folder):
            try:
                body = json.loads(self.text(f"{folder}/{name}.json") or "")
            except (ValueError, RecursionError):
                continue
            found += [body] if isinstance(body, dict) else []
        return found


def runs_in(stores: Sequence[str]) -> list[tuple[FarmRun, RunStore]]:
    """Return what stores hold. Raises InputError (GE-203) where one holds no run or the same."""
    found: dict[str, tuple[FarmRun, RunStore]] = {}
    for url in stores:
        store = RunStore(url)
        run = store.run()
        if run is None or run.id in found:
            why = "holds no run" if run is None else f"and {found[run.id][1].url} hold the same run"
            raise InputError(f"{url} {why}.", asked_by="the store")
        found[run.id] = run, store
    return list(found.values())


def _linked(pending: str, path: str, data: bytes) -> bool:
    """Write a file of this machine under a name that nobody reads, then give it its own."""
    try:
        with open(pending, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(path).hardlink_to(pending)
        except FileExistsError:
            return False
        except OSError:  # a file system without links: FAT, some network shares
            Path(pending).rename(path)
        return True
    finally:
        Path(pending).unlink(missing_ok=True)
