"""Frozen records, and the one check of records that are read back: from a disk, a pipe, a process.

What is read back may be of another version, damaged, or a driver's: `read` makes a record of it
only where every field is what its annotation says. It works for `Record` and for dataclasses.

`Record` itself does without `dataclasses`, for what a cached `probe()` touches: importing that and
making a dozen of them costs over 20 ms at the start of an application, more than the whole cached
probe may take (figures in ``docs/decisions/0004``). Everything that is not on that path is an
ordinary dataclass.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take this name as true; importing typing costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from typing_extensions import Self, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_: object) -> Any:
        """Do nothing: only type checkers look at this."""
        return lambda cls: cls


MOST_WHOLE = 1 << 64
"""Whole numbers are smaller, of either sign: JSON may hold them of any length."""

MOST_NUMBER = 1e30
"""The same of times, sizes and errors."""


class UnfitError(ValueError):
    """What was read is not such a record; `field` is what is wrong, empty where all of it is."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(f"{field}: {why}" if field else why)
        self.field = field


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


def is_number(value: object) -> bool:
    """Say whether a value that was read is a finite number that times, sizes and errors can have.

    JSON has names for infinity and NaN, and numbers of any length.
    """
    return type(value) in (int, float) and abs(value) < MOST_NUMBER  # type: ignore[arg-type]


def read(cls: type[T], saved: object) -> T:
    """Return the record of a class that JSON holds; `plain` is the way back.

    Parameters
    ----------
    cls : class
        A `Record` or a dataclass. Its annotations are what fields may be: ``str``, ``bool``,
        ``int`` (below `MOST_WHOLE`), ``float`` (finite), ``None``, another such class, unions,
        ``tuple``, ``frozenset`` and ``Mapping`` of those, and `Annotated`, which narrows a type by

        * a ``range`` of numbers, or the pattern of a text (``re.Pattern``);
        * the most characters or items there may be (``int``), or the values that there are
          (a tuple, a set, the keys of a dict);
        * a class whose fields a mapping has if it is not empty, while it stays a mapping;
        * a function, which returns what it makes of the value, or raises ValueError.

        Fields without a default must be there. Others than its own may be, and are passed over,
        where the class has ``IS_OPEN = True``. Where it has a ``SCHEMA``, ``"schema"`` must be it.
    saved : object
        What was read.

    Raises
    ------
    UnfitError
        It is no such record.
    """
    return _made(cls, **checked(cls, saved))


def checked(cls: type, saved: object) -> dict[str, Any]:
    """Return the fields of a class as `read` gives them to it. Raises UnfitError."""
    if not isinstance(saved, dict):
        raise UnfitError(f"{shown(saved)} is not an object")
    hints, required = _fields(cls)
    schema = getattr(cls, "SCHEMA", None)
    if schema is not None and saved.get("schema") != schema:
        raise UnfitError(f"{shown(saved.get('schema'))} is not {schema!r}", "schema")
    for name in required:
        if name not in saved:
            raise UnfitError("it is missing", name)
    values = {}
    for name, value in saved.items():
        if name in hints:
            try:
                values[name] = _value(value, hints[name])
            except UnfitError as error:
                raise UnfitError(str(error), name) from None
        elif not getattr(cls, "IS_OPEN", schema is not None and name == "schema"):
            raise UnfitError("there is no such field", shown(name))
    return values


def plain(value: Any) -> Any:
    """Return a record, or what fields hold, as JSON-ready data that `read` takes.

    >>> plain((frozenset({"b", "a"}), {"c": (1, None)}))
    [['a', 'b'], {'c': [1, None]}]
    """
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if not _is_record(type(value)):
        return value
    schema = getattr(value, "SCHEMA", None)
    own = {name: plain(getattr(value, name)) for name in _fields(type(value))[0]}
    return own if schema is None else {"schema": schema, **own}


def shown(value: object) -> str:
    """Return a value that was read as a message shows it: one short line."""
    from gpuedge.core import text

    try:
        return text.plain(repr(value), 60)
    except (ValueError, RecursionError):  # a whole number or a nesting too long to print
        return type(value).__name__


def _value(value: Any, hint: Any) -> Any:
    """Return a value as a field of this type holds it. Raises UnfitError."""
    limits = getattr(hint, "__metadata__", None)
    if limits is not None:
        value = _value(value, hint.__origin__)
        for limit in limits if value is not None else ():
            value = _narrowed(value, limit)
        return value
    if type(hint).__name__ in _UNIONS:
        return _one_of(value, hint.__args__)
    if _is_record(hint):
        return read(hint, value)
    origin = getattr(hint, "__origin__", None)
    if origin in (tuple, frozenset):
        return origin(_items(value, hint.__args__))
    if not _is_a(value, origin or hint):
        raise UnfitError(f"{shown(value)} is not {_NAMES[origin or hint]}")
    if origin is None:
        return value
    name, each = hint.__args__
    return {_value(key, name): _value(value[key], each) for key in value}


def _one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        try:
            return _value(value, kind)
        except UnfitError:
            continue
    return _value(value, last)


def _items(value: Any, kinds: tuple[Any, ...]) -> list[Any]:
    if not isinstance(value, list):
        raise UnfitError(f"{shown(value)} is not a list")
    if len(kinds) == 1 or kinds[-1] is ...:  # of any length
        return [_value(each, kinds[0]) for each in value]
    if len(value) != len(kinds):
        raise UnfitError(f"{shown(value)} is not a list of {len(kinds)}")
    return list(map(_value, value, kinds))


def _narrowed(value: Any, limit: Any) -> Any:
    """Return a value of the right type if it keeps to a limit (see `read`)."""
    if isinstance(limit, range):
        is_fit, what = limit.start <= value < limit.stop, f"from {limit.start} to {limit.stop - 1}"
    elif isinstance(limit, int):
        is_fit, what = len(value) <= limit, f"at most {limit} long"
    elif hasattr(limit, "fullmatch"):
        is_fit, what = limit.fullmatch(value) is not None, f"of the form {limit.pattern}"
    elif isinstance(limit, type):
        if value:
            checked(limit, value)
        return value
    elif callable(limit):
        return _made(limit, value)
    else:
        is_fit, what = value in limit, "one of the values there are"
    if not is_fit:
        raise UnfitError(f"{shown(value)} is not {what}")
    return value


def _made(make: Callable[..., T], *args: Any, **fields: Any) -> T:
    """Call what makes something of what was read. Raises UnfitError where it refuses."""
    try:
        return make(*args, **fields)
    except UnfitError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnfitError(str(error)) from None


def _is_a(value: object, kind: Any) -> bool:
    if kind is int:
        return type(value) is int and abs(value) < MOST_WHOLE
    return is_number(value) if kind is float else kind is object or type(value) is kind


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, Record) or hasattr(kind, "__dataclass_fields__")
    )


def _fields(cls: type) -> tuple[dict[str, Any], list[str]]:
    """Return what each field of a class may be, and which must be there; bases come first."""
    found = _KNOWN.get(cls)
    if found is None:
        hints: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            names = vars(sys.modules[base.__module__])
            own = base.__dict__.get("__annotations__", {})  # noqa: RUF063  (no inspect)
            for name, hint in own.items():
                if name[0] != "_" and not str(hint).startswith("ClassVar"):
                    hints[name] = eval(hint, names, _STAND_INS) if type(hint) is str else hint
        of_dataclass = getattr(cls, "__dataclass_fields__", None)
        if of_dataclass is None:
            required = [name for name in hints if not hasattr(cls, name)]
        else:  # both are the same only where there is neither
            defaults = ((n, of_dataclass[n]) for n in hints)
            required = [n for n, f in defaults if f.default is f.default_factory]
        found = _KNOWN[cls] = hints, required
    return found


_KNOWN: dict[type, tuple[dict[str, Any], list[str]]] = {}


class _Annotated:
    """Stands in for `typing.Annotated`, which need not be imported to read a record."""

    def __init__(self, origin: Any, *limits: Any) -> None:
        self.__origin__, self.__metadata__ = origin, limits

    def __class_getitem__(cls, args: tuple[Any, ...]) -> _Annotated:
        return cls(*args)


_STAND_INS = {"Any": object, "Mapping": dict, "Annotated": _Annotated}
"""What names of `typing` and `collections.abc` in annotations mean here."""

_UNIONS = frozenset({"UnionType", "_UnionGenericAlias", "Union"})
"""Types of ``X | None``, which differ between versions of Python."""

_NAMES = {
    str: "a text", bool: "true or false", int: "a whole number of 64 bits",
    float: "a finite number", dict: "an object", list: "a list", type(None): "null",
}  # fmt: skip
