"""First use of every SPIR-V blob in a child process: an unproven one can kill a driver.

`proved(device)` gives an executor for an open device that builds only kernels which a child process
has built and run on the same driver before. A child that dies fails the test and names the kernels.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gpuedge.backends import load
from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice
from gpuedge.core.caps import Caps
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.device import Device
from gpuedge.executors import kernels
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.ir import Graph

DEADLINE_S = 120.0


class UnprovenError(AssertionError):
    """A kernel failed, or killed the driver, in the child."""


class _Watch:
    """An open device that tells which kernels were built; anything else goes to the device."""

    def __init__(self, impl: Any) -> None:
        self.impl = impl
        self.built: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.impl, name)

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Any:
        """Build and remember."""
        self.built[blob.digest] = blob.name
        return self.impl.build(blob, specs)


def _child(
    pipe: Connection, info: DeviceInfo, restricted: tuple[str, ...], limits: Caps | None
) -> None:
    """Compile and run graphs until the pipe closes."""
    watch = _Watch(load("vulkan").open(info))
    executor = GpuExecutor(watch, "child")
    executor.caps = limits or executor.caps
    executor._restricted.update(restricted)
    library = kernels.texts()
    while True:
        try:
            graph, changed = pipe.recv()
        except EOFError:
            break
        kernels.texts = lambda texts=library | changed: texts
        try:
            made = executor.compile(graph)
            made.run({n: np.ones(graph.shape(n), np.float32) for n in graph.inputs})
            made.close()
            pipe.send((dict(watch.built), None))
        except Exception as error:
            pipe.send((dict(watch.built), f"{type(error).__name__}: {error}"))
    executor.close()


class Prover:
    """A child process with its own open device of the same driver."""

    def __init__(self, info: DeviceInfo, restricted: tuple[str, ...], limits: Caps | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, info, restricted, limits)
        self.process = context.Process(target=_child, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.proven: dict[str, str] = {}
        self.changed: dict[str, str] = {}
        """Kernel texts to use instead of the library's, for mutants."""

    def prove(self, graph: Graph, blob: KernelBlob) -> None:
        """Run `graph` in the child. Raises UnprovenError unless it comes back with `blob` built."""
        what = f"kernel {blob.name} ({blob.digest[:12]}) of {[n.op for n in graph.nodes]}"
        try:
            self.pipe.send((graph, self.changed))
            if not self.pipe.poll(DEADLINE_S):
                raise UnprovenError(f"The driver hangs with {what}.")
            built, failure = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise UnprovenError(
                f"The driver died (exit code {self.process.exitcode}) with {what}."
            ) from None
        if failure is not None:
            raise UnprovenError(f"In the child, {what} failed: {failure}")
        self.proven |= built
        if blob.digest not in self.proven:
            raise UnprovenError(f"The child did not build {what}.")

    def close(self) -> None:
        """End the child."""
        self.pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


class _Guard:
    """An open device that builds only proven kernels."""

    def __init__(self, impl: OpenDevice, prover: Prover) -> None:
        self.impl = impl
        self.prover = prover
        self.segment: Graph | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.impl, name)

    def build(self, blob: KernelBlob, specs: Mapping[str, Number]) -> Any:
        """Build what is proven; prove the rest first."""
        if blob.digest not in self.prover.proven:
            assert self.segment is not None
            self.prover.prove(self.segment, blob)
        return self.impl.build(blob, specs)


class ProvedExecutor(GpuExecutor):
    """A GPU executor behind a `_Guard`."""

    def __init__(self, impl: OpenDevice, prover: Prover, name: str = "vulkan:0") -> None:
        self.guard = _Guard(impl, prover)
        self.prover = prover
        super().__init__(self.guard, name)

    def compile(self, segment: Graph) -> GpuExecutable:
        """Compile a segment, whose unproven kernels the child runs first."""
        self.guard.segment = segment
        return super().compile(segment)


@contextmanager
def proved(
    impl: OpenDevice, restricted: tuple[str, ...] = (), limits: Caps | None = None
) -> Iterator[Device]:
    """Give an open device as something for `device=`.

    `restricted` are variants not to use; `limits` are what both devices are to be used for.
    """
    prover = Prover(impl.info, restricted, limits)
    executor = ProvedExecutor(impl, prover)
    executor.caps = limits or executor.caps
    executor._restricted.update(restricted)
    try:
        yield Device(executor, "for tests")
    finally:
        executor.closed = True  # the device belongs to its fixture
        prover.close()
