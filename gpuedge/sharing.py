"""Results that stay on the GPU, as textures and buffers of an application's moderngl context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuedge.backends.base import Binding, Buffer
from gpuedge.core.errors import ClosedError, UsageError
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.packed import read_model
from gpuedge.runtime.inputs import check_inputs
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    import os

    import moderngl
    import onnx

    from gpuedge.device import Device


class SharedModel:
    """A model whose results an application draws with: they never leave the GPU.

    Use it in a ``with`` statement, or close it before its device. One thread at a time, the one in
    which the application's context is current.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        Every operator must be one that the device runs.
    device : Device
        Opened with ``gpuedge.open("gles31", context=...)``.

    Raises
    ------
    UsageError (GE-200)
        The device was not opened with an application's context.
    ModelError (GE-500), UnsupportedOpError (GE-501), DeviceError (GE-4xx)

    Examples
    --------
    >>> context = moderngl.create_context(standalone=True, backend="egl")  # doctest: +SKIP
    >>> with gpuedge.open("gles31", context=context) as device:  # doctest: +SKIP
    ...     with gpuedge.SharedModel("style.onnx", device) as model:
    ...         image = model.run({"frame": frame})["styled"]  # a moderngl.Buffer
    ...         image.bind_to_storage_buffer(0)
    """

    def __init__(self, model: str | os.PathLike[str] | bytes | onnx.ModelProto, device: Device):
        executor = device.executor
        impl = getattr(executor, "impl", None)
        if not isinstance(executor, GpuExecutor) or getattr(impl, "sharing", None) is None:
            raise UsageError(
                f"{device.name} shares nothing with an application.",
                hint="gpuedge.open('gles31', context=...) does, with its moderngl context",
            )
        self._executor = executor
        self._model = read_model(model)
        self._executable: GpuExecutable | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._made: dict[str, Buffer] = {}
        self._closed = False

    def run(self, inputs: Mapping[str, Any]) -> dict[str, moderngl.Buffer | moderngl.Texture]:
        """Compute the outputs and leave them on the GPU.

        Parameters
        ----------
        inputs : mapping
            Arrays by name.

        Returns
        -------
        dict
            On ``gles31`` a `moderngl.Buffer` each, with float32 values in C order; on ``gles30``
            and ``gles20`` a `moderngl.Texture` with the values, four to a texel from left to right
            and row by row. They hold this result until the next run, and are gone when
            the model is closed; releasing them does nothing.

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201)
            The inputs; no driver was touched.
        DeviceError (GE-4xx)
        """
        if self._closed:
            raise ClosedError("The shared model was closed before this call.")
        arrays = check_inputs(inputs, self._model)
        shapes = {name: array.shape for name, array in arrays.items()}
        if self._executable is None or shapes != self._shapes:
            self._drop()
            self._executable = self._executor.compile(self._model.specialise(shapes))
            self._shapes = shapes
        results: dict[str, Any] = {}

        def use(name: str, place: Binding) -> None:
            share = self._executor.impl.sharing.share  # type: ignore[attr-defined]
            buffer, results[name] = share(place, self._made.get(name))
            if buffer is not place.buffer:
                self._made[name] = buffer

        self._executable.run_there(arrays, use)
        return results

    def _drop(self) -> None:
        executable, self._executable = self._executable, None
        buffers, self._made = self._made, {}
        if self._executor.closed:
            return
        if executable is not None:
            executable.close()
        with held, self._executor.lock:
            for buffer in buffers.values():
                self._executor.impl.free(buffer)

    def close(self) -> None:
        """Give the model's memory back, results included; may be called twice."""
        self._closed = True
        self._drop()

    def __enter__(self) -> SharedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
