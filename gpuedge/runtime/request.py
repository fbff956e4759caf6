"""From the arguments of a public call to a checked request, before any driver is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core import config
from gpuedge.core.errors import ConfigError
from gpuedge.decide.policy import Policy
from gpuedge.runtime.compiled import Request
from gpuedge.runtime.devices import wanted

if TYPE_CHECKING:
    from gpuedge.device import Device


DEFAULT_POLICY = Policy()


def make_request(
    device: str | Device | None,
    policy: Policy | None = None,
    fallback: str | None = None,
    isolation: str | None = None,
) -> Request:
    """Check the arguments every entry point shares and return where to run.

    The rest of the environment is checked by `gpuedge.core.config.check_environment`, which is too
    slow for every call of an operation.

    Raises
    ------
    ConfigError (GE-101)
        A policy, fallback or isolation that cannot be used, from the call or the environment.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        The device string.
    ClosedError (GE-204)
        The device was closed.
    """
    check_isolation(isolation)
    chosen = config.get("fallback", call=fallback)
    if chosen.value not in ("cpu", "error"):
        raise ConfigError(
            f"fallback={chosen.value!r} cannot be used.",
            asked_by=chosen.source,
            known="fallback is 'cpu' or 'error'",
        )
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigError(f"policy must be a gpuedge.Policy, not {type(policy).__name__}.")
    rules = policy or getattr(device, "policy", None) or DEFAULT_POLICY
    if device is not None and not isinstance(device, str):
        executor = getattr(device, "executor", None)
        if executor is not None:
            return Request(executor.device, rules, chosen.value, executor)
    return Request(wanted(device), rules, chosen.value)  # type: ignore[arg-type]


def check_isolation(isolation: str | None) -> None:
    """Raise ConfigError (GE-101) for an isolation this version does not have."""
    value = config.get("isolation", call=isolation)
    if value.value == "inline":
        return
    raise ConfigError(
        f"isolation={value.value!r} cannot be used.",
        asked_by=value.source,
        known="this version runs drivers inline only; probing always uses child processes",
        hint="isolation='inline'",
    )
