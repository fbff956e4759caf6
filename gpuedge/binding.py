"""A session's model bound to arrays on its device and to memory of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import no_copy
from gpuedge.core.errors import DTypeError, InputError, ShapeError
from gpuedge.core.interchange import memory_of
from gpuedge.core.text import shown
from gpuedge.executors.resident import Resident, Residents, SharedInput
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import shapes_of, signature_of
from gpuedge.ops.array import DeviceArray, check_place, located, over, resident_of
from gpuedge.runtime.inputs import (
    check_copies,
    check_dict,
    check_names,
    check_timeout,
    chosen,
    fitting,
)
from gpuedge.runtime.request import Request
from gpuedge.runtime.serving import Server
from gpuedge.runtime.shapes import Compiler
from gpuedge.safety.interrupts import entry, let_go

if TYPE_CHECKING:
    from gpuedge.graph.reader import Signature


class BoundSession:
    """A model bound to its inputs and outputs; made by `Session.bind`.

    Not for several threads at once.
    """

    def __init__(
        self, server: Server, compiler: Compiler, request: Request, inputs: Any, outputs: Any
    ) -> None:
        self._server, self._compiler, self._request = server, compiler, located(request)
        self._wanted: dict[str, Signature] = dict(compiler.model.inputs)
        self._inputs: dict[str, Array | DeviceArray] = {}
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._shapes: Any = None
        check_names(inputs, self._wanted)
        self._into = self._memory(outputs)
        self._take(inputs)

    # -- checking -----------------------------------------------------------------------------

    def _take(self, inputs: Mapping[str, Any]) -> None:
        """Bind some inputs, all of which fit, or none."""
        fit = {name: self._checked(name, value) for name, value in inputs.items()}
        for name, array in self._arrays(fit).items():
            for other, memory in self._into.items():
                if np.shares_memory(array, memory):
                    raise InputError(
                        f"Input {shown(name)} and output {shown(other)} share memory.",
                        asked_by="Session.bind",
                        hint="bind two arrays; a run that fails midway begins again",
                    )
        bound = self._inputs | fit
        stand_ins = self._stand_ins(bound)
        check_copies(self._arrays(fit), stand_ins, self._compiler.model)
        self._inputs = bound
        self._kinds |= {n: (v.shape, v.dtype) for n, v in self._arrays(fit).items()}
        self._shapes = shapes_of(stand_ins, frozenset())

    def _changed(self) -> dict[str, Array]:
        """Return the bound arrays of numpy whose shape or type was changed in place since."""
        arrays = self._arrays(self._inputs)
        return {n: v for n, v in arrays.items() if (v.shape, v.dtype) != self._kinds[n]}

    def _check_memory(self) -> None:
        for name, memory in self._into.items():
            if not memory.flags.writeable:
                raise InputError(
                    f"The memory of output {shown(name)} cannot be written to any more.",
                    asked_by="BoundSession.run",
                )

    def _checked(self, name: str, value: Any) -> Array | DeviceArray:
        signature = signature_of(name, self._wanted)
        if isinstance(value, DeviceArray):
            check_place(f"input {shown(name)} of a session", value, self._request)
            fitting(name, _stand_in(value), signature)
            return value
        if isinstance(value, SharedInput):
            fitting(name, value, signature)
            return value
        array = memory_of(value, f"Input {shown(name)}")
        if array is None:
            raise InputError(
                f"Input {shown(name)} is bound to {type(value).__name__}.",
                asked_by="Session.bind",
                known="memory that is bound is read in every run: an array of numpy, one that "
                "gpuedge.array made, or of another package by DLPack or the buffer protocol",
            )
        return fitting(name, array, signature)

    def _memory(self, outputs: Any) -> dict[str, Array]:
        """Return the memory that outputs are written to."""
        if outputs is None:
            return {}
        if not isinstance(outputs, Mapping):
            raise InputError("Outputs are bound as a dict of arrays by name.")
        known = self._compiler.model.outputs
        chosen(list(outputs), known)
        memories: dict[str, Array] = {}
        for name, given in outputs.items():
            dtype, dims = known[name]
            memory = memory_of(given, f"The memory of output {shown(name)}")
            if memory is None or not memory.flags.writeable:
                raise InputError(
                    f"Output {shown(name)} is bound to what cannot be written to.",
                    asked_by="Session.bind",
                    hint="numpy.empty(shape, dtype)",
                )
            if _overlaps_itself(memory):
                raise InputError(
                    f"Elements of the memory of output {shown(name)} share bytes.",
                    asked_by="Session.bind",
                )
            if memory.dtype != np.dtype(dtype):
                raise DTypeError(
                    f"Output {shown(name)} has dtype {dtype}, its memory {memory.dtype}."
                )
            if dims is not None:
                _check_shape(name, memory.shape, dims)
            memories[name] = memory
        arrays = list(memories.items())
        for i, (name, memory) in enumerate(arrays):
            for other, theirs in arrays[:i]:
                if np.shares_memory(memory, theirs):
                    raise InputError(
                        f"Outputs {shown(other)} and {shown(name)} share memory.",
                        asked_by="Session.bind",
                    )
        return memories

    def _stand_ins(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        """Return arrays of the inputs' types, in the model's order."""
        given = ((name, inputs[name]) for name in self._wanted)
        return {n: _stand_in(v) if isinstance(v, DeviceArray) else v for n, v in given}

    @staticmethod
    def _arrays(values: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        return {n: v for n, v in values.items() if not isinstance(v, DeviceArray)}

    # -- running ------------------------------------------------------------------------------

    @entry
    def run(
        self, inputs: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Run the model on what is bound.

        Parameters
        ----------
        inputs : mapping of str to ndarray or DeviceArray, optional
            What to bind from now on instead of some inputs, such as a result of another session.
        timeout_s : float, optional
            As for `Session.run`.

        Returns
        -------
        dict of str to ndarray or DeviceArray
            Every output by name: the memory that it is bound to, else an array on the device. Such
            an array is lost with the device unless somebody has looked at it.

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201), MixedDevicesError (GE-207)
            What was given does not fit; no driver was touched, and what was bound stays so. An
            output does not fit its memory.
        GpuEdgeError
            What `Session.run` raises, and ClosedError (GE-204) where an input was lost.
        """
        seconds = None if timeout_s is None else check_timeout(timeout_s)
        try:
            if inputs is not None:
                self._server.check_open()
                check_dict(inputs, self._wanted)
            given = inputs or {}
            if self._kinds and (changed := self._changed()):
                given = {**changed, **given}
            if given:
                self._take(given)
            if self._into:
                self._check_memory()
            values = {n: _value(v, self._wanted[n][0]) for n, v in self._inputs.items()}
            residents, shapes = Residents(values, self._into), self._shapes
            if self._compiler.parameters:
                shapes = shapes_of(residents, self._compiler.parameters)
            results = self._server.run(residents, shapes, seconds)
            return {name: self._given(name, result) for name, result in results.items()}
        except BaseException as error:
            let_go(error)
            raise

    def _given(self, name: str, result: Any) -> Any:
        memory = self._into.get(name)
        if memory is None:
            return over(self._request, result)
        if result is not memory:
            array = result.array() if isinstance(result, Resident) else result
            if array.shape != memory.shape:
                _check_shape(name, memory.shape, array.shape)
            np.copyto(memory, array)
        return memory


def _value(value: Array | DeviceArray, dtype: str) -> Array | Resident:
    """Return what a run takes of an input now."""
    if isinstance(value, DeviceArray):
        # what is float16 lies on devices as float32, and the CPU takes the model's own dtype
        return value.numpy() if dtype == "float16" else resident_of(value)
    if isinstance(value, SharedInput) and value.tensor is not None and value.tensor.is_alive:
        return Resident(dtype, value.shape, value.view(np.ndarray), value.tensor)
    if value.flags.c_contiguous and value.flags.aligned and value.dtype.isnative:
        return value
    try:
        return np.require(value, dtype, ["C", "A"])
    except MemoryError as error:
        raise no_copy("the inputs", error) from None


def _stand_in(value: DeviceArray) -> Array:
    return np.broadcast_to(np.empty((), value.dtype), value.shape)


def _overlaps_itself(memory: Array) -> bool:
    """Return whether strides are smaller than what lies between them."""
    span = memory.itemsize
    axes = sorted((abs(s), e) for s, e in zip(memory.strides, memory.shape, strict=True) if e > 1)
    for stride, extent in axes if memory.size else ():
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


def _check_shape(name: str, shape: tuple[int, ...], dims: Any) -> None:
    pairs = zip(dims, shape, strict=False)
    if len(shape) != len(dims) or any(isinstance(d, int) and d != e for d, e in pairs):
        wanted = ", ".join("?" if d is None else str(d) for d in dims)
        raise ShapeError(
            f"Output {shown(name)} has shape [{wanted}], its memory {list(shape)}.",
            asked_by="Session.bind",
        )
