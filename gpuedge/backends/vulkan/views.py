"""What kernels read tensors through besides storage buffers: texel buffers, and textures.

A texture is an image with linear tiling in the general layout, bound to the memory of the buffer:
both see the same bytes (Vulkan specification, Memory Aliasing), so nothing is copied.
"""

from __future__ import annotations

from typing import Any

from gpuedge.backends.base import Binding
from gpuedge.backends.vulkan import constants as c
from gpuedge.backends.vulkan.physical import Physical
from gpuedge.backends.vulkan.queue import Queue
from gpuedge.core.errors import DriverError
from gpuedge.core.storage import HALF_TEXTURE, TEXTURE, TEXTURE_ROW

LEAST_ALIGNMENT = 64
"""Of buffers in their memory, in bytes: a cache line."""


class TexelBuffer:
    """A range of a buffer as texels; `field` is that of a descriptor write which binds it."""

    def __init__(self, queue: Queue, storage: str, buffer: Any, place: Binding) -> None:
        self._queue = queue
        self._view = queue.create(
            "BufferView", buffer=buffer.handle, format=c.TEXEL_FORMATS[storage],
            offset=place.offset, range=place.nbytes,
        )  # fmt: skip
        self.field = {"pTexelBufferView": queue.api.array("VkBufferView", [self._view])}

    def close(self) -> None:
        """Destroy the view."""
        self._queue.destroy("BufferView", self._view)


class Texture:
    """The same as a texture in rows of `TEXTURE_ROW` texels.

    `image` must be taken from the layout `LAYOUT_PREINITIALIZED` to `LAYOUT_GENERAL` before use.

    Raises
    ------
    DriverError
        The image takes more memory than lies there.
    """

    def __init__(self, queue: Queue, storage: str, buffer: Any, place: Binding) -> None:
        self._queue, api = queue, queue.api
        self._view: Any = None
        row_bytes = TEXTURE_ROW * c.TEXTURE_BYTES[storage]
        self.image = _image(queue, storage, -(-place.nbytes // row_bytes))
        try:
            block, start = buffer.block, buffer.offset + place.offset
            needs = _needs(queue, self.image)
            if start + needs.size > block.nbytes:
                known = f"it takes {needs.size} bytes for {place.nbytes}"
                raise DriverError(f"A texture of {queue.name} is too large.", known=known)
            result = api.lib.vkBindImageMemory(queue.device, self.image, block.memory, start)
            queue.check(result, "vkBindImageMemory")
            self._view = queue.create(
                "ImageView", image=self.image, viewType=c.IMAGE_2D,
                format=c.TEXTURE_FORMATS[storage], subresourceRange=whole(queue)[0],
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        about = api.make(
            "VkDescriptorImageInfo", imageView=self._view, imageLayout=c.LAYOUT_GENERAL
        )
        self.field = {"pImageInfo": about}

    def close(self) -> None:
        """Destroy the image; the memory is the buffer's."""
        if self._view is not None:
            self._queue.destroy("ImageView", self._view)
        self._queue.destroy("Image", self.image)


def view_of(queue: Queue, storage: str, buffer: Any, place: Binding) -> TexelBuffer | Texture:
    """Make what kernels read a range of a buffer through."""
    kind = TexelBuffer if storage in c.TEXEL_FORMATS else Texture
    return kind(queue, storage, buffer, place)


def whole(queue: Queue) -> Any:
    """Return the range of an image that is all of it."""
    return queue.api.make(
        "VkImageSubresourceRange", aspectMask=c.ASPECT_COLOR, levelCount=1, layerCount=1
    )


def room_for_textures(queue: Queue, physical: Physical) -> int | None:
    """Return what a texture may take beyond the bytes that it shows; None if there can be none.

    Drivers round the number of rows up: the largest that they make of a single row is the most.
    Rows must follow one another without gaps, in any memory, wherever a tensor may lie.
    """
    alignment = min(LEAST_ALIGNMENT, physical.caps.offset_alignment)
    types = (1 << len(physical.memory_types)) - 1
    most, api = 0, queue.api
    for storage in (TEXTURE, HALF_TEXTURE):
        image = _image(queue, storage, 1)
        needs, layout = _needs(queue, image), api.ffi.new("VkSubresourceLayout *")
        part = api.make("VkImageSubresource", aspectMask=c.ASPECT_COLOR)
        api.lib.vkGetImageSubresourceLayout(queue.device, image, part, layout)
        queue.destroy("Image", image)
        is_dense = layout.offset == 0 and layout.rowPitch == TEXTURE_ROW * c.TEXTURE_BYTES[storage]
        if not is_dense or needs.alignment > alignment or types & ~needs.memoryTypeBits:
            return None
        most = max(most, int(needs.size))
    return most


def _image(queue: Queue, storage: str, rows: int) -> Any:
    extent = queue.api.make("VkExtent3D", width=TEXTURE_ROW, height=rows, depth=1)
    return queue.create(
        "Image", imageType=c.IMAGE_2D, format=c.TEXTURE_FORMATS[storage], extent=extent[0],
        mipLevels=1, arrayLayers=1, samples=1, tiling=c.TILING_LINEAR,
        usage=c.USE_SAMPLED, initialLayout=c.LAYOUT_PREINITIALIZED,
    )  # fmt: skip


def _needs(queue: Queue, image: Any) -> Any:
    needs = queue.api.ffi.new("VkMemoryRequirements *")
    queue.api.lib.vkGetImageMemoryRequirements(queue.device, image, needs)
    return needs
