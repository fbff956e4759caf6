"""Frozen records without the cost of `dataclasses`, for what a cached `probe()` touches.

Importing `dataclasses` and making a dozen of them costs over 20 ms at the start of an application,
more than the whole cached probe may take (figures in ``docs/decisions/0004``). Everything that is
not on that path is an ordinary dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name as true; importing typing costs 5 ms
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        """Do nothing: only type checkers look at this."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Record:
    """Base of frozen records: fields are the annotated names, in order, with their defaults.

    A default that is a dict is copied for each record. `__post_init__` is called last.
    """

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__dict__.get("__annotations__", ()))  # noqa: RUF063  (no inspect)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(zip(self._fields, args, strict=False))
        unknown = [name for name in kwargs if name not in self._fields or name in values]
        if len(args) > len(self._fields) or unknown:
            raise TypeError(f"{type(self).__name__} got unexpected arguments {unknown or args}")
        values |= kwargs
        for name in self._fields:
            if name not in values:
                if not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__} lacks the argument {name!r}")
                default = getattr(type(self), name)
                values[name] = dict(default) if isinstance(default, dict) else default
            self.__dict__[name] = values[name]
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields; for subclasses."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self._fields))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        if not changes.keys() <= self.__dict__.keys():
            return type(self)(**{**self.as_dict(), **changes})  # which says what is wrong
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__ | changes)
        changed.__post_init__()
        return changed

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name; values are not copied."""
        return {name: self.__dict__[name] for name in self._fields}
