"""Sessions: an ONNX model on the device that suits it, numpy in and numpy out."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core import config
from gpuedge.core.errors import ClosedError, DTypeError, InputError, ShapeError, UsageError
from gpuedge.executors.base import PlacementRow
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import OnnxModel, Signature
from gpuedge.kernels.storages import Range
from gpuedge.runtime.compiled import Compiled
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.ranges import measure
from gpuedge.runtime.request import make_request

if TYPE_CHECKING:
    import onnx

    from gpuedge.decide.decision import Decision
    from gpuedge.decide.policy import Policy
    from gpuedge.device import Device

MAX_SHAPES = 8
"""Sets of input shapes kept compiled; the least recently used one is dropped."""


class Session:
    """An ONNX model, ready to run.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        The model. External weights are read only from the model's own folder.
    device : str or Device, optional
        ``"auto"`` (the default) decides by measurement; ``"cpu"``, ``"vulkan"``, ``"vulkan:1"``
        take that device or raise. Setting: ``GPUEDGE_DEVICE``.
    policy : Policy, optional
        How ``auto`` decides, and how a GPU keeps tensors.
    fallback : {"cpu", "error"}, optional
        What happens to operators the device cannot run, and when it fails: the CPU takes over
        (the default), or an error. Setting: ``GPUEDGE_FALLBACK``.
    isolation : {"inline"}, optional
        Where the driver lives.

    Raises
    ------
    ModelError (GE-500), UnsupportedOpError (GE-501)
        The model cannot be read or run.
    InputError (GE-203)
        A weight holds NaN.
    ConfigError (GE-101), UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        A setting or the device.

    Notes
    -----
    On a GPU, float16 values are computed in float32 and rounded once where they leave it.
    One session may be used from several threads; its runs happen one after another.

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> with gpuedge.Session("model.onnx") as session:           # doctest: +SKIP
    ...     result = session.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
    ...     print(session.explain())
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        *,
        device: str | Device | None = None,
        policy: Policy | None = None,
        fallback: str | None = None,
        isolation: str | None = None,
    ) -> None:
        config.check_environment()
        self._request = make_request(device, policy, fallback, isolation)
        self._model = OnnxModel.load(model)
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._inherited: list[Any] = []
        self._closed = self._closing = False
        self._compiled: OrderedDict[tuple[tuple[int, ...], ...], Compiled] = OrderedDict()
        self._latest: Compiled | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._worker_thread: int | None = None
        self._times: dict[str, list[float]] = {"compile": [], "run": []}
        self._calibration = self._check_calibration()
        self._ranges: dict[str, Range] | None = None
        fixed = [_fixed(signature) for signature in self.inputs.values()]
        if all(shape is not None for shape in fixed):
            self._for(tuple(shape for shape in fixed if shape is not None))

    @property
    def inputs(self) -> dict[str, Signature]:
        """Dtype name and shape of every input; extents are numbers, symbols or None."""
        return dict(self._model.inputs)

    @property
    def outputs(self) -> dict[str, Signature]:
        """Dtype name and shape of every output."""
        return dict(self._model.outputs)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of str to array_like
            Every input by name, with the model's dtypes. Any strides; never modified.

        Returns
        -------
        dict of str to ndarray
            Every output by name; the arrays belong to the caller.

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201)
            The inputs do not fit the model. No driver was touched.
        NotFiniteError (GE-205)
            An input holds NaN or infinity, and the device named cannot keep them.
        DeviceError (GE-4xx)
            The device failed and ``fallback="error"`` was asked for.
        ClosedError (GE-204)
            The session was closed.
        """
        self._here()
        with self._lock:
            self._check_open()
            arrays = self._check(inputs)
            compiled = self._for(tuple(a.shape for a in arrays.values()))
            start = time.perf_counter()
            result = compiled.run(arrays)
            self._note("run", time.perf_counter() - start)
            return result

    def run_async(self, inputs: Mapping[str, Any]) -> Future[dict[str, Array]]:
        """Run the model in the session's worker thread and return a future of `run`'s result."""
        self._here()
        with self._lock:
            self._check_open()
            if self._closing:
                raise _closed()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "gpuedge-session", self._enter_worker)
            return self._worker.submit(self.run, inputs)

    def explain(self) -> Decision:
        """Return why the model runs where it runs; prints as a sentence and a table.

        Raises
        ------
        InputError (GE-203)
            The model's input shapes are open and nothing has run yet.
        """
        return self._last().decision

    @property
    def placement(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group: names, ops, device, kernel variant, storage.

        `storage` says how a GPU keeps the results (``buffer``, ``rgba8_float``, ...).

        Empty until the first `run` where the model leaves input shapes open. Nodes evaluated while
        planning have device ``host``.
        """
        return () if self._latest is None else self._latest.rows

    @property
    def refusals(self) -> dict[str, str]:
        """Nodes that the chosen device could not run, with the reason; they ran on the CPU."""
        return {} if self._latest is None else dict(self._latest.refusals)

    def profile(self) -> dict[str, Any]:
        """Return times of compiling and running, in seconds, and what the device counted.

        ``storages`` are the kinds of storage that results are kept in on a GPU.
        """
        summary: dict[str, Any] = {}
        for name, times in self._times.items():
            ordered = sorted(times)
            summary[name] = {
                "count": len(ordered),
                "first_s": times[0] if times else None,
                "p50_s": ordered[len(ordered) // 2] if ordered else None,
                "p90_s": ordered[int(len(ordered) * 0.9)] if ordered else None,
            }
        impl = getattr(self._latest.executor, "impl", None) if self._latest else None
        summary["device"] = None if self._latest is None else self._latest.executor.device
        rows = () if self._latest is None else self._latest.rows
        kept = (kind for row in rows for kind in row.storage.split("+") if kind)
        summary["storages"] = sorted(set(kept))
        summary["counters"] = None if impl is None else impl.counters.snapshot()
        return summary

    def close(self) -> None:
        """Release what the session holds; may be called twice. Running futures finish first.

        Called from a future's callback, it cannot wait for the futures after that one: they fail
        with ClosedError.
        """
        self._here()
        with self._lock:
            self._closing = True  # no new worker comes after this one
            worker, self._worker = self._worker, None
        if worker is not None:
            # A thread cannot wait for itself; callbacks run in the worker.
            worker.shutdown(wait=threading.get_ident() != self._worker_thread)
        with self._lock:
            self._closed = True
            for compiled in self._compiled.values():
                compiled.close()
            self._compiled.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._latest.executor.device if self._latest else self._request.device
        return (
            f"<gpuedge.Session on {where!r}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"
        )

    # -- inside -------------------------------------------------------------------------------

    def _here(self) -> None:
        """Compile anew in a forked child: threads and locks behind the old parts are not here.

        They are kept, because destroying them would wait for those threads.
        """
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._inherited += [self._compiled, self._worker]
            self._lock = threading.RLock()
            self._compiled = OrderedDict()
            self._worker = self._latest = None

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _enter_worker(self) -> None:
        self._worker_thread = threading.get_ident()

    def _last(self) -> Compiled:
        if self._latest is None:
            raise InputError(
                "Nothing has been decided yet: the model leaves input shapes open.",
                hint="run the model once, then ask",
            )
        return self._latest

    def _note(self, name: str, seconds: float) -> None:
        times = self._times[name]
        times.append(seconds)
        if len(times) > 1000:
            del times[1:501]

    def _check(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the inputs as arrays in the model's order, or say what is wrong with them."""
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"Inputs are given as a dict by name, not as {type(inputs).__name__}.",
                known=f"inputs: {', '.join(self.inputs)}",
            )
        wanted = self._model.inputs
        if inputs.keys() != wanted.keys():
            missing = [n for n in wanted if n not in inputs]
            unknown = [n for n in inputs if n not in wanted]
            wrong = [f"Input '{n}' is missing" for n in missing[:1]]
            wrong += [f"the model has no input '{n}'" for n in unknown[:1]]
            text = "; ".join(wrong)
            raise InputError(
                f"{text[0].upper()}{text[1:]}.",
                known=f"the model's inputs: {', '.join(wanted)}",
            )
        return {n: _array(n, inputs[n], s) for n, s in wanted.items()}

    def _check_calibration(self) -> list[dict[str, Array]]:
        """Return the policy's calibration inputs, or say what is wrong with them."""
        try:
            return [self._check(feed) for feed in self._request.policy.calibration or ()]
        except UsageError as error:
            error.asked_by = "Policy(calibration=...)"
            raise

    def _calibrate(self) -> dict[str, Range]:
        """Return the bounds that the calibration inputs give, whatever their shapes."""
        if self._ranges is None:
            feeds = self._calibration
            graphs = (self._model.specialise({n: a.shape for n, a in f.items()}) for f in feeds)
            self._ranges = measure(zip(graphs, feeds, strict=True), POOL.cpu())
        return self._ranges

    def _for(self, shapes: tuple[tuple[int, ...], ...]) -> Compiled:
        """Return the compiled model for these input shapes."""
        ready = self._compiled.get(shapes)
        if ready is None:
            graph = self._model.specialise(dict(zip(self.inputs, shapes, strict=True)))
            start = time.perf_counter()
            calibrate = self._calibrate if self._calibration else None
            ready = Compiled(graph, self._request, calibrate=calibrate)
            self._note("compile", time.perf_counter() - start)
            self._compiled[shapes] = ready
            if len(self._compiled) > MAX_SHAPES:
                self._compiled.popitem(last=False)[1].close()
        self._compiled.move_to_end(shapes)
        self._latest = ready
        return ready


def _fixed(signature: Signature) -> tuple[int, ...] | None:
    """Return a signature's shape if every extent is a number."""
    _, dims = signature
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    return tuple(d for d in dims if isinstance(d, int))


def _closed() -> ClosedError:
    return ClosedError("The session was closed before this call.")


def _array(name: str, value: Any, signature: Signature) -> Array:
    """Return `value` as an array of the model's dtype and a shape it takes, aligned and in C order.

    Arrays must have the dtype; numbers and lists of numbers are converted where each fits.
    """
    dtype, dims = signature
    array = _as_array(name, value)
    if array.dtype == dtype and array.shape == dims and array.flags.c_contiguous:
        return np.require(array, requirements="A")
    if not hasattr(value, "dtype"):
        array = _converted(name, array, np.dtype(dtype))
    if array.dtype.newbyteorder("=").name != np.dtype(dtype).name:
        raise DTypeError(
            f"Input '{name}' has dtype {array.dtype}; the model takes {dtype}.",
            hint=f"convert it yourself, for example x.astype('{dtype}')",
        )
    if dims is not None and (
        array.ndim != len(dims)
        or any(isinstance(d, int) and d != e for d, e in zip(dims, array.shape, strict=True))
    ):
        wanted = ", ".join("?" if d is None else str(d) for d in dims)
        raise ShapeError(
            f"Input '{name}' has shape {list(array.shape)}; the model takes [{wanted}]."
        )
    return np.require(array, dtype, ["C", "A"])


def _as_array(name: str, value: Any) -> Array:
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InputError(
            f"Input '{name}' is a masked array, and a model knows no masks.",
            hint="say what the masked elements are to hold: x.filled(0)",
        )
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"Input '{name}' cannot be made an array: {error}.",
            hint="all rows of a list must have the same length",
        ) from None


def _converted(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers given without a dtype in `dtype`; as they are where that is another kind.

    Raises
    ------
    InputError (GE-203)
        A number lies outside the range of `dtype`.
    """
    takes = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}.get(dtype.kind, "")
    if array.size == 0 and takes:
        return array.astype(dtype)
    if array.dtype.kind not in takes or array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    is_lost = np.isinf(result) & np.isfinite(array) if dtype.kind == "f" else result != array
    if is_lost.any():
        raise InputError(f"Input '{name}' holds {array[is_lost][0]}, which does not fit {dtype}.")
    return result
