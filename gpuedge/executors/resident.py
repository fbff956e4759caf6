"""Tensors that stay on a device between runs, and on the host where they are needed there.

A resident tensor has a buffer of its own, in the layout in which graphs give and take tensors: C
order. What another executable of the device computes next is recorded over that buffer, so nothing
is copied. Buffers that nothing refers to any more are kept for the next tensors of their size.
"""

from __future__ import annotations

import _thread
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.backends.base import Buffer, Usage
from gpuedge.core.dtypes import WIDE, require_exact, rounded
from gpuedge.core.errors import GpuEdgeError, OutOfMemoryError
from gpuedge.core.storage import BUFFER, FLOAT32, Storage
from gpuedge.graph.ir import Array
from gpuedge.plan.layout import linear
from gpuedge.plan.storages import input_storage
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.executors.gpu import GpuExecutable, GpuExecutor

KEPT_BYTES = 64 << 20
"""Of unused buffers that a device keeps for the next tensors."""

NOWHERE: Mapping[str, Array] = MappingProxyType({})

_Kind = tuple[int, Storage, Usage]


class TensorMemory:
    """The buffers of one device's resident tensors.

    All but `give` is to be called with the device's lock.
    """

    def __init__(self, executor: GpuExecutor) -> None:
        self.executables: weakref.WeakSet[GpuExecutable] = weakref.WeakSet()
        self._executor = weakref.ref(executor)
        self._given: deque[tuple[_Kind, Buffer]] = deque()
        self._unused: dict[_Kind, list[Buffer]] = {}  # by kind, that of the latest use last
        self.unused_bytes = self._given_bytes = 0
        self._is_tidying = False

    def take(self, nbytes: int, storage: Storage, usage: Usage) -> Buffer:
        """Return a buffer, contents undefined. Raises OutOfMemoryError."""
        kind = nbytes, storage, usage
        with suppress(IndexError):
            found, buffer = self._given.pop()  # the latest one: most often the last result's
            if found == kind:
                self._given_bytes -= nbytes
                return buffer
            self._given.append((found, buffer))
        self.tidy()
        known = self._unused.get(kind)
        if known:
            self.unused_bytes -= nbytes
            return known.pop()
        executor = self._executor()
        if executor is None:
            raise ReferenceError("a tensor is made on a device that is gone")
        try:
            return executor.impl.alloc(nbytes, usage, storage)
        except OutOfMemoryError:
            self.tidy(most_bytes=0)
            return executor.impl.alloc(nbytes, usage, storage)

    def give(self, nbytes: int, storage: Storage, usage: Usage, buffer: Buffer) -> None:
        """Take back a buffer that nothing refers to; from any thread, at any moment.

        This is called where Python drops a reference, which may be inside a call of the driver. So
        it only takes note; whoever uses the device next tidies up, or a thread where it is much.
        """
        self._given.append(((nbytes, storage, usage), buffer))
        self._given_bytes += nbytes
        if self._given_bytes > KEPT_BYTES and not self._is_tidying:
            self._is_tidying = True
            with suppress(RuntimeError):  # as the interpreter ends
                _thread.start_new_thread(self._tidy_up, ())

    def _tidy_up(self) -> None:
        executor = self._executor()
        if executor is None or executor.is_inherited:
            return
        with executor.lock:
            self._is_tidying = False
            if not executor.closed:
                with suppress(GpuEdgeError), executor.impl.entered():
                    self.tidy()

    def tidy(self, most_bytes: int = KEPT_BYTES) -> None:
        """Note what was given back, and give the driver back what is more than so much."""
        self._given_bytes = 0
        while self._given:
            kind, buffer = self._given.popleft()
            self._unused[kind] = [*self._unused.pop(kind, ()), buffer]
            self.unused_bytes += kind[0]
        while self.unused_bytes > most_bytes:
            kind = next(iter(self._unused))
            buffers = self._unused[kind]
            if not buffers:
                del self._unused[kind]
                continue
            self._free(buffers.pop(0))
            self.unused_bytes -= kind[0]

    def _free(self, buffer: Buffer) -> None:
        for executable in self.executables:
            executable.forget(buffer)
        executor = self._executor()
        if executor is not None:
            executor.impl.free(buffer)


class DeviceTensor:
    """One tensor on an open device: a buffer that goes back when the last reference goes.

    Attributes
    ----------
    executor : GpuExecutor
    buffer : Buffer
    nbytes : int
        Of the buffer, as the host counts them.
    storage : Storage
    usage : Usage
        `Usage.INPUT` where the host writes there, where it may see that memory.
    """

    __slots__ = ("__weakref__", "buffer", "executor", "nbytes", "storage", "usage")

    def __init__(
        self, executor: GpuExecutor, nbytes: int, storage: Storage, usage: Usage = Usage.SCRATCH
    ) -> None:
        self.executor, self.nbytes, self.storage, self.usage = executor, nbytes, storage, usage
        self.buffer = executor.tensors.take(nbytes, storage, usage)

    def __del__(self) -> None:
        buffer = getattr(self, "buffer", None)
        if buffer is not None and not self.executor.closed:
            self.executor.tensors.give(self.nbytes, self.storage, self.usage, buffer)

    def abandon(self) -> None:
        """Leave the buffer to the end of the device: work that uses it may still run."""
        self.buffer = None  # type: ignore[assignment]

    @property
    def is_alive(self) -> bool:
        """Whether its device is open in this process."""
        return not (self.executor.closed or self.executor.is_inherited)

    def read(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return what it holds. Raises ClosedError (GE-204), DeviceError (GE-4xx)."""
        executor = self.executor
        executor.check_open()
        out = np.empty(shape, self.storage.dtype)
        with held, executor.lock, executor.running, executor.impl.entered():
            executor.check_open()
            flat = out.reshape(-1).view(np.uint8)
            if flat.size:
                executor.impl.read(self.buffer, flat.data, 0)
        if dtype in WIDE:
            require_exact("a result", out, executor.device, dtype=dtype)
        return rounded(out, dtype)


class SharedInput(np.ndarray[Any, Any]):
    """An array of the host in memory that a device reads: what is written there goes nowhere else.

    Attributes
    ----------
    tensor : DeviceTensor or None
        None of what was made of it, such as its parts and copies.
    """

    tensor: DeviceTensor | None = None

    @classmethod
    def on(cls, executor: Any, dtype: str, shape: tuple[int, ...]) -> SharedInput | None:
        """Return one of zeros; None where a device shares no memory, or does not keep the dtype."""
        share = getattr(getattr(executor, "impl", None), "map", None)
        if share is None or executor.caps.storages[0] != BUFFER:
            return None
        kept = FLOAT32 if dtype == "float32" else input_storage(dtype, executor.caps)
        if kept is None:
            return None
        nbytes = linear(shape).nbytes // FLOAT32.texel_bytes * kept.texel_bytes
        with held, executor.building():
            tensor = DeviceTensor(executor, nbytes, kept, Usage.INPUT)
            memory = share(tensor.buffer)
        if memory is None:
            return None
        memory.owner = tensor  # any view of the array keeps it
        count = prod(shape)
        array = np.asarray(memory).view(dtype)[:count].reshape(shape).view(cls)
        array.tensor = tensor
        array[...] = 0
        return array


class Resident:
    """An array that may lie on the host, on a device, or on both; it never changes.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    """

    __slots__ = ("__weakref__", "_array", "_has_nan", "_tensor", "dtype", "shape")

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        array: Array | None = None,
        tensor: DeviceTensor | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._array, self._tensor = array, tensor
        self._has_nan: bool | None = None

    @classmethod
    def of(cls, array: Array) -> Resident:
        """Return one that lies on the host; nothing may write to `array` any more."""
        array.flags.writeable = False
        return cls(array.dtype.name, array.shape, array)

    @property
    def is_on_host(self) -> bool:
        """Whether the host has it."""
        return self._array is not None

    @property
    def has_nan(self) -> bool:
        """Whether it holds NaN; reads it back where the host does not have it."""
        if self._has_nan is None:
            self._has_nan = np.dtype(self.dtype).kind == "f" and bool(np.isnan(self.array()).any())
        return self._has_nan

    @property
    def device(self) -> str | None:
        """Which device has it; None for none that is open."""
        tensor = self._tensor
        return tensor.executor.device if tensor is not None and tensor.is_alive else None

    @property
    def is_lost(self) -> bool:
        """Whether nobody has it any more."""
        return self._array is None and self.device is None

    def array(self) -> Array:
        """Return it on the host, where it stays as well; not to be written to.

        Raises ClosedError (GE-204) or DeviceError (GE-4xx) where it was lost with its device.
        """
        if self._array is None and self._tensor is not None:
            array = self._tensor.read(self.dtype, self.shape)
            array.flags.writeable = False
            self._array = array
        return self._array  # type: ignore[return-value]

    def on(self, executor: GpuExecutor, nbytes: int, storage: Storage) -> DeviceTensor | None:
        """Return its tensor on a device, if it has one there that is kept like this."""
        tensor = self._tensor
        if tensor is None or tensor.executor is not executor:
            return None
        return tensor if (tensor.nbytes, tensor.storage) == (nbytes, storage) else None

    def kept_on(self, executor: GpuExecutor) -> Storage | None:
        """Return how a device keeps it that has it."""
        tensor = self._tensor
        return None if tensor is None or tensor.executor is not executor else tensor.storage

    def widened(self) -> Resident:
        """Return what is float16 as float32; on devices it is kept so."""
        array = None if self._array is None else self._array.astype(np.float32)
        return Resident("float32", self.shape, array, self._tensor)

    def place(self, tensor: DeviceTensor) -> None:
        """Note where it lies now, too."""
        self._tensor = tensor

    def leave(self) -> None:
        """Forget what a device has of it."""
        self._tensor = None


class Residents(Mapping[str, Array]):
    """Inputs of a run whose results are to stay where they are computed.

    As a mapping it has arrays of the host: what needs them there reads them back by asking. A
    device that has one of `values_there` takes it as it lies, and gives residents as results; but
    what is to go `into` memory of the host.
    """

    def __init__(
        self, values: Mapping[str, Resident | Array], into: Mapping[str, Array] = NOWHERE
    ) -> None:
        self.values_there, self.into = values, into

    def __getitem__(self, name: str) -> Array:
        value = self.values_there[name]
        return value.array() if isinstance(value, Resident) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_there)

    def __len__(self) -> int:
        return len(self.values_there)


def resident(result: Any) -> Resident:
    """Return a result of a run as a resident: one that stayed, or an array of the host."""
    return result if isinstance(result, Resident) else Resident.of(result)
