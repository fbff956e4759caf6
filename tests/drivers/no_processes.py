"""Run a program that may start no processes: ``python no_processes.py [--no-threads] PROGRAM...``.

The kernel refuses them by a filter of system calls (seccomp), as sandboxes have it; with an option
threads too, as where all that a user or a container may have are there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": (56, (57, 58)), "aarch64": (220, ())}
"""Of ``clone``, and of ``fork`` and ``vfork`` where they exist, by machine."""

CLONE3 = 435
CLONE_THREAD = 0x10000
LOAD, IS, HAS, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x50000
FIRST_ARGUMENT = 16
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def rules(may_have_threads: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter: operation, how many to skip where it holds and where not, operand."""
    clone, forks = NUMBERS[platform.machine()]
    refusal = errno.EPERM if may_have_threads else errno.EAGAIN
    rules_ = [(LOAD, 0, 0, 0)]
    if not may_have_threads:
        forks = (*forks, clone)
    for number in forks:
        rules_ += [(IS, 0, 1, number), (RETURN, 0, 0, REFUSE | refusal)]
    # What has no clone3 uses clone, whose flags can be looked at.
    rules_ += [(IS, 0, 1, CLONE3), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    rules_ += [(IS, 0, 3, clone), (LOAD, 0, 0, FIRST_ARGUMENT), (HAS, 1, 0, CLONE_THREAD)]
    return [*rules_, (RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)]


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    may_have_threads = sys.argv[1] != "--no-threads"
    program = b"".join(struct.pack("HBBI", *rule) for rule in rules(may_have_threads))
    kept = ctypes.create_string_buffer(program)
    pointer = ctypes.create_string_buffer(
        struct.pack("H6xQ", len(program) // 8, ctypes.addressof(kept))
    )
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, pointer, 0, 0):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
    words = sys.argv[1 if may_have_threads else 2 :]
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
