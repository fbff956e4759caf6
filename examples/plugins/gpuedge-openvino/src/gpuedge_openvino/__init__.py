"""OpenVINO's CPU device as an executor of gpuedge: finds it, without importing OpenVINO.

This module is imported in the application whenever devices are looked for. What loads OpenVINO is
in `gpuedge_openvino.runtime`, which a disposable process imports first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.core.identity import Identity

if TYPE_CHECKING:
    from gpuedge_openvino.runtime import OpenVinoRuntime

DEVICE = "CPU"
"""The one device of OpenVINO that is offered; its GPU and NPU plug-ins have never run here."""


class OpenVino:
    """The executor that gpuedge makes of the entry point."""

    name = "openvino"

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List the installation of OpenVINO. Raises BackendUnavailableError without one."""
        spec = find_spec("openvino")
        if spec is None or spec.origin is None:
            raise BackendUnavailableError(
                "OpenVINO is not installed.", hint="pip install openvino", reason="no-loader"
            )
        folder = Path(spec.origin).parent
        return [Candidate(self.name, str(folder), _fingerprint(folder))]

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load OpenVINO and list its CPU device."""
        import openvino

        core = openvino.Core()
        if DEVICE not in core.available_devices:
            raise BackendUnavailableError(
                "This OpenVINO has no CPU device.",
                known=f"it has {', '.join(core.available_devices) or 'none'}",
                reason="no-device",
            )
        identity = Identity(
            api=self.name,
            name=str(core.get_property(DEVICE, "FULL_DEVICE_NAME")).strip(),
            os=sys.platform,
            driverName="OpenVINO",
            driverInfo=openvino.get_version(),
            device_type="CPU",
        )
        return [DeviceInfo(candidate, 0, identity, is_software=False)]

    def open(self, info: DeviceInfo, **options: Any) -> OpenVinoRuntime:
        """Open the device."""
        from gpuedge_openvino.runtime import OpenVinoRuntime

        return OpenVinoRuntime(DEVICE)


def _fingerprint(folder: Path) -> str:
    """Return what changes with the version and with the libraries' files."""
    try:
        known = version("openvino")
    except PackageNotFoundError:  # not installed by a package manager of Python
        known = ""
    facts = [known]
    for path in sorted((folder / "libs").glob("*openvino*")):
        status = path.stat()
        facts.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    return sha256("\n".join(facts).encode()).hexdigest()
