"""Vulkan instances: loading one driver alone, its devices, its messages.

Does not decide anything about a device; `physical.py` describes it and `device.py` opens it.
"""

from __future__ import annotations

import logging
from typing import Any

from gpuedge.backends.base import Candidate
from gpuedge.backends.loading import driver_environment, keep_loaded, load_fault
from gpuedge.backends.vulkan import conv
from gpuedge.backends.vulkan.api import Api, load
from gpuedge.core.errors import BackendUnavailableError, DriverError

log = logging.getLogger("gpuedge.vulkan")

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
DEBUG_UTILS = "VK_EXT_debug_utils"
PROPERTIES2 = "VK_KHR_get_physical_device_properties2"
PORTABILITY = "VK_KHR_portability_enumeration"
MAX_VERSION = (1, 3)
"""The newest Vulkan version this backend was written for; asking for more promises too much."""

_SEVERITIES = {0x0001: logging.DEBUG, 0x0010: logging.INFO, 0x0100: logging.WARNING}


class Instance:
    """A Vulkan instance with one driver loaded.

    Parameters
    ----------
    candidate : Candidate
        The driver; its environment is set while it is loaded.
    validation : bool
        Enable the Khronos validation layer with synchronisation validation.
    messages : bool
        Send the driver's and layers' messages to the logger ``gpuedge.vulkan``.
    max_version : tuple of int
        The newest API version to ask for.

    Raises
    ------
    BackendUnavailableError (GE-404)
        No loader, no such layer, or the candidate's driver cannot be loaded or has no device.
    """

    def __init__(
        self,
        candidate: Candidate,
        *,
        validation: bool = False,
        messages: bool = False,
        max_version: tuple[int, int] = MAX_VERSION,
    ) -> None:
        self.candidate = candidate
        self.api: Api = load()
        self.handle: Any = None
        self.version = (1, 0)
        self._messenger: Any = None
        self._callback: Any = None
        with driver_environment(candidate):
            self._create(validation, messages, max_version)

    def _create(self, validation: bool, messages: bool, max_version: tuple[int, int]) -> None:
        self.version = min(self._loader_version(), max_version)
        layers = [VALIDATION_LAYER] if validation else []
        if validation:
            self._require_layer()
        offered = self._extensions(layers)
        wanted = [PORTABILITY] if PORTABILITY in offered else []
        if self.version < (1, 1) and PROPERTIES2 in offered:
            wanted.append(PROPERTIES2)
        chain: Any = None
        if (messages or validation) and DEBUG_UTILS in offered:
            wanted.append(DEBUG_UTILS)
            chain = self._messenger_info()
        self.extensions = frozenset(wanted)
        first = self._with_validation(chain) if validation else chain
        result = self._try(layers, wanted, first)
        if result == conv.INCOMPATIBLE_DRIVER and self.version > (1, 0):
            # A Vulkan 1.0 driver behind an old loader refuses any newer version (specification,
            # VkApplicationInfo): ask again for 1.0.
            self.version = (1, 0)
            result = self._try(layers, wanted, first)
        if result != conv.SUCCESS:
            raise self._refused(result)
        keep_loaded(self.candidate.key, self.api.ffi.dlopen, log)
        if chain is not None:
            self._start_messages(chain)
        log.debug("instance %s for %s", self.version, self.candidate.key)

    def _refused(self, result: int) -> Exception:
        """Return the error for a failed vkCreateInstance, with the best guess at its cause."""
        known = f"vkCreateInstance returned {conv.result_name(result)}"
        if result != conv.INCOMPATIBLE_DRIVER:
            reason, what = "open-failed", "The Vulkan driver refuses to start."
        elif fault := load_fault(self.candidate.key):
            reason, what = "missing-library", "The Vulkan driver's library cannot be loaded."
            known = fault
        else:
            reason, what = "no-device", "The Vulkan driver loads but finds no device to drive."
        return BackendUnavailableError(
            what, asked_by=self.candidate.key, known=known, reason=reason
        )

    def _loader_version(self) -> tuple[int, int]:
        call = self.api.function(self.api.ffi.NULL, "vkEnumerateInstanceVersion")
        if call is None:
            return (1, 0)
        version = self.api.ffi.new("uint32_t *")
        call(version)
        return conv.version_pair(version[0])

    def _require_layer(self) -> None:
        call = self.api.lib.vkEnumerateInstanceLayerProperties
        found = self.api.listing("VkLayerProperties", call)
        names = [self.api.text(layer.layerName) for layer in found]
        if VALIDATION_LAYER not in names:
            raise BackendUnavailableError(
                "The Khronos validation layer is not installed.",
                asked_by="validation=True",
                known=f"layers: {', '.join(names) or 'none'}",
                hint="apt install vulkan-validationlayers",
                reason="no-loader",
            )

    def _extensions(self, layers: list[str]) -> set[str]:
        call = self.api.lib.vkEnumerateInstanceExtensionProperties
        names: set[str] = set()
        for layer in [None, *layers]:
            place = self.api.ffi.NULL if layer is None else layer.encode()
            found = self._offered(call, place)
            names.update(self.api.text(item.extensionName) for item in found)
        return names

    def _offered(self, call: Any, place: Any) -> Any:
        try:
            return self.api.listing("VkExtensionProperties", call, place)
        except Exception as error:  # a broken driver: vkCreateInstance will say so properly
            log.debug("listing instance extensions: %s", error)
            return []

    def _try(self, layers: list[str], extensions: list[str], chain: Any) -> int:
        api = self.api
        application = api.make(
            "VkApplicationInfo",
            pApplicationName=api.ffi.new("char[]", b"gpuedge"),
            pEngineName=api.ffi.new("char[]", b"gpuedge"),
            apiVersion=conv.pack_version(*self.version),
        )
        portable = PORTABILITY in extensions
        info = api.make(
            "VkInstanceCreateInfo",
            pNext=chain,
            flags=conv.INSTANCE_ENUMERATE_PORTABILITY if portable else 0,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=api.strings(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=api.strings(extensions),
        )
        made = api.ffi.new("VkInstance *")
        result: int = api.lib.vkCreateInstance(info, api.ffi.NULL, made)
        if result == conv.SUCCESS:
            self.handle = made[0]
        return result

    def _with_validation(self, chain: Any) -> Any:
        enabled = self.api.array("VkValidationFeatureEnableEXT", [conv.VALIDATE_SYNCHRONIZATION])
        return self.api.make(
            "VkValidationFeaturesEXT",
            pNext=chain,
            enabledValidationFeatureCount=1,
            pEnabledValidationFeatures=enabled,
        )

    def _messenger_info(self) -> Any:
        ffi = self.api.ffi
        text = self.api.text

        def message(severity: int, _types: int, data: Any, _user: Any) -> int:
            name = text(data.pMessageIdName) if data.pMessageIdName != ffi.NULL else "message"
            body = text(data.pMessage) if data.pMessage != ffi.NULL else ""
            log.log(_SEVERITIES.get(severity, logging.ERROR), "%s: %s", name, body)
            return 0

        self._callback = ffi.callback(
            "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,"
            " const VkDebugUtilsMessengerCallbackDataEXT *, void *)",
            message,
        )
        return self.api.make(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=0x1111,
            messageType=0x7,
            pfnUserCallback=self._callback,
        )

    def _start_messages(self, info: Any) -> None:
        create = self.api.function(self.handle, "vkCreateDebugUtilsMessengerEXT")
        made = self.api.ffi.new("VkDebugUtilsMessengerEXT *")
        if create is not None and create(self.handle, info, self.api.ffi.NULL, made) == 0:
            self._messenger = made[0]

    def physical_devices(self) -> list[Any]:
        """Return the handles of the devices, in the driver's order.

        Raises
        ------
        BackendUnavailableError (GE-404)
            There is none.
        """
        call = self.api.lib.vkEnumeratePhysicalDevices
        try:
            found = list(self.api.listing("VkPhysicalDevice", call, self.handle))
            known = None
        except DriverError as error:
            # Loaders answer VK_ERROR_INITIALIZATION_FAILED where no driver found its hardware.
            if not (error.known or "").endswith(conv.NO_HARDWARE):
                raise
            found, known = [], error.known
        if not found:
            raise BackendUnavailableError(
                "The Vulkan driver loads but offers no device.",
                asked_by=self.candidate.key,
                known=known,
                reason="no-device",
            )
        return found

    def function(self, name: str) -> Any:
        """Return a function of this instance by name, or None."""
        return self.api.function(self.handle, name)

    def close(self) -> None:
        """Destroy the instance; may be called twice."""
        if self.handle is None:
            return
        null = self.api.ffi.NULL
        if self._messenger is not None:
            destroy = self.api.function(self.handle, "vkDestroyDebugUtilsMessengerEXT")
            destroy(self.handle, self._messenger, null)
        self.api.lib.vkDestroyInstance(self.handle, null)
        self.handle = None
        self._messenger = None
        self._callback = None
