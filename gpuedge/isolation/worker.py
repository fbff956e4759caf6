"""The worker process: ``python -m gpuedge.isolation.worker`` with frames on standard input.

It opens one device and does with it what it is told, one frame after the other. It ends with the
application, whatever it is doing at that time, and leaves nothing behind.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpuedge import backends
from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.core.driver import DeviceInfo
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.record import plain, read
from gpuedge.core.storage import Storage
from gpuedge.isolation.messages import (
    HEADER,
    MAX_REQUEST,
    RaisedError,
    pack,
    parse,
    sizes,
)
from gpuedge.isolation.shared import Arena
from gpuedge.safety.contain import contain

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl


class Pipe:
    """The pipes to the application, out of the reach of what drivers print or read."""

    def __init__(self) -> None:
        # Duplicates, because what drivers start does not inherit those.
        self._from = os.fdopen(os.dup(0), "rb")
        self._to = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)

    def read(self) -> tuple[int, dict[str, Any], bytes]:
        """Wait for a frame. Raises EOFError where the application is gone."""
        sequence, text, extra = sizes(self._take(HEADER.size), MAX_REQUEST)
        return sequence, parse(self._take(text)), self._take(extra)

    def _take(self, nbytes: int) -> bytes:
        taken = self._from.read(nbytes)
        if len(taken) < nbytes:
            raise EOFError
        return taken

    def write(self, sequence: int, reply: dict[str, Any]) -> None:
        """Send a reply. Raises EOFError where the application is gone."""
        try:
            self._to.write(pack(sequence, reply))
            self._to.flush()
        except OSError:
            raise EOFError from None


class Worker:
    """An open device and everything made on it, by the numbers that the application gave."""

    def __init__(self, device: DeviceImpl, arena: Arena) -> None:
        self.device = device
        self.arena = arena
        self._things: dict[int, Any] = {}
        self._calls: dict[str, Callable[..., None]] = {
            "alloc": self._alloc, "write": self._write, "read": self._read,
            "build": self._build, "record": self._record, "submit": self._submit,
            "wait": self._wait, "free": self._free, "release": self._release,
        }  # fmt: skip

    def work(self, body: dict[str, Any], code: bytes) -> dict[str, Any]:
        """Do what a frame says, in order, up to the first error; return the reply."""
        reply: dict[str, Any] = {}
        position = 0
        try:
            self.arena.grow(body["arena"])
            with self.device.entered():
                for position, (verb, *args) in enumerate(body["ops"]):
                    self.arena.note(position)
                    if verb == "build":
                        args.append(code)
                    self._calls[verb](*args)
            self.arena.note(position + 1)
        except Exception as error:
            reply["error"] = plain(RaisedError.of(error))
        return {**reply, "counters": self.device.counters.snapshot()}

    def _alloc(self, number: int, nbytes: int, usage: str, storage: list[Any]) -> None:
        self._things[number] = self.device.alloc(nbytes, Usage(usage), Storage(*storage))

    def _write(self, number: int, offset: int, nbytes: int, place: int) -> None:
        # Not in a `with`: an error keeps the backend's frame, and with it what it made of the view.
        self.device.write(self._things[number], self.arena.view(place, nbytes), offset)

    def _read(self, number: int, offset: int, nbytes: int, place: int) -> None:
        self.device.read(self._things[number], self.arena.view(place, nbytes), offset)

    def _build(self, number: int, record: list[Any], specs: dict[str, Any], code: bytes) -> None:
        self._things[number] = self.device.build(KernelBlob.from_record(record, code), specs)

    def _record(self, number: int, works: list[Any], inputs: list[int], outs: list[int]) -> None:
        things = self._things
        dispatches = [
            Dispatch(
                things[program],
                tuple(Binding(things[b], offset, nbytes) for b, offset, nbytes in bindings),
                bytes.fromhex(push), (groups[0], groups[1], groups[2]), depends,
            )
            for program, bindings, push, groups, depends in works
        ]  # fmt: skip
        things[number] = self.device.record(
            dispatches, [things[b] for b in inputs], [things[b] for b in outs]
        )

    def _submit(self, number: int, ticket: int) -> None:
        self._things[ticket] = self.device.submit(self._things[number])

    def _wait(self, ticket: int, timeout_s: float) -> None:
        self.device.wait(self._things[ticket], timeout_s)
        del self._things[ticket]

    def _free(self, number: int) -> None:
        thing = self._things.pop(number, None)
        if thing is not None:
            self.device.free(thing)

    def _release(self, number: int) -> None:
        thing = self._things.pop(number, None)
        if thing is not None:
            self.device.release(thing)


def main() -> int:
    """Open the device that the first frame names, and serve until told to close."""
    pipe = Pipe()
    sequence, request, _ = pipe.read()
    contain(request["deadline_s"], request["life"])
    faulthandler.cancel_dump_traceback_later()  # that is the client's affair from here on
    arena = Arena(request["share"])
    os.set_inheritable(arena.fd, False)
    arena.note(0)
    try:
        info = read(DeviceInfo, request["device"])
        device = backends.load(info.candidate.backend).open(info)
    except Exception as error:
        pipe.write(sequence, {"error": plain(RaisedError.of(error))})
        return 0
    opened = {"caps": device.caps.to_dict(), "counters": device.counters.snapshot()}
    pipe.write(sequence, opened)
    with suppress(EOFError):
        serve(pipe, Worker(device, arena))
    device.close()
    return 0


def serve(pipe: Pipe, worker: Worker) -> None:
    """Do what frames say until one of them says to close. Raises EOFError, UnfitError."""
    while True:
        sequence, body, code = pipe.read()
        if "close" in body:
            return
        pipe.write(sequence, worker.work(body, code))


if __name__ == "__main__":
    sys.exit(main())
