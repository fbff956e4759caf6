"""The strict reading of one record of an entry.

Every refusal is a ValueError whose text begins with the path of what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, overload

from gpuedge.capdb.fields import DeviceIds, Range, stripped

T = TypeVar("T")

ID_WORDS: Final = (
    "adreno", "mali", "powervr", "apple", "nvidia", "intel", "amd", "samsung", "huawei",
    "broadcom", "vivante", "mesa", "swiftshader", "emulator", "microsoft", "any",
)  # fmt: skip
SHAPES: Final = {
    "id": re.compile(f"(?:{'|'.join(ID_WORDS)})-[0-9]{{4}}"),
    "date": re.compile(
        r"(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
        r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
    ),
    "fact": re.compile("Q[0-9]{3}"),
    "commit": re.compile("[0-9a-f]{7,40}"),
    "hex32": re.compile("0x[0-9a-f]{1,8}"),
}
MAX_WHOLE: Final = 1 << 63
MANY: Final = 1 << 16
"""Items of a list that the schema does not bound."""


class Reader:
    """Reads the fields of one record by name; `done` refuses those that nobody asked for.

    Attributes
    ----------
    source : mapping
        The record itself.
    """

    def __init__(self, record: Any, path: str) -> None:
        self._path = path
        if not isinstance(record, Mapping):
            raise ValueError(f"{path or 'entry'}: it is no record")
        self.source = record
        self._asked: set[str] = set()

    def fail(self, name: str, why: str) -> ValueError:
        """Return the error about a field."""
        return ValueError(f"{self._path}{'.' if self._path else ''}{name}: {why}")

    def has(self, name: str) -> bool:
        """Say whether the record has a field."""
        return name in self.source

    def done(self) -> None:
        """Refuse fields that were not asked for."""
        for name in self.source:
            if name not in self._asked:
                raise self.fail(str(name)[:60], "there is no such field")

    def require_any(self, least: int = 1) -> None:
        """Refuse a record with fewer fields."""
        if len(self.source) < least:
            raise ValueError(f"{self._path}: it needs at least {least} field(s)")

    def _get(self, name: str, is_optional: bool) -> Any:
        self._asked.add(name)
        if name not in self.source:
            if is_optional:
                return None
            raise self.fail(name, "it is missing")
        return self.source[name]

    def record(self, name: str) -> Reader:
        """Return the reader of a record within."""
        return Reader(self._get(name, False), self._inner(name))

    def optional(self, name: str) -> Reader | None:
        """Return the reader of a record that may be absent."""
        found = self._get(name, True)
        return None if name not in self.source else Reader(found, self._inner(name))

    def records(self, name: str, *, most: int = 1 << 16, is_optional: bool = False) -> list[Reader]:
        """Return the readers of a list of records, which is not empty where it is there."""
        found = self._get(name, is_optional)
        if name not in self.source:
            return []
        if not isinstance(found, list) or not 1 <= len(found) <= most:
            raise self.fail(name, f"it must be a list of 1 to {most} records")
        return [Reader(r, f"{self._inner(name)}[{i}]") for i, r in enumerate(found)]

    def _inner(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def made(self, make: Callable[[str], T], name: str, text: str) -> T:
        """Return what `make` makes of a text; its ValueError gets the field's path."""
        try:
            return make(text)
        except ValueError as error:
            raise self.fail(name, str(error)) from None

    @overload
    def text(
        self, name: str, least: int = ..., most: int = ..., *, pattern: str = ...,
        is_optional: Literal[False] = ...,
    ) -> str: ...  # fmt: skip

    @overload
    def text(
        self, name: str, least: int = ..., most: int = ..., *, pattern: str = ...,
        is_optional: Literal[True], is_nullable: bool = ...,
    ) -> str | None: ...  # fmt: skip

    def text(
        self,
        name: str,
        least: int = 1,
        most: int = 400,
        *,
        pattern: str = "",
        is_optional: bool = False,
        is_nullable: bool = False,
    ) -> str | None:
        """Return a text of bounded length, or of one of `SHAPES`."""
        found = self._get(name, is_optional)
        if name not in self.source or (found is None and is_nullable):
            return None
        self._check_text(name, found, least, most, pattern)
        return str(found)

    def _check_text(self, name: str, found: Any, least: int, most: int, pattern: str) -> None:
        if not isinstance(found, str) or not least <= len(found) <= most:
            raise self.fail(name, f"it must be text of {least} to {most} characters")
        if pattern and not SHAPES[pattern].fullmatch(found):
            raise self.fail(name, f"{found[:60]!r} is no {pattern}")

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of some words."""
        found = self._get(name, default is not None)
        if name not in self.source and default is not None:
            return default
        if not isinstance(found, str) or found not in allowed:
            raise self.fail(name, f"{str(found)[:60]!r} is none of {', '.join(allowed)}")
        return found

    def _list(self, name: str, least: int, most: int) -> list[Any]:
        found = self._get(name, False)
        if not isinstance(found, list) or not least <= len(found) <= most:
            raise self.fail(name, f"it must be a list of {least} to {most} texts")
        return found

    def free_texts(
        self, name: str, *, least: int = 0, shortest: int = 0, longest: int = MANY
    ) -> tuple[str, ...]:
        """Return a list of any texts, in which one may be there twice."""
        found = self._list(name, least, MANY)
        for text in found:
            self._check_text(name, text, shortest, longest, "")
        return tuple(found)

    def ids(self, name: str) -> tuple[str, ...]:
        """Return a list of ids of entries, empty where it is absent."""
        found = self._list(name, 0, MANY) if name in self.source else self._get(name, True)
        for text in found or ():
            self._check_text(name, text, 1, 400, "id")
        return tuple(found or ())

    def texts(
        self, name: str, *, words: Sequence[str] | None = None, most: int = 256
    ) -> tuple[str, ...]:
        """Return a list of different texts, of some words where they are given."""
        found = self._list(name, 1, most)
        for text in found:
            if words is not None and (not isinstance(text, str) or text not in words):
                raise self.fail(name, f"{str(text)[:60]!r} is none of {', '.join(words)}")
            self._check_text(name, text, 1, 400, "")
        if len(set(found)) < len(found):
            raise self.fail(name, "a text is there twice")
        return tuple(found)

    def words(self, name: str, allowed: Iterable[str] | None) -> frozenset[str] | None:
        """Return a set of texts, of `allowed` where that is given, or None where it is absent."""
        if self._lacks(name):
            return None
        if allowed is None:
            return frozenset(self.texts(name))
        return frozenset(self.texts(name, words=tuple(allowed), most=MANY))

    def any_words(self, name: str, allowed: Iterable[str]) -> frozenset[str]:
        """Return a set of some words, which may be there twice."""
        found = self._list(name, 1, MANY)
        for text in found:
            self._check_text(name, text, 1, 400, "")
            if text not in allowed:
                raise self.fail(name, f"{text[:60]!r} is none of {', '.join(allowed)}")
        return frozenset(found)

    def folded(self, name: str) -> frozenset[str] | None:
        """Return a set of texts without regard to case, or None where it is absent."""
        if self._lacks(name):
            return None
        return frozenset(text.casefold() for text in self.texts(name))

    def _lacks(self, name: str) -> bool:
        self._asked.add(name)
        return name not in self.source

    def whole(self, name: str, *, least: int = -MAX_WHOLE, most: int = MAX_WHOLE) -> int:
        """Return a whole number."""
        return self._check_whole(name, self._get(name, False), least, most)

    def _check_whole(self, name: str, found: Any, least: int, most: int) -> int:
        if type(found) is not int or not least <= found <= most:
            raise self.fail(name, f"it must be a whole number of at least {least}")
        return found

    def numbers(self, name: str) -> frozenset[int] | None:
        """Return a set of whole numbers from 1 on, or None where it is absent."""
        found = self._get(name, True)
        if name not in self.source:
            return None
        if not isinstance(found, list) or not found:
            raise self.fail(name, "it must be a list of whole numbers")
        made = frozenset(self._check_whole(name, n, 1, MAX_WHOLE) for n in found)
        if len(made) < len(found):
            raise self.fail(name, "a number is there twice")
        return made

    def truth(self, name: str) -> bool | None:
        """Return true, false, or None where it is absent."""
        found = self._get(name, True)
        if name in self.source and not isinstance(found, bool):
            raise self.fail(name, "it must be true or false")
        return found  # type: ignore[no-any-return]

    def only_true(self, name: str) -> bool:
        """Return whether a field is there; it may only say true."""
        found = self._get(name, True)
        if name in self.source and found is not True:
            raise self.fail(name, "it may only be true, or absent")
        return name in self.source

    def span(self, name: str) -> Range | None:
        """Return a range of whole numbers, or None where it is absent."""
        return self._span(name, lambda read, side: read.whole(side))

    def dates(self, name: str) -> Range | None:
        """Return a range of dates, or None where it is absent."""
        return self._span(name, lambda read, side: read.text(side, pattern="date"))

    def _span(self, name: str, side: Callable[[Reader, str], Any]) -> Range | None:
        read = self.optional(name)
        if read is None:
            return None
        read.require_any()
        low, below = (side(read, s) if read.has(s) else None for s in ("from", "below"))
        return read._range(low, below)

    def versions(self) -> Range:
        """Return the range of versions that this record is."""
        self.require_any()
        sides = []
        for side in ("from", "below"):
            found = self._get(side, True)
            if side in self.source:
                if not isinstance(found, list) or not 1 <= len(found) <= 5:
                    raise self.fail(side, "a version is a list of 1 to 5 whole numbers")
                found = stripped([self._check_whole(side, n, 0, MAX_WHOLE) for n in found])
            sides.append(found)
        return self._range(*sides)

    def _range(self, low: Any, below: Any) -> Range:
        self.done()
        if low is not None and below is not None and not low < below:
            raise ValueError(f"{self._path}: it is empty: from must be less than below")
        return Range(low, below)

    def device_ids(self, name: str) -> DeviceIds | None:
        """Return a set of device ids, or None where it is absent."""
        found = self._get(name, True)
        if name not in self.source:
            return None
        if not isinstance(found, list) or not found:
            raise self.fail(name, "it must be a list of ids")
        spans, masks = [], []
        for i, one in enumerate(found):
            path = f"{self._inner(name)}[{i}]"
            if isinstance(one, str):
                number = Reader({"id": one}, path)._hex("id")
                spans.append((number, number))
                continue
            read = Reader(one, path)
            if read.has("mask"):
                masks.append((read._hex("value"), read._hex("mask")))
            else:
                spans.append((read._hex("first"), read._hex("last")))
                if spans[-1][0] > spans[-1][1]:
                    raise ValueError(f"{path}: last is less than first")
            read.done()
        return DeviceIds(tuple(spans), tuple(masks))

    def _hex(self, name: str) -> int:
        return int(self.text(name, pattern="hex32"), 16)
