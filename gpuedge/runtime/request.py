"""From the arguments of a public call to a checked request, before any driver is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuedge.core import config
from gpuedge.core.errors import ConfigError, UsageError
from gpuedge.decide.policy import Policy
from gpuedge.probing.api import chosen as backends_in_use
from gpuedge.runtime.opening import INLINE, PROCESS
from gpuedge.runtime.strings import AUTO, CPU, wanted

if TYPE_CHECKING:
    from gpuedge.executors.base import Executor, Progress


@dataclass(frozen=True)
class Request:
    """Where a graph was asked to run.

    `executor` is given where the caller opened the device; it stays the caller's. `isolation` says
    where the driver of a device from the pool lives (``inline`` or ``process``). `stays` says that
    operands and results are to stay there (`gpuedge.executors.resident`). `backends` are those that
    may be used (none: those of the settings). `told` holds
    what was logged. `progress` is told how far the compiling has come that the caller waits for.
    `may_tune`: that neither a request nor closing would have to wait for a tuner.
    """

    device: str = AUTO
    policy: Policy = field(default_factory=Policy)
    fallback: str = "cpu"
    executor: Executor | None = None
    isolation: str = INLINE
    stays: bool = False
    backends: tuple[str, ...] = ()
    may_tune: bool = True
    told: set[str] = field(default_factory=set, compare=False, repr=False)
    progress: Progress | None = field(default=None, compare=False, repr=False)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Tell the caller how far something has come that is waited for."""
        if self.progress is not None:
            self.progress(stage, done, total)

    @property
    def is_open(self) -> bool:
        """Whether the choice is ours."""
        return self.executor is None and self.device == AUTO


DEFAULT_POLICY = Policy()


def make_request(
    device: Any,
    policy: Policy | None = None,
    fallback: str | None = None,
    isolation: str | None = None,
) -> Request:
    """Check the arguments every entry point shares and return where to run.

    `device` is a string, an open `gpuedge.Device` or None.

    The rest of the environment is checked by `gpuedge.core.config.check_environment`, which is too
    slow for every call of an operation.

    Raises
    ------
    ConfigError (GE-101)
        A policy, fallback or isolation that cannot be used, from the call or the environment; an
        isolation that the device was not opened with.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        The device string.
    ClosedError (GE-204)
        The device was closed.
    """
    where = check_isolation(isolation)
    chosen = config.get("fallback", call=fallback)
    if not isinstance(chosen.value, str) or chosen.value not in ("cpu", "error"):
        raise ConfigError(
            f"fallback={chosen.value!r} cannot be used.",
            asked_by=chosen.source,
            known="fallback is 'cpu' or 'error'",
        )
    check_policy(policy)
    rules = policy or getattr(device, "policy", None) or DEFAULT_POLICY
    if device is not None and not isinstance(device, str):
        executor = getattr(device, "executor", None)
        if executor is not None:
            kept = device.isolation
            if isolation is not None and isolation != kept:
                raise ConfigError(
                    f"The device {device.name} was opened with isolation='{kept}', which stays.",
                    asked_by=f"isolation={isolation!r}",
                    hint=f"gpuedge.open({device.name!r}, isolation={isolation!r})",
                )
            return Request(executor.device, rules, chosen.value, executor, kept)
    name = wanted(device)
    in_use = () if name == CPU else backends_in_use()
    return Request(name, rules, chosen.value, isolation=where, backends=in_use)


def check_progress(progress: Any) -> Progress | None:
    """Return what is to be told how far opening has come. Raises UsageError (GE-200)."""
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress must be callable, not {type(progress).__name__}.",
            asked_by="progress=...",
            known="it is called with a stage, what is done of it and how much it is",
        )
    checked: Progress | None = progress
    return checked


def check_policy(policy: Any) -> None:
    """Raise ConfigError (GE-101) unless `policy` is None or a Policy."""
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigError(f"policy must be a gpuedge.Policy, not {type(policy).__name__}.")


def check_isolation(isolation: str | None) -> str:
    """Return where the driver is to live, after settings.

    Raises
    ------
    ConfigError (GE-101)
        There is no such isolation.
    """
    value = config.get("isolation", call=isolation)
    if isinstance(value.value, str) and value.value in (INLINE, PROCESS):
        return value.value
    raise ConfigError(
        f"isolation={value.value!r} cannot be used.",
        asked_by=value.source,
        known=f"isolation is '{INLINE}' or '{PROCESS}'",
        hint="'process' keeps a driver's crash out of this process",
    )
