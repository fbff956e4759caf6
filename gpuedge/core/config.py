"""Settings: one table of names, one precedence (call, context, environment, config file, default).

Nothing here imports numpy or a driver, and every value is checked before any driver is touched.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from functools import lru_cache

from gpuedge.core.errors import ConfigError
from gpuedge.core.record import Record
from gpuedge.core.text import nearest, plain, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from contextvars import Token
    from typing import Any

PREFIX = "GPUEDGE_"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(",", " ").split() if word)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text

    return parse


def _level(text: str) -> int:
    if text not in {"0", "1", "2", "3", "4", "5"}:
        raise ValueError("a number from 0 to 5")
    return int(text)


def _path(text: str) -> str:
    if "\0" in text or text.strip().isdigit():
        raise ValueError("a path")
    return text


def _pins(text: str) -> tuple[str, ...]:
    pins: dict[str, str] = {}
    for word in _words(text):
        device, _, rule = word.partition("=")
        backend, colon, index = device.partition(":")
        is_device = backend.isidentifier() and (not colon or (index.isascii() and index.isdigit()))
        if not is_device or rule not in {"never", "always"} or pins.get(device, rule) != rule:
            raise ValueError(
                "words such as vulkan=never or gles31:0=always, separated by spaces or commas, "
                "one for each device"
            )
        pins[device] = rule
    return tuple(f"{device}={rule}" for device, rule in pins.items())


class Setting(Record):
    """One setting: its name in Python, its parser, default and documentation."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    example: str = ""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return PREFIX + self.name.upper()


SETTINGS: dict[str, Setting] = {
    s.name: s
    for s in (
        Setting("device", str.strip, "auto", "device string used where a call names none"),
        Setting("backends", _words, (), "only these backends, in this order (empty: all)"),
        Setting("cache_dir", _path, "", "folder for verdicts and compiled kernels"),
        Setting(
            "db",
            _path,
            "",
            "folder of a capability database, or 'embedded' for the packaged one (empty: the "
            "newest of that and installed updates)",
        ),
        Setting("db_root", _path, "", "root.json that updates of the database are trusted by"),
        Setting(
            "ignore",
            _words,
            (),
            "ids of capability database entries to ignore; 'all' for every one",
        ),
        Setting("fallback", _one_of("cpu", "error"), "cpu", "what happens when a device fails"),
        Setting("debug", _level, 0, "0-5: choices, timings, variants, kernel text, API calls"),
        Setting("isolation", _one_of("inline", "process"), "inline", "where the driver lives"),
        Setting(
            "pin",
            _pins,
            (),
            "devices that are never used, or used whatever they did before",
            example="vulkan=never gles31=always",
        ),
    )
}

OTHERS = ("GPUEDGE_CONFIG", "GPUEDGE_EGL")
"""Variables that are no settings: the config file, and more drivers."""

_OF_TESTS = ("GPUEDGE_REQUIRE_DRIVERS", "GPUEDGE_TEST_DAWN", "GPUEDGE_TEST_DRIVERS")
"""Those that only tests read."""

_context: ContextVar[Mapping[str, Any] | None] = ContextVar("gpuedge_config", default=None)


class Value(Record):
    """A setting's value and where it came from."""

    value: Any
    source: str


def _check(setting: Setting, text: str, source: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"{source} has the value {text!r}, which cannot be used.",
            asked_by=source,
            known=f"{setting.name} must be {error}",
            hint=_way_out(setting, source),
        ) from None


def _way_out(setting: Setting, source: str) -> str:
    """Return what to do about a value that cannot be used, in the form of the place it is from."""
    if not setting.example:
        return f"unset it, or set it to {setting.default!r}"
    if source == setting.variable:
        return f'{source}="{setting.example}"'
    if source.startswith("gpuedge.config("):
        return f'gpuedge.config({setting.name}="{setting.example}")'
    return f'{setting.name} = "{setting.example}"'


def _from_file() -> Mapping[str, Any]:
    path = os.environ.get("GPUEDGE_CONFIG")
    if not path:
        return {}
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise _unreadable(path, "it is not a file")
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError as error:
        raise _unreadable(path, error) from None
    return _parsed(path, changed)


def _unreadable(path: str, error: Exception | str) -> ConfigError:
    why = getattr(error, "strerror", None) or error
    what, hint = (
        f"The config file {path} cannot be read: {why}",
        "correct GPUEDGE_CONFIG, or unset it",
    )
    return ConfigError(what, asked_by="GPUEDGE_CONFIG", hint=hint)


@lru_cache(maxsize=1)
def _parsed(path: str, changed: int) -> Mapping[str, Any]:
    """Read a config file; `changed` makes an edited one be read again."""
    import tomllib

    try:
        with open(path, "rb") as file:
            table: dict[str, Any] = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None
    for name in table:
        _known(name, path)
    return table


def _known(name: str, source: str) -> Setting:
    if name in SETTINGS:
        return SETTINGS[name]
    raise ConfigError(
        f"There is no setting called {shown(name)}.",
        asked_by=source,
        known=", ".join(SETTINGS),
        hint=nearest(name, SETTINGS),
    )


def get(name: str, call: Any = None) -> Value:
    """Return a setting after precedence; `call` is the value given by the caller, None if none.

    Raises
    ------
    ConfigError (GE-101)
        The value that wins cannot be parsed.
    """
    setting = SETTINGS[name]
    if call is not None:
        return Value(call, "argument")
    context = _context.get() or {}
    if name in context:
        return Value(context[name], "gpuedge.config()")
    text = os.environ.get(setting.variable)
    if text is not None and text != "":
        return Value(_check(setting, text, setting.variable), setting.variable)
    table = _from_file()
    if name in table:
        source = f"{name} in {os.environ['GPUEDGE_CONFIG']}"
        return Value(_check(setting, _as_text(table[name], source), source), "config file")
    return Value(setting.default, "default")


def state() -> Hashable | None:
    """Return what the settings of a call depend on, without parsing it; None where a file counts.

    Two calls that name the same device with the same state are run in the same place.
    """
    if os.environ.get("GPUEDGE_CONFIG"):
        return None
    context = _context.get()
    within = None if context is None else tuple(context.items())
    return within, *map(os.environ.get, _STEERING)


_STEERING = ("GPUEDGE_DEVICE", "GPUEDGE_FALLBACK", "GPUEDGE_ISOLATION")


def _as_text(raw: Any, source: str) -> str:
    """Return a config file's value as the environment would give it: text, a number or a list."""
    if isinstance(raw, list) and all(isinstance(word, str) for word in raw):
        return " ".join(raw)
    if isinstance(raw, str) or type(raw) is int:
        return str(raw)
    raise ConfigError(
        f"{source} has the value {raw!r}, which cannot be used.",
        asked_by=source,
        known="values are strings, whole numbers or lists of strings",
    )


def check_environment() -> None:
    """Parse every setting that is set anywhere, and warn once of variables that mean nothing.

    Raises ConfigError (GE-101).
    """
    for name in SETTINGS:
        get(name)
    for name, hint in unknown_variables().items():
        warn_once(name, f"{name} is set, but gpuedge does not know it; {hint}")


def unknown_variables() -> dict[str, str]:
    """Return the ``GPUEDGE_*`` variables that are set and mean nothing here, and what may help."""
    told = [*(s.variable for s in SETTINGS.values()), *OTHERS]
    known = (*told, *_OF_TESTS)
    unknown = sorted(v for v in os.environ if v.startswith(PREFIX) and v not in known)
    listed = f"known: {', '.join(told)}"
    return {name: nearest(name.upper(), known, PREFIX) or listed for name in unknown}


_told: set[str] = set()
"""What this process was warned of."""


def warn_once(about: str, text: str) -> None:
    """Log a warning, unless one about the same was logged before."""
    if about not in _told:
        _told.add(about)
        import logging

        logging.getLogger("gpuedge").warning("%s", plain(text, 1000))


class config:  # noqa: N801  (used as gpuedge.config(...), like a function)
    """Set values for a block of code: ``with gpuedge.config(device="cpu"): ...``.

    Raises
    ------
    ConfigError (GE-101)
        A name is not a setting, or a value does not parse.
    """

    def __init__(self, **values: Any) -> None:
        self._values: dict[str, Any] = {}
        self._tokens: list[Token[Mapping[str, Any] | None]] = []
        for name, value in values.items():
            setting = _known(name, "gpuedge.config()")
            text = " ".join(value) if isinstance(value, (list, tuple)) else str(value)
            self._values[name] = _check(setting, text, f"gpuedge.config({name}=...)")

    def __enter__(self) -> None:
        self._tokens.append(_context.set({**(_context.get() or {}), **self._values}))

    def __exit__(self, *_: object) -> None:
        _context.reset(self._tokens.pop())
