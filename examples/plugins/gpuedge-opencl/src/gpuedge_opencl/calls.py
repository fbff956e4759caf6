"""The calls that start work, made without Python's lock.

pyopencl keeps it in these, though a driver may take its time there: PoCL compiles. All threads of
the application would stand still meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyopencl as cl

_words: Any = cl.status_code.to_string
SIZES = ctypes.c_size_t * 3


class CallError(Exception):
    """A call that returned an error; `code` is its number, as of a `pyopencl.Error`."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed: {_words(code, 'error %d')}")
        self.code = code


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the loader that pyopencl is linked with: looking in its module finds that one."""
    library, pointer, count = ctypes.CDLL(cl._cl.__file__), ctypes.c_void_p, ctypes.c_uint32
    library.clEnqueueNDRangeKernel.argtypes = [
        pointer, pointer, count, pointer, pointer, pointer, count, pointer, pointer,
    ]  # fmt: skip
    library.clEnqueueMarkerWithWaitList.argtypes = [pointer, count, pointer, pointer]
    library.clFlush.argtypes = [pointer]
    return library


def submit(queue: int, steps: Sequence[tuple[int, Any, Any]]) -> Any:
    """Put kernels into a queue, and return the event of their end. Raises CallError.

    Parameters
    ----------
    queue : int
        Its handle.
    steps : sequence of (int, SIZES, SIZES)
        Each a kernel's handle, its invocations along three axes, and those of a workgroup.
    """
    library, event = _library(), ctypes.c_void_p()
    for kernel, size, local in steps:
        code = library.clEnqueueNDRangeKernel(queue, kernel, 3, None, size, local, 0, None, None)
        if code:
            raise CallError("clEnqueueNDRangeKernel", code)
    code = library.clEnqueueMarkerWithWaitList(queue, 0, None, ctypes.byref(event))
    if code:
        raise CallError("clEnqueueMarkerWithWaitList", code)
    made = cl.Event.from_int_ptr(event.value or 0, False)
    code = library.clFlush(queue)
    if code:
        raise CallError("clFlush", code)
    return made
