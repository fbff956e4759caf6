"""Frozen records, and the check of records that are read back: from a disk, a pipe, a process.

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
    from typing import Any, Self, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
    Reader = Callable[[Any], Any]
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

    Those of a base come first.

    A default that is a dict is copied for each record. `__post_init__` is called last.
    """

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__annotations__", ())  # noqa: RUF063  (no inspect)
        cls._fields = (*cls._fields, *own)

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
        ``tuple``, ``frozenset`` and ``Mapping`` of those, ``Literal`` of texts, and `Annotated`,
        which narrows a type by

        * a ``range`` of numbers, or of how many characters or items there are;
        * the pattern of a text (``re.Pattern``);
        * the values that there are (a tuple, a set, the keys of a dict);
        * a class whose fields a mapping must have, while it stays a mapping;
        * a function, which returns what it makes of the value, or raises ValueError.

        Fields without a default must be there. Others than its own may be, and are passed over,
        where the class has ``IS_OPEN = True``. Where it has a ``SCHEMA``, ``"schema"`` must be it.
        Fields of dataclasses that are not compared are not kept. A class with ``IS_LIST = True`` is
        a list of the values of all its fields.
    saved : object
        What was read.

    Raises
    ------
    UnfitError
        It is no such record.
    """
    return _made(cls, **checked(cls, saved))


def read_each(cls: type[T], saved: object) -> dict[str, T]:
    """Return the records in an object by their names; what is no such record is left out."""
    records = {}
    for name, each in saved.items() if isinstance(saved, dict) else ():
        try:
            records[name] = read(cls, each)
        except UnfitError:
            continue
    return records


def checked(cls: type, saved: object) -> dict[str, Any]:
    """Return the fields of a class as `read` gives them to it. Raises UnfitError."""
    readers, required = _fields(cls)
    if getattr(cls, "IS_LIST", False) and isinstance(saved, list) and len(saved) == len(readers):
        saved = dict(zip(readers, saved, strict=True))
    elif not isinstance(saved, dict) or hasattr(cls, "IS_LIST"):
        raise UnfitError(f"{shown(saved)} is not an object")
    schema = getattr(cls, "SCHEMA", None)
    if schema is not None and saved.get("schema") != schema:
        raise UnfitError(f"{shown(saved.get('schema'))} is not {schema!r}", "schema")
    for name in required:
        if name not in saved:
            raise UnfitError("it is missing", name)
    values = {}
    for name, value in saved.items():
        if name in readers:
            try:
                values[name] = readers[name](value)
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
    if hasattr(value, "keys"):
        return {key: plain(value[key]) for key in value}
    if not _is_record(type(value)):
        return value
    schema = getattr(value, "SCHEMA", None)
    own = {name: plain(getattr(value, name)) for name in _fields(type(value))[0]}
    if hasattr(value, "IS_LIST"):
        return list(own.values())
    return own if schema is None else {"schema": schema, **own}


def shown(value: object) -> str:
    """Return a value that was read as a message shows it: one short line."""
    from gpuedge.core import text

    try:
        return text.plain(repr(value), 60)
    except (ValueError, RecursionError):  # a whole number or a nesting too long to print
        return type(value).__name__


def fit(value: Any, hint: Any) -> Any:
    """Return a value as a field of such a type holds it (see `read`). Raises UnfitError."""
    return _reader(hint)(value)


def _reader(hint: Any) -> Reader:
    """Return what reads values of a type."""
    if repr(getattr(hint, "__origin__", None)) == "typing.Literal":
        hint = _Annotated(str, hint.__args__)
    if hasattr(hint, "__metadata__"):
        return _narrowed(_reader(hint.__origin__), hint.__metadata__)
    if type(hint).__name__ in _UNIONS:
        kinds = [_reader(kind) for kind in hint.__args__ if kind is not type(None)]
        return _either(kinds, has_none=type(None) in hint.__args__)
    if _is_record(hint):
        return lambda value: read(hint, value)
    origin = getattr(hint, "__origin__", None)
    if origin in (tuple, frozenset):
        return _list_of(origin, hint.__args__)
    if hasattr(origin, "keys"):
        return _object_of(*map(_reader, hint.__args__))
    if repr(hint) == "typing.Any":
        hint = object
    if hint not in _SIMPLE:
        raise TypeError(f"a field that is read cannot be {hint}")
    return _SIMPLE[hint]


def _simple(kind: type, name: str) -> Reader:
    def simple(value: Any) -> Any:
        if type(value) is not kind:
            raise UnfitError(f"{shown(value)} is not {name}")
        return value

    return simple


def _whole(value: Any) -> Any:
    if type(value) is not int or not -MOST_WHOLE < value < MOST_WHOLE:
        raise UnfitError(f"{shown(value)} is not a whole number of 64 bits")
    return value


def _number(value: Any) -> Any:
    if not is_number(value):
        raise UnfitError(f"{shown(value)} is not a finite number")
    return value


def _either(kinds: list[Reader], *, has_none: bool) -> Reader:
    *others, last = kinds

    def either(value: Any) -> Any:
        if value is None and has_none:
            return None
        for kind in others:
            try:
                return kind(value)
            except UnfitError:
                continue
        return last(value)

    return either


def _list_of(make: Any, kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds if kind is not ...]
    is_any_length = len(kinds) == 1 or kinds[-1] is ...

    def list_of(value: Any) -> Any:
        if type(value) is not list:
            raise UnfitError(f"{shown(value)} is not a list")
        if is_any_length:
            return make(map(readers[0], value))
        if len(value) != len(readers):
            raise UnfitError(f"{shown(value)} is not a list of {len(readers)}")
        return make(kind(each) for kind, each in zip(readers, value, strict=True))

    return list_of


def _object_of(name: Reader, each: Reader) -> Reader:
    if each is _SIMPLE[object]:
        return _SIMPLE[dict]

    def object_of(value: Any) -> Any:
        return {name(key): each(value) for key, value in _SIMPLE[dict](value).items()}

    return object_of


def _narrowed(inner: Reader, limits: tuple[Any, ...]) -> Reader:
    def narrowed(value: Any) -> Any:
        value = inner(value)
        for limit in limits if value is not None else ():
            value = _limited(value, limit)
        return value

    return narrowed


def _limited(value: Any, limit: Any) -> Any:
    """Return a value of the right type if it keeps to a limit (see `read`)."""
    if isinstance(limit, range):
        size = len(value) if hasattr(value, "__len__") else value
        is_fit, what = limit.start <= size < limit.stop, f"from {limit.start} to {limit.stop - 1}"
    elif hasattr(limit, "fullmatch"):
        is_fit, what = limit.fullmatch(value) is not None, f"of the form {limit.pattern}"
    elif isinstance(limit, type):
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
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnfitError(str(error)) from None


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, Record) or hasattr(kind, "__dataclass_fields__")
    )


def _fields(cls: type) -> tuple[dict[str, Reader], list[str]]:
    """Return what reads each field of a class, bases first, and which must be there."""
    known = _KNOWN.get(cls)
    if known is None:
        readers: dict[str, Reader] = {}
        of_dataclass = getattr(cls, "__dataclass_fields__", None)
        for base in reversed(cls.__mro__):
            names = vars(sys.modules[base.__module__])
            own = base.__dict__.get("__annotations__", {})  # noqa: RUF063  (no inspect)
            for name, hint in own.items():
                is_kept = name[0] != "_" and not str(hint).startswith("ClassVar")
                if is_kept and (of_dataclass is None or of_dataclass[name].compare):
                    readers[name] = _annotated(hint, names)
        if of_dataclass is None:
            required = [name for name in readers if not hasattr(cls, name)]
        else:  # both are the same only where there is neither
            defaults = ((n, of_dataclass[n]) for n in readers)
            required = [n for n, f in defaults if f.default is f.default_factory]
        known = _KNOWN[cls] = readers, required
    return known


def _annotated(hint: Any, names: dict[str, Any]) -> Reader:
    """Return what reads fields with an annotation, in a module where these names are known."""
    if type(hint) is not str:
        return _reader(hint)
    return _COMMON.get(hint) or _reader(eval(hint, names, _STAND_INS))


_KNOWN: dict[type, tuple[dict[str, Reader], list[str]]] = {}


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

_SIMPLE: dict[Any, Reader] = {
    int: _whole,
    float: _number,
    str: _simple(str, "a text"),
    bool: _simple(bool, "true or false"),
    dict: _simple(dict, "an object"),
    list: _simple(list, "a list"),
    object: lambda value: value,
}
"""What reads values of types without parts."""

_COMMON = {"Mapping[str, Any]": _SIMPLE[dict], "tuple[str, ...]": _list_of(tuple, (str, ...))}
"""What reads fields with these annotations, which need not be evaluated."""

for _kind in (str, bool, int, float):
    _COMMON[_kind.__name__] = _SIMPLE[_kind]
    _COMMON[f"{_kind.__name__} | None"] = _either([_SIMPLE[_kind]], has_none=True)
