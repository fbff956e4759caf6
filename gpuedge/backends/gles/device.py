"""Opening an OpenGL ES device."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.gles import formats, moderngl_context, physical
from gpuedge.backends.gles.memory import Buffers, Textures
from gpuedge.backends.gles.program import Programs
from gpuedge.backends.gles.queue import Queue
from gpuedge.backends.gles.record import Recorder
from gpuedge.core.errors import DeviceLostError


def open_device(info: DeviceInfo, context: Any = None) -> OpenDevice:
    """Open a device, beside an application's `context` if there is one. Raises DeviceError."""
    if context is None:
        opened = physical.open_device(info)
    else:
        opened = moderngl_context.open_beside(info, context)
    try:
        with opened.context:
            device = _assembled(info, opened)
    except BaseException:
        opened.context.close()
        raise
    if context is not None:
        device.sharing = moderngl_context.Sharing(device, opened.gl, context)
    return device


def _assembled(info: DeviceInfo, opened: physical.Opened) -> OpenDevice:
    gl, context = opened.gl, opened.context
    gl.device = info.identity.name
    memory: Textures | Buffers
    if context.want.level == "gles31":
        caps = physical.compute_caps(opened)
        known = {"GL_EXT_buffer_storage", "GL_ARB_buffer_storage"}
        is_listed = not known.isdisjoint(gl.extensions(context.want.version[0]))
        memory = Buffers(gl, is_shared=is_listed and gl.has("BufferStorage"))
        programs = Programs(gl, caps.level, None)
    else:
        side = info.limits.get("max_texture_size", physical.NO_LIMIT)
        caps = physical.fragment_caps(opened, side)
        size, layers = caps.max_texture_size or 1, opened.layers
        memory = Textures(gl, opened.formats, caps.storages[0], size, layers)
        macros = {"ROW": memory.row}
        if caps.level == "gles20" and formats.has_exact_powers(gl, opened.formats):
            macros["EXP2"] = 1
        programs = Programs(gl, caps.level, macros)
    queue = Queue(opened)
    recorder = Recorder(gl, memory, queue.submit)

    def destroy() -> None:
        if queue.lost is None and not context.is_inherited:
            with suppress(DeviceLostError), context:
                programs.close()
        context.close()  # with all objects of the context

    gl.check("opening the device")
    return OpenDevice(info, caps, (queue, memory, programs, recorder), destroy)
