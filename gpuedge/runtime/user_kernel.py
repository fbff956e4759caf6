"""Kernels that users bring: GLSL compute shaders with numpy arguments by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.backends.base import Binding, Buffer, Dispatch, Program, Recording, Usage
from gpuedge.core.errors import (
    ClosedError,
    DTypeError,
    InputError,
    KernelLimitError,
    ShapeError,
    UsageError,
)
from gpuedge.core.interchange import as_array, as_numpy
from gpuedge.core.kernel import Number, PushArg
from gpuedge.core.storage import Storage
from gpuedge.executors.base import Executor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.executors.waiting import submit_and_wait
from gpuedge.lang.glsl import compile_glsl
from gpuedge.lang.interface import BufferArg, Reflection, reflect
from gpuedge.runtime.inputs import brief
from gpuedge.safety.interrupts import held
from gpuedge.safety.watchdog import Watchdog

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
OutputSpec = tuple[str | Sequence[int], str]
Groups = tuple[int, int, int]
MOST_BYTES = 16 << 20
"""Size of a kernel's file that is still read."""

_SHAPE_OF = re.compile(r"(\w+)\.shape")


class UserKernel:
    """A compute shader ready to be called with arrays by name. Made by `Device.kernel`.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Names of the buffers it reads and writes.
    params : tuple of str
        Names of its push constants, given by keyword with each call.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        reflection: Reflection,
        inputs: Sequence[str],
        outputs: Mapping[str, OutputSpec],
        specs: Mapping[str, Number],
    ) -> None:
        self._executor = executor
        self._reflection = reflection
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.params = tuple(p.name for p in reflection.blob.push)
        self._wanted = dict(outputs)
        self._arrays = self._match()
        self._check_outputs()
        _check_dtypes(reflection, executor)
        executor.check_open()
        with held, executor.lock, executor.compiling:
            program = executor.programs.build(
                reflection.blob, specs, executor.caps, reflection.local_size
            )
        self._program: Program | None = program
        self._ready: _Recorded | None = None

    def _match(self) -> dict[str, BufferArg]:
        """Find the buffer that each input and output names."""
        matched: dict[str, BufferArg] = {}
        for name in (*self.inputs, *self.outputs):
            fits = [b for b in self._reflection.buffers if name in b.names]
            if not fits or name in matched:
                names = ", ".join("/".join(b.names) for b in self._reflection.buffers)
                raise InputError(
                    f"'{name}' names no buffer of {self._reflection.blob.name}, or two.",
                    known=f"buffers: {names}",
                )
            matched[name] = fits[0]
        missing = [b.names[0] for b in self._reflection.buffers if b not in matched.values()]
        if missing:
            raise InputError(
                f"The buffer '{missing[0]}' of {self._reflection.blob.name} is neither an input "
                "nor an output."
            )
        return matched

    def _check_outputs(self) -> None:
        for name, spec in self._wanted.items():
            shape, dtype = spec if isinstance(spec, tuple | list) and len(spec) == 2 else (None, "")
            of = _SHAPE_OF.fullmatch(shape.strip()) if isinstance(shape, str) else None
            is_shape = _are_counts(shape) if of is None else of.group(1) in self.inputs
            there = self._arrays[name].dtype
            if not is_shape or dtype != there:
                raise (DTypeError if is_shape else InputError)(
                    f"The output '{name}', {there} in the shader, cannot be {spec!r}.",
                    asked_by="Device.kernel(outputs=...)",
                    known="(shape, dtype), the shape a tuple or 'NAME.shape' of an input: "
                    f"{', '.join(self.inputs)}",
                    hint=f"outputs={{'{name}': ((1, 3), '{there}')}}",
                )

    def __call__(self, *, groups: Groups | None = None, **arguments: Any) -> Any:
        """Run the kernel.

        Parameters
        ----------
        groups : (int, int, int), optional
            Workgroups to launch; by default enough along x for every element of the first output.
        **arguments
            Arrays by input name (dtype as in the shader, any shape) and push constants by name.

        Returns
        -------
        ndarray, or dict of str to ndarray if there are several outputs

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201)
            The arguments; no driver was touched.
        KernelLimitError (GE-303)
            More workgroups than the device allows.
        DeviceError (GE-4xx)
            The device failed.
        """
        arrays, params = self._split(arguments)
        shapes = {name: self._shape(name, arrays) for name in self.outputs}
        launch = self._groups(groups, shapes)
        push = self._reflection.blob.pack_push(
            [(0, 0, 0, 0)] * len(self._reflection.buffers), params
        )
        key = (tuple((n, a.nbytes) for n, a in arrays.items()), tuple(shapes.items()), launch, push)
        executor = self._executor
        executor.check_open()
        with held, executor.lock:
            ready = self._ready if self._ready is not None and self._ready.key == key else None
            with executor.running_first if ready is None else executor.running:
                executor.check_open()
                if self._program is None:
                    raise ClosedError(f"The kernel {self._reflection.blob.name} was closed.")
                if ready is None:
                    self._forget()
                    self._ready = ready = self._record(key, arrays, shapes, launch, push)
                return self._run(ready, arrays, shapes)

    def _split(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Number]]:
        known = (*self.inputs, *self.params)
        missing = [n for n in known if n not in arguments]
        unknown = [n for n in arguments if n not in known]
        if missing or unknown:
            what = f"'{missing[0]}' is missing" if missing else f"'{unknown[0]}' is unknown"
            raise InputError(
                f"Calling {self._reflection.blob.name}: {what}.",
                known=f"inputs: {', '.join(self.inputs)}; parameters: {', '.join(self.params)}",
            )
        arrays = {n: _array(n, arguments[n], self._arrays[n]) for n in self.inputs}
        return arrays, {p.name: _scalar(p, arguments[p.name]) for p in self._reflection.blob.push}

    def _shape(self, name: str, arrays: Mapping[str, Array]) -> Shape:
        shape, _ = self._wanted[name]
        if isinstance(shape, str):
            return arrays[shape.strip().removesuffix(".shape")].shape
        return tuple(int(d) for d in shape)

    def _groups(self, groups: Groups | None, shapes: Mapping[str, Shape]) -> Groups:
        x, y, z = self._reflection.local_size
        if groups is None:
            if y * z != 1:
                raise UsageError(
                    "A kernel with a two- or three-dimensional workgroup needs groups=."
                )
            first = self.outputs[0]
            elements = -(-prod(shapes[first]) // self._arrays[first].components)
            groups = (-(-elements // x), 1, 1)
        if not _are_counts(groups) or len(groups) != 3:
            raise UsageError(f"groups={groups!r} is not three counts.")
        for count, limit in zip(groups, self._executor.caps.max_groups, strict=True):
            if count > limit:
                raise KernelLimitError(f"{count} workgroups along one axis; {limit} are allowed.")
        return groups

    def _record(
        self,
        key: tuple[Any, ...],
        arrays: Mapping[str, Array],
        shapes: Mapping[str, Shape],
        groups: Groups,
        push: bytes,
    ) -> _Recorded:
        impl = self._executor.impl
        recorded = _Recorded(key)
        try:
            for name, argument in self._arrays.items():
                usage = Usage.INPUT if name in arrays else Usage.OUTPUT
                shape = arrays[name].shape if name in arrays else shapes[name]
                nbytes = np.dtype(argument.dtype).itemsize * prod(shape)
                storage = Storage(dtype=argument.dtype)
                recorded.buffers[name] = impl.alloc(max(16, nbytes), usage, storage)
            by_binding = {self._arrays[n].binding: b for n, b in recorded.buffers.items()}
            bindings = tuple(
                Binding(by_binding[i], 0, by_binding[i].nbytes) for i in range(len(by_binding))
            )
            program = self._program
            work = [Dispatch(program, bindings, push, groups)] if program and min(groups) else []
            recorded.recording = impl.record(
                work,
                [recorded.buffers[n] for n in self.inputs],
                [recorded.buffers[n] for n in self.outputs],
            )
        except BaseException:
            recorded.release(self._executor)
            raise
        return recorded

    def _run(
        self, ready: _Recorded, arrays: Mapping[str, Array], shapes: Mapping[str, Shape]
    ) -> Any:
        impl = self._executor.impl
        for name, array in arrays.items():
            if array.nbytes:
                impl.write(ready.buffers[name], array.reshape(-1).view(np.uint8).data)
        if ready.recording is not None:
            submit_and_wait(impl, [ready.recording], ready.watchdog)
        results: dict[str, Array] = {}
        for name, shape in shapes.items():
            out = np.empty(shape, self._arrays[name].dtype)
            if out.nbytes:
                impl.read(ready.buffers[name], out.reshape(-1).view(np.uint8).data)
            results[name] = out
        return results if len(results) > 1 else next(iter(results.values()))

    def _forget(self) -> None:
        if self._ready is not None:
            self._ready.release(self._executor)
            self._ready = None

    def close(self) -> None:
        """Give the kernel's memory and program back to the device; may be called twice."""
        if self._executor.is_inherited or self._executor.closed:
            return
        with held, self._executor.lock:
            program, self._program = self._program, None
            if program is not None and not self._executor.closed:
                self._forget()
                self._executor.programs.release(program)


class _Recorded:
    """Buffers and recorded work for one set of shapes."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.buffers: dict[str, Buffer] = {}
        self.recording: Recording | None = None
        self.watchdog = Watchdog()

    def release(self, executor: GpuExecutor) -> None:
        if self.recording is not None:
            executor.impl.release(self.recording)
        for buffer in self.buffers.values():
            executor.impl.free(buffer)


def make_kernel(
    executor: Executor,
    source: str | os.PathLike[str],
    inputs: Sequence[str],
    outputs: Mapping[str, OutputSpec],
    specs: Mapping[str, Number] | None,
) -> UserKernel:
    """Compile `source` (a path, or GLSL text) for the device of `executor`; see `Device.kernel`."""
    if not isinstance(executor, GpuExecutor) or "raw" not in executor.caps.forms:
        raise UsageError(f"{executor.device} cannot run GLSL kernels; open a Vulkan device.")
    text, name = _source(source)
    specs = specs or {}
    kinds = {"inputs": (inputs, Iterable), "outputs": (outputs, Mapping), "specs": (specs, Mapping)}
    for argument, (value, kind) in kinds.items():
        if not isinstance(value, kind) or (argument == "outputs" and not value):
            raise InputError(
                f"The {argument} of a kernel cannot be {brief(value)}.",
                asked_by=f"Device.kernel({argument}=...)",
                known="inputs: a sequence of names; outputs: at least one (shape, dtype) by name; "
                "specs: numbers by name",
                hint="kernel(source, inputs=['a'], outputs={'b': ('a.shape', 'float32')})",
            )
    return UserKernel(executor, reflect(compile_glsl(text, name), name), inputs, outputs, specs)


def _source(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the text of a kernel and its name. Raises InputError (GE-203)."""
    try:
        if isinstance(source, str) and "\n" in source:
            source.encode()
            return source, "kernel"
        path = Path(source)
        status = path.stat()
        if S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:  # a pipe would be waited for
            return path.read_text(encoding="utf-8"), path.name
        why = f"it is not a file of at most {MOST_BYTES >> 20} MiB"
    except (OSError, TypeError, ValueError) as error:  # no path, or neither of them is text
        why = str(error)
    raise InputError(
        f"The kernel {brief(source)} cannot be read.",
        asked_by="Device.kernel(source, ...)",
        known=why,
        hint="give the path of a file, or GLSL text of more than one line",
    )


def _are_counts(values: Any) -> bool:
    """Say whether these are whole numbers from 0 on."""
    kinds = (int, np.integer)
    return isinstance(values, tuple | list) and all(isinstance(n, kinds) and n >= 0 for n in values)


def _array(name: str, value: Any, buffer: BufferArg) -> Array:
    value = as_numpy(value, f"'{name}'")
    array = as_array(value, f"'{name}'")
    if not isinstance(value, (np.ndarray, np.generic)) and array.dtype.kind in "fiub":
        array = array.astype(buffer.dtype)
    if array.dtype.newbyteorder("=").name != buffer.dtype:
        raise DTypeError(f"'{name}' has dtype {array.dtype}; the shader reads {buffer.dtype}.")
    if array.size % buffer.components:
        raise ShapeError(
            f"'{name}' has {array.size} elements; the shader reads vec{buffer.components}."
        )
    return np.ascontiguousarray(array, buffer.dtype).reshape(array.shape)


def _scalar(argument: PushArg, value: Any) -> Number:
    array = np.asarray(value)
    kinds = "fiub" if argument.type == "float" else "iub"
    if array.ndim or array.dtype.kind not in kinds:
        raise DTypeError(f"The parameter '{argument.name}' is one {argument.type}, not {value!r}.")
    number = array.item()
    return float(number) if argument.type == "float" else int(number)


_NEEDS = {
    "float16": "has_fp16_storage", "int16": "has_fp16_storage", "uint16": "has_fp16_storage",
    "int8": "has_int8_storage", "uint8": "has_int8_storage",
}  # fmt: skip
"""What a device must offer for buffers of elements of less than 32 bits."""


def _check_dtypes(reflection: Reflection, executor: GpuExecutor) -> None:
    for buffer in reflection.buffers:
        need = _NEEDS.get(buffer.dtype)
        if need is not None and getattr(executor.caps, need) is not True:
            raise KernelLimitError(
                f"{reflection.blob.name} keeps {buffer.dtype} in a storage buffer, which "
                f"{executor.device} does not offer.",
                known=f"Caps.{need} is {getattr(executor.caps, need)}",
            )
