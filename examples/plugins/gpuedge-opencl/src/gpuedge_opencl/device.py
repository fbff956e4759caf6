"""Opening an OpenCL device: a context and a queue that does things in order."""

from __future__ import annotations

from gpuedge.backends import common
from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice
from gpuedge_opencl import constants as c
from gpuedge_opencl.memory import Memory
from gpuedge_opencl.physical import load
from gpuedge_opencl.program import Programs
from gpuedge_opencl.queue import Queue
from gpuedge_opencl.record import Recorder


def open_device(info: DeviceInfo) -> OpenDevice:
    """Open a device. Raises DeviceError."""
    found = common.found_again(info, load(info.candidate))
    import pyopencl as cl

    try:
        context = cl.Context([found.handle])
        queue = Queue(info.identity.name, context, cl.CommandQueue(context, found.handle))
    except cl.Error as error:
        what = f"OpenCL does not open {info.identity.name}."
        raise c.error_for(error, info.identity.name, what) from None
    memory = Memory(queue, found.caps.max_allocation_bytes or 0)
    parts = (queue, memory, Programs(queue), Recorder(queue))
    return OpenDevice(info, found.caps, parts, queue.close)
