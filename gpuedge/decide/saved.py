"""Dataclasses of decisions and policies that are kept as JSON: checked when made, by anyone.

Everything else that is read back is checked by `gpuedge.core.record`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from gpuedge.core.errors import ConfigError
from gpuedge.core.text import plain
from gpuedge.decide.options import MOST

if TYPE_CHECKING:
    from typing_extensions import Self

UNFIT = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, ConfigError)
"""What making a `Saved` of something else raises."""


class Saved:
    """Base of such dataclasses: every field is checked by its annotation.

    Fields may be given as values or as what `to_dict` makes of them. Those that are not compared
    are not saved.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for name, hint in self._hints().items():
            object.__setattr__(self, name, _checked(name, hint, getattr(self, name)))

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Self:
        """Make one of what `to_dict` returned, and raise one of `UNFIT` for anything else."""
        record = cls(**saved)
        if Saved.to_dict(record) != saved:
            raise ValueError(f"not the fields of a {cls.__name__}, as this version writes them")
        return record

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; times are whole nanoseconds."""
        return {name: _plain(getattr(self, name)) for name in self._hints()}

    def _hints(self) -> dict[str, Any]:
        return _hints(type(self))  # type: ignore[arg-type]


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {name: hints[name] for name, known in cls.__dataclass_fields__.items() if known.compare}


def _checked(name: str, hint: Any, value: Any) -> Any:
    """Return a value as a field of this type holds it. Text becomes text of one line."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal and value in inner:
        return value
    if origin is UnionType:
        return value if value is None else _checked(name, inner[0], value)
    if origin is tuple and isinstance(value, (tuple, list)):
        return tuple(_checked(name, inner[0], each) for each in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {_checked(name, str, key): _checked(name, inner[1], value[key]) for key in value}
    if is_dataclass(hint) and isinstance(value, (list, Mapping)):
        value = _made(hint, value)
    is_one = type(value) is hint and (hint is not int or 0 <= value <= MOST)
    if not is_one:
        what = "a whole number from 0 to 10^18" if hint is int else hint
        raise ValueError(f"{name} must be {what}, not {type(value).__name__}")
    return plain(value, None) if hint is str else value


def _made(cls: Any, saved: Sequence[Any] | Mapping[str, Any]) -> Any:
    return cls(**saved) if isinstance(saved, Mapping) else cls(*saved)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Saved):
        return value.to_dict()
    return [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) else value
