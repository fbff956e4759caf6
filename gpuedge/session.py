"""Sessions: an ONNX model on the device that suits it, numpy in and numpy out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from gpuedge.core import config
from gpuedge.core.errors import InputError, ModelError, OutOfMemoryError, UsageError
from gpuedge.core.text import shown
from gpuedge.executors.base import PlacementRow, Progress, StepTime
from gpuedge.executors.resident import SharedInput
from gpuedge.graph.ir import Array
from gpuedge.graph.packed import read_model
from gpuedge.graph.reader import Model, Signature, shapes_of, signature_of
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.health import Health
from gpuedge.runtime.inputs import (
    Feeds,
    by_name,
    check_fit,
    check_inputs,
    check_timeout,
    chosen,
    extents_of,
    fixed_shape,
    own_copies,
    shapes_for,
    wrong_call,
    zeros,
)
from gpuedge.runtime.request import check_progress, make_request
from gpuedge.runtime.serving import Server
from gpuedge.runtime.shapes import Compiler
from gpuedge.runtime.strings import AUTO, CPU
from gpuedge.safety.future import Answer
from gpuedge.safety.interrupts import entry, let_go, whole

if TYPE_CHECKING:
    import onnx

    from gpuedge.binding import BoundSession
    from gpuedge.core.words import DeviceName, Fallback, Isolation
    from gpuedge.decide.decision import Decision
    from gpuedge.decide.policy import Policy
    from gpuedge.device import Device


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
    isolation : {"inline", "process"}, optional
        Where the driver lives: in this process (the default), or in one of its own, whose death
        this process survives (docs/running-models.md). Setting: ``GPUEDGE_ISOLATION``.
    progress : callable, optional
        Called with a stage, what is done of it and how much it is, wherever the caller waits for
        reading and compiling: here, in `warm_up` and in a `run` of new shapes. Stages: ``read``,
        ``plan``, and on a named GPU ``tune`` if the policy says so, and for each part of the model
        that it runs, ``compile`` (kernels) and ``upload`` (weights); of `warm_up` also ``run``.
        What it raises ends that call.

    Raises
    ------
    ModelError (GE-500), UnsupportedOpError (GE-501)
        The model cannot be read or run.
    InputError (GE-203)
        A weight holds NaN.
    ConfigError (GE-101), UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        A setting or the device; a Device that was opened with another isolation.
    UsageError (GE-200)
        `progress` cannot be called.

    Notes
    -----
    On a GPU, float16 values are computed in float32 and rounded once where they leave it, unless
    `Policy(arithmetic="float16")` says otherwise.
    One session may be used from several threads; its runs happen one after another. What threads,
    forks, time limits and the end of the program mean for it is in docs/running-models.md.

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> with gpuedge.Session("model.onnx") as session:           # doctest: +SKIP
    ...     result = session.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
    ...     print(session.explain())
    """

    @whole
    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | Model,
        *,
        device: DeviceName | Device | None = None,
        policy: Policy | None = None,
        fallback: Fallback | None = None,
        isolation: Isolation | None = None,
        progress: Progress | None = None,
    ) -> None:
        config.check_environment()
        request = make_request(device, policy, fallback, isolation)
        request = replace(request, progress=check_progress(progress))
        request.tell("read", 0, 1)
        self._model = read_model(model)
        request.tell("read", 1, 1)
        self._compiler = Compiler(self._model, request)
        self._server = Server(self._compiler, request)
        self._request = request
        fixed = [fixed_shape(signature) for signature in self.inputs.values()]
        if all(shape is not None for shape in fixed) and not self._compiler.parameters:
            self._server.prepare(tuple(shape for shape in fixed if shape is not None))
        elif request.executor is None and request.device not in (AUTO, CPU):
            POOL.named(request.device, request.backends)  # an error now, not at the first run

    @property
    def _latest(self) -> CompiledModel | None:
        return self._server.latest

    @property
    def inputs(self) -> dict[str, Signature]:
        """Dtype name and shape of every input; extents are numbers, symbols or None."""
        return dict(self._model.inputs)

    @property
    def outputs(self) -> dict[str, Signature]:
        """Dtype name and shape of every output."""
        return dict(self._model.outputs)

    @overload
    def run(self, inputs: Feeds, *, timeout_s: float | None = None) -> dict[str, Array]: ...
    @overload
    def run(
        self, inputs: Sequence[str] | None, input_feed: Feeds, *, timeout_s: float | None = None
    ) -> list[Array]: ...
    @entry
    def run(
        self, inputs: Any = None, input_feed: Feeds | None = None, *more: Any,
        timeout_s: float | None = None, **keywords: Any,
    ) -> dict[str, Array] | list[Array]:  # fmt: skip
        """Run the model once: ``run(inputs)``, or ``run(output_names, inputs)`` as in ONNX Runtime.

        Parameters
        ----------
        inputs : mapping of str to array_like, or sequence of array_like
            Every input by name, or in the order of `inputs`, with the model's dtypes. Any strides;
            never modified. Where `input_feed` is given: names of outputs, or None for all.
        input_feed : mapping of str to array_like, or sequence of array_like, optional
            The inputs, after the names of outputs.
        timeout_s : float, optional
            Seconds after which to give up, waiting for other runs of this session included. It
            also bounds a driver that hangs inside a call: the CPU answers the requests after that,
            and the device is left alone if it does not return.
        *more, **keywords
            None are taken; the error shows how inputs are given.

        Returns
        -------
        dict of str to ndarray, or list of ndarray
            Every output by name; where `input_feed` is given, a list of those asked for, in that
            order. All are computed. The arrays belong to the caller.

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201), UsageError (GE-200)
            The inputs do not fit the model, it has no output of such a name, or the time limit is
            invalid. No driver was touched.
        ModelError (GE-500)
            What the model would compute from inputs of these shapes is too large.
        NotFiniteError (GE-205), InexactError (GE-206)
            An input holds NaN, infinity or large integers that the device named cannot keep, or a
            result would.
        RequestTimeoutError (GE-406)
            There is no result after `timeout_s`.
        OutOfMemoryError (GE-402)
            An input has to be copied, and there is no memory for that.
        DeviceError (GE-4xx)
            The device failed and ``fallback="error"`` was asked for.
        ClosedError (GE-204)
            The session was closed.
        """
        server, names = self._server, None
        if keywords or more:
            raise wrong_call("run", more, keywords, self._model.inputs)
        if input_feed is not None:
            names, inputs = chosen(inputs, self._model.outputs), input_feed
        seconds = None if timeout_s is None else check_timeout(timeout_s)
        try:
            shapes = server.models.match(inputs)
            if shapes is None:
                server.check_open()
                inputs = check_inputs(inputs, self._model)
                shapes = shapes_of(inputs, self._compiler.parameters)
            results = server.run(inputs, shapes, seconds)
        except BaseException as error:
            let_go(error)
            raise
        return results if names is None else [results[name] for name in names]

    @whole
    def run_async(
        self, inputs: Feeds | None = None, *more: Any,
        timeout_s: float | None = None, **keywords: Any,
    ) -> Answer[dict[str, Array]]:  # fmt: skip
        """Queue a run for the session's worker thread and return a future of `run`'s result.

        Requests are answered in order. The inputs are copied: their buffers may be used again at
        once. At most 1024 requests wait; one more waits here for a place (asked for by a callback
        of an earlier future it cannot wait, and is refused with UsageError).

        Parameters
        ----------
        inputs : mapping of str to array_like, or sequence of array_like
        timeout_s : float, optional
            As for `run`, counted from now: waiting in the queue included.
        *more, **keywords
            None are taken, as for `run`.

        Returns
        -------
        concurrent.futures.Future
            ``cancel()`` takes a request back that still waits; in asyncio, ``await`` it. Inputs
            that do not fit the model are an error of the future.

        Raises
        ------
        ClosedError (GE-204), UsageError (GE-200)
            The session was closed; the time limit is invalid.
        RequestTimeoutError (GE-406)
            There was no place in the queue for `timeout_s`.
        """
        seconds = check_timeout(timeout_s)
        self._server.check_open()
        try:
            if keywords or more:
                raise wrong_call("run_async", more, keywords, self._model.inputs)
            given = by_name(inputs, self._model.inputs)
            arrays = own_copies(check_inputs(given, self._model), given)
        except (UsageError, ModelError, OutOfMemoryError) as error:
            failed = Answer[dict[str, Array]]()
            failed.set_exception(error)
            return failed
        shapes = shapes_of(arrays, self._compiler.parameters)
        return self._server.submit(arrays, shapes, seconds)

    @whole
    def bind(
        self, inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Array] | None = None, *more: Any, **keywords: Any,
    ) -> BoundSession:  # fmt: skip
        """Bind the model to arrays on its device, and to memory that is read and written in place.

        Parameters
        ----------
        inputs : mapping of str to ndarray or DeviceArray
            Every input by name. An array of numpy is read in each run (and copied first if it is
            not contiguous): write to it between runs, as to `input`. One of `gpuedge.array` is not
            moved at all.
        outputs : mapping of str to ndarray, optional
            Memory for results. Those that are not named stay on the device.
        *more, **keywords
            None are taken, as for `run`.

        Returns
        -------
        BoundSession
            Call its `run`.

        Raises
        ------
        InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201)
            They do not fit the model; memory of an output is read-only, or shared with another.
        ModelError (GE-500)
            An input has to be copied, and what the model computes from it would be too large.
        MixedDevicesError (GE-207)
            An array is on another device.
        ClosedError (GE-204)
            The session was closed.
        """
        self._server.check_open()
        if keywords or more:
            raise wrong_call("bind", more, keywords, self._model.inputs)
        from gpuedge import binding  # with all operations

        return binding.BoundSession(self._server, self._compiler, self._request, inputs, outputs)

    @whole
    def input(self, name: str, shape: Sequence[int] | None = None) -> Array:
        """Return memory to write an input to, of its dtype and of zeros.

        Where the session's device shares memory with the host (Vulkan on most integrated GPUs and
        rasterisers, OpenGL ES 3.1 with GL_EXT_buffer_storage), bound sessions read it there without
        a copy. What is closed while an array of this kind is alive keeps its memory until the
        process ends.

        Parameters
        ----------
        name : str
        shape : sequence of int, optional
            Where the model leaves it open.

        Raises
        ------
        InputError (GE-203), ShapeError (GE-201)
            The model has no such input; the shape is missing or does not fit.
        OutOfMemoryError (GE-402)
            There is no memory for it.
        ClosedError (GE-204)
            The session was closed.
        """
        self._server.check_open()
        wanted = self._model.inputs
        signature = signature_of(name, wanted)
        extents = fixed_shape(signature) if shape is None else extents_of(name, shape, wanted)
        if extents is None:
            raise InputError(
                f"The model leaves the shape of {shown(name)} open.", hint="input(name, shape)"
            )
        check_fit(name, extents, signature[1])
        array, latest, shared = zeros(name, extents, signature[0]), self._latest, None
        if latest is not None:
            shared = SharedInput.on(latest.executor, signature[0], extents)
        return array if shared is None else shared

    @whole
    def warm_up(self, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        """Compile ahead of the first request for these input shapes.

        A named GPU also computes once from synthetic inputs, because many drivers compile a kernel
        when it first runs; no request is counted. As many sets of shapes stay compiled as
        ``Policy(max_shapes=...)`` says. Under ``auto`` it is the CPU that is made ready: GPUs are
        opened in the background once requests come.

        Parameters
        ----------
        shapes : mapping of str to sequence of int, optional
            Shapes of inputs by name, where the model leaves them open.

        Raises
        ------
        InputError (GE-203), ShapeError (GE-201)
            A shape is missing, or they do not fit the model; or it is compiled for *values* of an
            input, which only a request has.
        GpuEdgeError
            What `run` raises of compiling, and ClosedError (GE-204).
        """
        self._server.check_open()
        if self._compiler.parameters:
            names = ", ".join(sorted(map(shown, self._compiler.parameters)))
            raise InputError(
                f"The model is compiled for the values of {names}, which only a request has.",
                asked_by="Session.warm_up",
                hint="run it once with typical inputs",
            )
        self._server.run(None, shapes_for(shapes, self._model))

    @whole
    def explain(self, *, verbose: bool = False) -> Decision:
        """Return why the model runs where it runs; prints as a sentence and a table.

        With `verbose` it also prints what that rests on. Under ``auto`` it looks for GPUs if no
        request has had that done: where nothing was probed yet that takes seconds, and requests go
        on meanwhile.

        Raises
        ------
        InputError (GE-203)
            The model's input shapes are open and nothing has run yet, or no start succeeded.
        """
        decision = self._server.decided().decision
        reason = " ".join(
            [decision.reason, *(f"Of the packed model, {n}." for n in self._model.notes)]
        )
        return replace(decision, reason=reason, is_verbose=verbose)

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
        latest = self._latest
        return {} if latest is None else dict(latest.refusals)

    @whole
    def profile(self, inputs: Feeds | None = None) -> dict[str, Any]:
        """Return times of compiling and running, in seconds, and what the device counted.

        With `inputs`, the model is run, and then once more step by step on what answered:
        ``steps`` says of each node or fused group which ``nodes`` and ``ops`` it is, its
        ``device`` and ``kernel``, when it began (``start_s``), how long it took (``seconds``) and
        the ``nbytes`` of what it reads and writes. These are times of this process: on a GPU from
        submitting a step alone until it was done, of which ``submit``, an empty step, is what every
        step costs; on the CPU what ONNX Runtime measures of the nodes that it made.

        ``shapes`` says of a model with open shapes which sets of them are ``kept`` compiled, the
        one used least recently first: its ``inputs``, ``device`` and ``memory``. They are ``most``
        at most (`Policy.max_shapes`), on the device too. It also says how many were ``compiled`` so
        far and ``dropped``, in how many ``seconds`` altogether, and how many of these were
        ``compiled_again``, having been dropped or left with a device, in ``seconds_again``.

        ``storages`` are the kinds of storage that results are kept in on a GPU. ``memory`` is what
        the model takes there, in bytes: ``constant``, ``input``, ``output``, and ``scratch`` for
        what kernels hand to each other, of which ``most_alive`` is needed at the same time.

        Raises
        ------
        GpuEdgeError
            With `inputs`: what `run` raises, and DeviceError (GE-4xx) whatever the fallback.
        """
        times = [] if inputs is None else self._timed(inputs)
        latest = self._latest
        impl = getattr(latest.executor, "impl", None) if latest else None
        kept = (kind for row in (latest.rows if latest else ()) for kind in row.storage.split("+"))
        summary: dict[str, Any] = {
            "shapes": self._server.shapes(),
            "compile": self._compiler.times.summary(),
            "run": self._server.times.summary(),
            "device": latest.executor.device if latest else None,
            "storages": sorted({kind for kind in kept if kind}),
            "memory": latest.memory if latest else None,
            "counters": None if impl is None else impl.counters.snapshot(),
        }
        summary["steps"] = [
            {
                "nodes": list(time.row.nodes), "ops": list(time.row.ops), "device": time.row.device,
                "kernel": time.row.kernel, "start_s": time.start_ns / 1e9, "seconds": time.ns / 1e9,
                "nbytes": time.nbytes,
            }
            for time in times
        ]  # fmt: skip
        return summary

    def _timed(self, inputs: Feeds) -> list[StepTime]:
        arrays = check_inputs(inputs, self._model)
        self.run(arrays)
        return self._server.decided().timed(arrays)

    @property
    def health(self) -> Health:
        """The health of the model: what answered its requests, what failed, how long they take.

        A snapshot; where the model leaves input shapes open, that of the shapes run last, and
        ``pending`` before the first run.
        """
        return self._server.health()

    @whole
    def close(self) -> None:
        """Release what the session holds; may be called twice. Waiting futures finish first.

        Called from a future's callback, it cannot wait for the futures after that one: they fail
        with ClosedError. A run of another thread, or one that was given up, is waited for 5 s,
        then left as it is.
        """
        self._server.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._latest.executor.device if self._latest else self._request.device
        return (
            f"<gpuedge.Session on {where!r}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"
        )
