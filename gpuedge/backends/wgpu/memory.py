"""Buffers: device memory with the staging that its usage needs, and copies of them in textures.

An OUTPUT has a staging buffer that every submit copies it to and that is mapped when the work is
done, so `read` is a plain copy. A large INPUT has one that stays mapped for writing between
submits: wgpu-native's own upload allocates anew each time, which costs many times the copy.
"""

from __future__ import annotations

from typing import Any

from gpuedge.backends import common
from gpuedge.backends.base import FLOAT32, Storage, Usage
from gpuedge.backends.wgpu import constants as c
from gpuedge.backends.wgpu.queue import Queue
from gpuedge.core.storage import IMAGE_KINDS, TEXTURE_ROW
from gpuedge.core.times import COPY_TIMEOUT_S

STAGED_INPUT = 1 << 18
"""Inputs of this size and more are staged here; smaller ones go through the queue."""
_WORD = 4
"""Sizes and offsets of copies are multiples of this (WebGPU, COPY_BUFFER_ALIGNMENT)."""

_COMMON = c.STORAGE | c.COPY_SRC | c.COPY_DST


class Staging:
    """A buffer for the host's side of a copy; `address` is its memory while it is mapped."""

    __slots__ = ("address", "handle", "is_pending", "nbytes", "queue", "reads")

    def __init__(self, queue: Queue, nbytes: int, *, reads: bool) -> None:
        usage = c.MAP_READ | c.COPY_DST if reads else c.MAP_WRITE | c.COPY_SRC
        self.queue = queue
        self.nbytes = nbytes
        self.reads = reads
        self.is_pending = False
        self.address: Any = None
        self.handle = create(queue, nbytes, usage, mapped=not reads)
        if not reads:
            self.on_mapped(True)

    def on_mapped(self, works: bool) -> None:
        """Take note that the buffer was mapped, or not."""
        self.is_pending = False
        if not works or self.handle is None:
            return
        lib = self.queue.api.lib
        get = lib.wgpuBufferGetConstMappedRange if self.reads else lib.wgpuBufferGetMappedRange
        address = get(self.handle, 0, self.nbytes)
        self.address = None if address == self.queue.api.ffi.NULL else address

    def unmap(self) -> None:
        """Hand the memory back to the device; ends a mapping that is still awaited, too."""
        if self.address is not None or self.is_pending:
            self.address = None
            self.queue.api.lib.wgpuBufferUnmap(self.handle)
            self.is_pending = False

    def close(self) -> None:
        """Free the memory."""
        if self.handle is not None:
            self.unmap()
            handle, self.handle = self.handle, None
            destroy(self.queue, handle)


class WgpuBuffer:
    """Device memory; `nbytes` is what was asked for, `size` what a copy can reach.

    `writes` are (offset, bytes) that lie in the staging buffer and go over with the next submit;
    `is_current` says whether the mapped staging buffer of an OUTPUT holds what the device holds.
    """

    __slots__ = ("handle", "is_current", "nbytes", "size", "staging", "usage", "writes")

    def __init__(self, queue: Queue, nbytes: int, usage: Usage) -> None:
        self.nbytes = nbytes
        self.size = max(_WORD, -(-nbytes // _WORD) * _WORD)
        self.usage = usage
        self.staging: Staging | None = None
        self.writes: list[tuple[int, int]] = []
        self.is_current = False
        self.handle = create(queue, self.size, _COMMON)
        try:
            if usage is Usage.OUTPUT:
                self.staging = Staging(queue, self.size, reads=True)
            elif usage is Usage.INPUT and self.size >= STAGED_INPUT:
                self.staging = Staging(queue, self.size, reads=False)
        except BaseException:
            destroy(queue, self.handle)
            raise


def create(queue: Queue, size: int, usage: int, *, mapped: bool = False) -> Any:
    """Create a WebGPU buffer. Raises OutOfMemoryError."""
    about = {"size": size, "usage": usage, "mappedAtCreation": int(mapped)}
    return queue.create("Buffer", queue.api.make("WGPUBufferDescriptor", **about))


def destroy(queue: Queue, handle: Any) -> None:
    """Free a buffer's memory now, and the buffer when nothing uses it any more."""
    queue.api.lib.wgpuBufferDestroy(handle)
    queue.release("Buffer", handle)


class TextureCopy:
    """A texture for what lies in a buffer from a place on: `nbytes` bytes at most, in texels.

    `view` is what kernels are given of it.
    """

    __slots__ = ("_api", "_queue", "_unit", "handle", "view")

    def __init__(self, queue: Queue, kind: str, nbytes: int) -> None:
        self._queue, self._api = queue, queue.api
        self._unit = c.TEXEL_BYTES[kind]
        read = c.STORAGE_BINDING if kind in IMAGE_KINDS else c.TEXTURE_BINDING
        about = self._api.make(
            "WGPUTextureDescriptor",
            usage=c.TEXTURE_COPY_DST | read,
            dimension=c.DIMENSION_2D,
            format=c.TEXTURE_FORMATS[kind],
            mipLevelCount=1,
            sampleCount=1,
        )
        texels = nbytes // self._unit
        size = about.size
        size.width, size.height = min(texels, TEXTURE_ROW), -(-texels // TEXTURE_ROW)
        size.depthOrArrayLayers = 1
        self.handle = queue.create("Texture", about)
        self.view = self._api.lib.wgpuTextureCreateView(self.handle, self._api.ffi.NULL)
        try:
            queue.checked(self.view, "TextureView", "wgpuTextureCreateView")
        except BaseException:
            queue.release("Texture", self.handle)
            raise

    def copies(self, buffer: WgpuBuffer, offset: int, nbytes: int) -> list[tuple[Any, Any, Any]]:
        """Return the arguments of the commands that fill it: whole rows, then what is left."""
        rows, rest = divmod(nbytes // self._unit, TEXTURE_ROW)
        copies, make = [], self._api.make
        for top, width, height in ((0, TEXTURE_ROW, rows), (rows, rest, 1)):
            if not width or not height:
                continue
            source = make("WGPUTexelCopyBufferInfo", buffer=buffer.handle)
            source.layout.bytesPerRow = TEXTURE_ROW * self._unit
            source.layout.rowsPerImage = height
            source.layout.offset = offset + top * TEXTURE_ROW * self._unit
            target = make("WGPUTexelCopyTextureInfo", texture=self.handle)
            target.origin.y = top
            size = make("WGPUExtent3D", width=width, height=height, depthOrArrayLayers=1)
            copies.append((source, target, size))
        return copies

    def close(self) -> None:
        """Free the memory."""
        self._queue.release("TextureView", self.view)
        self._api.lib.wgpuTextureDestroy(self.handle)
        self._queue.release("Texture", self.handle)


class Memory:
    """The buffers of one device."""

    def __init__(self, queue: Queue, largest: int) -> None:
        self._queue = queue
        self._api = queue.api
        self._largest = largest

    def alloc(self, nbytes: int, usage: Usage, _: Storage = FLOAT32) -> WgpuBuffer:
        """Reserve memory. Raises OutOfMemoryError."""
        common.check_size(self._queue.name, nbytes, self._largest, "buffer")
        return WgpuBuffer(self._queue, nbytes, usage)

    def free(self, buffer: WgpuBuffer) -> None:
        """Give memory back."""
        if buffer.staging is not None:
            buffer.staging.close()
        handle, buffer.handle = buffer.handle, None
        destroy(self._queue, handle)

    # --- host to device -------------------------------------------------------------------------
    def write(self, buffer: WgpuBuffer, data: memoryview, offset: int) -> None:
        """Copy host bytes into a buffer."""
        size = data.nbytes
        buffer.is_current = False
        if size % _WORD or offset % _WORD:
            offset, data = self._whole_words(buffer, data, offset)
            size = data.nbytes
        staging = buffer.staging
        if staging is not None and not staging.reads and self._is_mapped(staging):
            self._api.ffi.memmove(staging.address + offset, data, size)
            buffer.writes.append((offset, size))
            return
        if not size:
            return
        # What waits in the staging buffer was written before and must not come after.
        self._flush(buffer)
        self._send(buffer, offset, self._api.ffi.from_buffer(data), size)

    def _send(self, buffer: WgpuBuffer, offset: int, source: Any, size: int) -> None:
        queue = self._queue
        self._api.lib.wgpuQueueWriteBuffer(queue.handle, buffer.handle, offset, source, size)
        queue.check("wgpuQueueWriteBuffer")

    def _is_mapped(self, staging: Staging) -> bool:
        if staging.address is None and staging.is_pending:
            self._queue.poll()
        return staging.address is not None

    def _flush(self, buffer: WgpuBuffer) -> None:
        """Send staged writes that no submit has taken yet."""
        staging = buffer.staging
        if not buffer.writes or staging is None or staging.address is None:
            return
        for offset, size in buffer.writes:
            self._send(buffer, offset, staging.address + offset, size)
        buffer.writes.clear()

    def _whole_words(
        self, buffer: WgpuBuffer, data: memoryview, offset: int
    ) -> tuple[int, memoryview]:
        """Widen a write to whole words, with the buffer's own bytes round it."""
        start = offset // _WORD * _WORD
        end = min(buffer.size, -(-(offset + data.nbytes) // _WORD) * _WORD)
        whole = bytearray(end - start)
        self.read(buffer, memoryview(whole), start)
        whole[offset - start : offset - start + data.nbytes] = data.cast("B")
        return start, memoryview(whole)

    # --- device to host -------------------------------------------------------------------------
    def read(self, buffer: WgpuBuffer, into: memoryview, offset: int) -> None:
        """Copy a buffer's bytes to the host: from where the last submit left them, else anew."""
        size = into.nbytes
        staging = buffer.staging
        if staging is not None and buffer.is_current and staging.address is not None:
            self._api.ffi.memmove(into, staging.address + offset, size)
            return
        if not size:
            return
        self._flush(buffer)
        start = offset // _WORD * _WORD
        end = min(buffer.size, -(-(offset + size) // _WORD) * _WORD)
        once = Staging(self._queue, end - start, reads=True)
        try:
            self._copy(buffer.handle, once, start)
            self._api.ffi.memmove(into, once.address + (offset - start), size)
        finally:
            once.close()

    def _copy(self, source: Any, target: Staging, offset: int) -> None:
        lib, queue = self._api.lib, self._queue
        encoder = lib.wgpuDeviceCreateCommandEncoder(queue.device, self._api.ffi.NULL)
        lib.wgpuCommandEncoderCopyBufferToBuffer(
            encoder, source, offset, target.handle, 0, target.nbytes
        )
        queue.wait(queue.submit(encoder, (target,)), COPY_TIMEOUT_S)
        if target.address is None:
            queue.check("wgpuBufferMapAsync")
            raise c.error_for(0, "the buffer was not mapped", "wgpuBufferMapAsync", queue.name)
