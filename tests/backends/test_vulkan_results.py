"""What Vulkan results become, tables against the specification's names, and clamping."""

from __future__ import annotations

import pickle
import re

import pytest
from vulkan._vulkancache import ffi

from gpuedge.backends.vulkan import api, constants
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DriverError,
    GpuEdgeError,
    OutOfMemoryError,
)

API = api.Api(ffi, None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("VK_ERROR_DEVICE_LOST", DeviceLostError),
        ("VK_ERROR_OUT_OF_HOST_MEMORY", OutOfMemoryError),
        ("VK_ERROR_OUT_OF_DEVICE_MEMORY", OutOfMemoryError),
        ("VK_ERROR_OUT_OF_POOL_MEMORY", OutOfMemoryError),
        ("VK_ERROR_TOO_MANY_OBJECTS", OutOfMemoryError),
        ("VK_ERROR_INITIALIZATION_FAILED", DriverError),
        ("VK_ERROR_UNKNOWN", DriverError),
    ],
)
def test_each_result_becomes_its_error(name: str, kind: type[GpuEdgeError]) -> None:
    error = API.error(API.ffi.typeof("VkResult").relements[name], "vkSomething", "a card")
    assert type(error) is kind
    assert error.known == f"vkSomething returned {name}"
    assert "a card" in str(error)


def test_unknown_result_keeps_its_number() -> None:
    assert "VkResult -77" in str(API.error(-77, "vkSomething"))


def test_tables_agree_with_the_vulkan_package() -> None:
    import vulkan

    # From the C header: the package's Python constants have a wrong sign for some.
    results = ffi.typeof("VkResult").relements
    for code, name in constants.MEMORY_RESULTS.items():
        assert results[name] == code
    for name, value in constants.STRUCTURE_TYPES.items():
        assert getattr(vulkan, spelled(name)) == value, name
    for code, name in constants.DEVICE_TYPES.items():
        assert getattr(vulkan, f"VK_PHYSICAL_DEVICE_TYPE_{name}") == code
    for ours, theirs in {
        "QUEUE_COMPUTE": "VK_QUEUE_COMPUTE_BIT",
        "QUEUE_GRAPHICS": "VK_QUEUE_GRAPHICS_BIT",
        "USE_STORAGE": "VK_BUFFER_USAGE_STORAGE_BUFFER_BIT",
        "USE_TRANSFER_SRC": "VK_BUFFER_USAGE_TRANSFER_SRC_BIT",
        "USE_TRANSFER_DST": "VK_BUFFER_USAGE_TRANSFER_DST_BIT",
        "DEVICE_LOCAL": "VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT",
        "HOST_VISIBLE": "VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT",
        "HOST_COHERENT": "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT",
        "HOST_CACHED": "VK_MEMORY_PROPERTY_HOST_CACHED_BIT",
        "HEAP_DEVICE_LOCAL": "VK_MEMORY_HEAP_DEVICE_LOCAL_BIT",
        "STAGE_COMPUTE": "VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT",
        "STAGE_TRANSFER": "VK_PIPELINE_STAGE_TRANSFER_BIT",
        "STAGE_HOST": "VK_PIPELINE_STAGE_HOST_BIT",
        "ACCESS_SHADER_READ": "VK_ACCESS_SHADER_READ_BIT",
        "ACCESS_SHADER_WRITE": "VK_ACCESS_SHADER_WRITE_BIT",
        "ACCESS_TRANSFER_READ": "VK_ACCESS_TRANSFER_READ_BIT",
        "ACCESS_TRANSFER_WRITE": "VK_ACCESS_TRANSFER_WRITE_BIT",
        "ACCESS_HOST_READ": "VK_ACCESS_HOST_READ_BIT",
        "DESCRIPTOR_STORAGE_BUFFER": "VK_DESCRIPTOR_TYPE_STORAGE_BUFFER",
        "SHADER_STAGE_COMPUTE": "VK_SHADER_STAGE_COMPUTE_BIT",
        "BIND_POINT_COMPUTE": "VK_PIPELINE_BIND_POINT_COMPUTE",
        "SUCCESS": "VK_SUCCESS",
        "TIMEOUT": "VK_TIMEOUT",
        "INCOMPLETE": "VK_INCOMPLETE",
        "COMMAND_POOL_RESET": "VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT",
        "COMMAND_BUFFER_SIMULTANEOUS": "VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT",
    }.items():
        assert getattr(constants, ours) == getattr(vulkan, theirs), ours


def spelled(name: str) -> str:
    """Return the structure-type constant of a structure's name."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("Vk")).upper()
    words = words.replace("FEATURES2", "FEATURES_2").replace("PROPERTIES2", "PROPERTIES_2")
    words = words.replace("DEVICE16BIT", "DEVICE_16BIT").replace("DEVICE8BIT", "DEVICE_8BIT")
    words = words.replace("MAINTENANCE3", "MAINTENANCE_3_")
    words = words.replace("IDPROPERTIES", "ID_PROPERTIES")
    words = words.replace("FLOAT16INT8FEATURES", "FLOAT16_INT8_FEATURES")
    return f"VK_STRUCTURE_TYPE_{words}"


def test_versions() -> None:
    packed = constants.pack_version(1, 3) | 275
    assert (constants.version_pair(packed), constants.version_text(packed)) == ((1, 3), "1.3.275")


def test_unavailable_error_carries_its_reason_and_pickles() -> None:
    error = BackendUnavailableError("No.", known="nothing there", reason="no-device")
    assert (error.reason.code, error.reason.detail) == ("no-device", "nothing there")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
