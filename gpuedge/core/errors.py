"""The error tree of gpuedge. Every class has a stable code; every message has the same four parts.

GpuEdgeError                      GE-100
+-- ConfigError                   GE-101  a setting, environment variable or folder is unusable
|   +-- UnknownDeviceError        GE-102  a device string names nothing we know
|   +-- NoUsableDeviceError       GE-103  a named device does not work on this machine
|   +-- MissingPackageError       GE-104  an optional package is missing (also ImportError)
+-- UsageError (ValueError)       GE-200
|   +-- ShapeError                GE-201  shapes do not fit the operation
|   +-- DTypeError                GE-202  the dtype is not supported
|   +-- InputError                GE-203  inputs missing, unknown, or NaN in weights
|   |   +-- NotFiniteError        GE-205  NaN or infinity, on a device that does not keep them
|   |   +-- InexactError          GE-206  an integer that a device does not hold exactly
|   +-- ClosedError               GE-204  the object was closed before
|   +-- MixedDevicesError         GE-207  arrays of different devices in one operation
+-- KernelError                   GE-300
|   +-- KernelSyntaxError         GE-301  kernel text does not parse or type-check
|   +-- CompilerUnavailableError  GE-302  no GLSL compiler is installed
|   +-- KernelLimitError          GE-303  a kernel needs more than this device offers
+-- DeviceError                   GE-400
|   +-- DeviceLostError           GE-401
|   +-- OutOfMemoryError          GE-402
|   +-- DeviceTimeoutError        GE-403
|   +-- BackendUnavailableError   GE-404  the API, its loader or its Python package is absent
|   +-- DriverError               GE-405  the driver refused something it should accept
|   +-- RequestTimeoutError       GE-406  a run took longer than its timeout_s (also TimeoutError)
|   +-- FarmError                 GE-407  the scheduler or the store of a farm is gone
+-- ModelError                    GE-500
|   +-- UnsupportedOpError        GE-501
|   +-- PackError                 GE-502  a packed model is damaged, or of another version
+-- DatabaseError                 GE-600  capability_db cannot be read
    +-- UpdateError               GE-601  an update of it cannot be fetched, signed or published
"""

from __future__ import annotations

from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain

__all__ = [
    "BackendUnavailableError", "ClosedError", "CompilerUnavailableError", "ConfigError",
    "DTypeError", "DatabaseError", "DeviceError", "DeviceLostError", "DeviceTimeoutError",
    "DriverError", "FarmError", "GpuEdgeError", "InexactError", "InputError", "KernelError",
    "KernelLimitError", "KernelSyntaxError", "MissingPackageError", "MixedDevicesError",
    "ModelError", "NoUsableDeviceError", "NotFiniteError", "OutOfMemoryError", "PackError",
    "RequestTimeoutError", "ShapeError", "UnknownDeviceError", "UnsupportedOpError", "UpdateError",
    "UsageError",
]  # fmt: skip

FORK_HINT = (
    "the parent must not hold an open GPU device when it forks (of OpenGL ES, must never have "
    "opened one): open devices only in the children, or start processes by 'spawn'"
)
"""What to do where a driver would have to survive a fork, which none does."""


MOST = 1000
"""Characters of each part that a message shows; the attributes keep all of it."""


class GpuEdgeError(Exception):
    """Base of all errors raised on purpose by gpuedge.

    Parameters
    ----------
    what : str
        What happened, one sentence.
    asked_by : str, optional
        What asked for it: an argument, an environment variable, a file.
    known : str, optional
        The facts known here that explain it.
    hint : str, optional
        What to try next, preferably something that can be pasted.

    Attributes
    ----------
    code : str
        Stable identifier such as ``GE-201``.
    """

    code = "GE-100"
    most = MOST

    def __init__(
        self,
        what: str,
        *,
        asked_by: str | None = None,
        known: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.asked_by = asked_by
        self.known = known
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"[{self.code}] {plain(self.what, self.most, lines=True)}"]
        for label, text in (
            ("requested by", self.asked_by),
            ("known here", self.known),
            ("try", self.hint),
        ):
            if text:
                lines.append(f"  {label + ':':<14}{plain(text, self.most, lines=True)}")
        return "\n".join(lines)


class ConfigError(GpuEdgeError):
    """A setting, environment variable or directory cannot be used as given."""

    code = "GE-101"


class UnknownDeviceError(ConfigError):
    """A device string names no device gpuedge knows."""

    code = "GE-102"


class NoUsableDeviceError(ConfigError):
    """The device that was asked for by name does not work on this machine."""

    code = "GE-103"


class MissingPackageError(ConfigError, ImportError):
    """A Python package that gpuedge can do without is missing, and was needed."""

    code = "GE-104"


class UsageError(GpuEdgeError, ValueError):
    """The call itself is wrong; no driver was touched."""

    code = "GE-200"


class ShapeError(UsageError):
    """Shapes do not fit the operation or each other."""

    code = "GE-201"


class DTypeError(UsageError, TypeError):
    """The dtype is not supported by this operation."""

    code = "GE-202"


class InputError(UsageError):
    """An input is missing, unknown, or holds what it must not (such as NaN in weights)."""

    code = "GE-203"


class NotFiniteError(InputError):
    """An input holds NaN or infinity, which this device does not keep."""

    code = "GE-205"


class InexactError(InputError):
    """An input or a result is an integer that this device does not hold exactly."""

    code = "GE-206"


class ClosedError(UsageError):
    """The device or session was closed before this call."""

    code = "GE-204"


class MixedDevicesError(UsageError):
    """An operation is given arrays that are on different devices."""

    code = "GE-207"


class KernelError(GpuEdgeError):
    """A kernel cannot be used."""

    code = "GE-300"


class KernelSyntaxError(KernelError):
    """Kernel text does not parse or type-check; shows file, line, column and a caret."""

    code = "GE-301"


class CompilerUnavailableError(KernelError):
    """A GLSL kernel was given and no GLSL compiler is installed."""

    code = "GE-302"


class KernelLimitError(KernelError):
    """A kernel needs more than this device offers (invocations, shared memory, buffers)."""

    code = "GE-303"


class DeviceError(GpuEdgeError):
    """The device failed in a way that could not be foreseen.

    Parameters
    ----------
    reason : str, optional
        Reason code (`gpuedge.core.reasons`) where it says more than the class of the error.

    Attributes
    ----------
    reason : Reason or None
        That code, with what is known as its detail.
    """

    code = "GE-400"

    def __init__(
        self,
        what: str,
        *,
        asked_by: str | None = None,
        known: str | None = None,
        hint: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(what, asked_by=asked_by, known=known, hint=hint)
        self.reason = None if reason is None else Reason(reason, known or "")


class DeviceLostError(DeviceError):
    """The driver reset the device; nothing on it can be used any more.

    Attributes
    ----------
    is_outside : bool
        True where its worker process ended and its driver had no part in it: while nothing was
        under way, or by a signal that comes from outside.
    """

    code = "GE-401"
    is_outside = False


class OutOfMemoryError(DeviceError):
    """The device or the driver ran out of memory."""

    code = "GE-402"


class DeviceTimeoutError(DeviceError):
    """The device did not finish in time.

    Attributes
    ----------
    ticket : object
        What is to be waited for, where the device can still be asked.
    """

    code = "GE-403"
    ticket: object = None


class BackendUnavailableError(DeviceError):
    """The GPU API is absent here: no package, no loader, no driver."""

    code = "GE-404"


class DriverError(DeviceError):
    """The driver refused what the specification says it must accept."""

    code = "GE-405"


class RequestTimeoutError(DeviceError, TimeoutError):
    """A run took longer than the `timeout_s` that the caller gave it."""

    code = "GE-406"


class FarmError(DeviceError):
    """The scheduler of a farm cannot be reached any more, or the store of its results."""

    code = "GE-407"


class ModelError(GpuEdgeError):
    """A model cannot be read or is not valid ONNX."""

    code = "GE-500"


class UnsupportedOpError(ModelError):
    """A model's operators that do not exist, or that the chosen device cannot run: all of them."""

    code = "GE-501"
    most = 64 * MOST


class PackError(ModelError):
    """A packed model is damaged, was changed, or is of a version that is not read."""

    code = "GE-502"


class DatabaseError(GpuEdgeError):
    """The capability database cannot be read."""

    code = "GE-600"


class UpdateError(DatabaseError):
    """An update of the capability database cannot be asked for, signed or published like this."""

    code = "GE-601"
