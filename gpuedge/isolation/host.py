"""The host process: ``python -m gpuedge.isolation.host`` with frames on standard input.

It opens one device and does with it what it is told, one frame after the other. It ends with the
application, whatever it is doing at that time, and leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpuedge import backends
from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.storage import Storage
from gpuedge.isolation.messages import counts_of, error_to_record, info_from_record
from gpuedge.isolation.shared import Arena
from gpuedge.isolation.wire import HEADER, MAX_REQUEST, pack, parse, sizes

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl

ALARM_S = 180.0
"""A host that does not come back to its pipe for so long ends itself; see `Alarm`."""

IDLE_S = 60.0
"""How often an idle host puts its alarm off."""


CHUNK = 65536


class Alarm:
    """Ends this process should it hang and the system not do it; see `die_with`.

    A thread of C watches the time, so that a driver that hangs with Python's lock held is ended
    too. It is put off rarely, because that costs a thread each time.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._until = 0.0
        if not is_needed:
            import faulthandler

            faulthandler.cancel_dump_traceback_later()

    @property
    def pause_ms(self) -> int | None:
        """How often an idle host is to put it off, in milliseconds."""
        return int(IDLE_S * 1000) if self._is_needed else None

    def put_off(self, needed_s: float = 0.0) -> None:
        """Ring no earlier than `ALARM_S` - `IDLE_S`, and not within `needed_s`."""
        now = time.monotonic()
        if self._is_needed and self._until - now < max(ALARM_S - IDLE_S, needed_s):
            import faulthandler

            seconds = max(ALARM_S, needed_s + IDLE_S)
            faulthandler.dump_traceback_later(seconds, exit=True)
            self._until = now + seconds


class Pipe:
    """The pipes to the application, out of the reach of what drivers print or read."""

    def __init__(self) -> None:
        self._from, self._to = os.dup(0), os.dup(1)  # not inherited by what drivers start
        self._got = bytearray()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)

    def read(self, alarm: Alarm | None = None) -> tuple[int, dict[str, Any], bytes]:
        """Wait for a frame. Raises EOFError where the application is gone."""
        if alarm is not None:
            self._idle(alarm)
        sequence, text, extra = sizes(self._take(HEADER.size), MAX_REQUEST)
        return sequence, parse(self._take(text)), self._take(extra)

    def _idle(self, alarm: Alarm) -> None:
        import select

        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while not self._got and not poll.poll(alarm.pause_ms):
            alarm.put_off()

    def _take(self, nbytes: int) -> bytes:
        while len(self._got) < nbytes:
            chunk = os.read(self._from, max(CHUNK, nbytes - len(self._got)))
            if not chunk:
                raise EOFError
            self._got += chunk
        taken = bytes(self._got[:nbytes])
        del self._got[:nbytes]
        return taken

    def write(self, sequence: int, body: dict[str, Any]) -> None:
        """Send a reply. Raises EOFError where the application is gone."""
        left = memoryview(pack(sequence, body))
        try:
            while left:
                left = left[os.write(self._to, left) :]
        except OSError:
            raise EOFError from None


class Host:
    """An open device and everything made on it, by the numbers that the application gave."""

    def __init__(self, device: DeviceImpl, arena: Arena) -> None:
        self.device = device
        self.arena = arena
        self._things: dict[int, Any] = {}
        self._does: dict[str, Callable[..., None]] = {
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
                    self.arena.tell(position, time.monotonic())
                    if verb == "build":
                        args.append(code)
                    self._does[verb](*args)
            self.arena.tell(position + 1, time.monotonic())
        except Exception as error:
            reply["error"] = error_to_record(error)
        return {**reply, "counters": counts_of(self.device.counters)}

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
        made = self.device.record(
            dispatches, [things[b] for b in inputs], [things[b] for b in outs]
        )
        things[number] = made

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
    alarm = prepare(request["life"], request["deadline_s"])
    arena = Arena(request["share"])
    os.set_inheritable(arena.fd, False)
    arena.tell(0, time.monotonic())
    try:
        info = info_from_record(request["device"])
        device = backends.load(info.candidate.backend).open(info)
    except Exception as error:
        pipe.write(sequence, {"error": error_to_record(error)})
        return 0
    opened = {"caps": device.caps.to_dict(), "counters": counts_of(device.counters)}
    pipe.write(sequence, opened)
    with suppress(EOFError):
        serve(pipe, Host(device, arena), alarm)
    device.close()
    return 0


def serve(pipe: Pipe, host: Host, alarm: Alarm) -> None:
    """Do what frames say until one of them says to close. Raises EOFError, FrameError."""
    while True:
        alarm.put_off()
        sequence, body, code = pipe.read(alarm)
        if "close" in body:
            return
        alarm.put_off(float(body["needs_s"]))
        reply = host.work(body, code)
        if body["reply"]:
            pipe.write(sequence, reply)


def prepare(life: int, deadline_s: float) -> Alarm:
    """Leave no core file, no crash dialog and no orphan behind."""
    from gpuedge.safety.contain import contain

    contain(deadline_s)
    alarm = Alarm(is_needed=not die_with(life))
    alarm.put_off(deadline_s)
    return alarm


def die_with(life: int) -> bool:
    """End this process when the other end of a pipe is closed: when the application is gone.

    On Linux the system does it, with a signal that cannot be blocked, whatever a driver is doing;
    then this returns true. Elsewhere a thread does, which a driver can keep waiting by holding
    Python's lock.
    """
    import select

    os.set_inheritable(life, False)
    try:
        import fcntl
        import signal

        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())  # what drivers started ends too
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        is_sure = True
    except (AttributeError, OSError):
        _watch(life)
        is_sure = False
    poll = select.poll()
    poll.register(life, select.POLLIN)
    if poll.poll(0):  # it was gone before
        os._exit(1)
    return is_sure


def _watch(life: int) -> None:
    import threading

    def wait() -> None:
        with suppress(OSError):
            os.read(life, 1)
        os._exit(1)

    threading.Thread(target=wait, name="gpuedge-life", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
