"""What is known of cases on a driver: a file of expectations, by which results are judged.

An expectation never changes what is said of a case, only what that counts as
(`gpuedge.conformance.results.outcome`).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from gpuedge.capdb.entries import conditions
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.matching import Truth, holds
from gpuedge.core.errors import InputError
from gpuedge.core.record import Record, UnfitError, checked, read
from gpuedge.core.text import shown
from gpuedge.safety.paths import read_start

SCHEMA: Final = "gpuedge.expectations/1"
SCHEMA_FILE: Final = "expectations.schema.json"
KINDS: Final = ("unsupported", "xfail", "quarantine")
MAX_BYTES: Final = 4 << 20
SOME: Final = range(1, 1 << 20)

Text = Annotated[str, SOME]


def _conditions(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check conditions, and keep them as they were written. Raises ValueError."""
    if record:
        conditions(dict(record), "any")
    return record


class Expectation(Record):
    """One entry of the file.

    `case` is a glob over names of cases, `device` one over device strings, and `match` are
    conditions on the driver as entries of the capability database have them. An `xfail` needs a
    `link` to what is being done about it, and a `match`.
    """

    case: Text
    kind: Annotated[str, KINDS]
    reason: Text
    link: str = ""
    device: Text = "*"
    match: Annotated[Mapping[str, Any], _conditions] = {}

    def __post_init__(self) -> None:
        """Refuse an expected failure that nobody could ever take away again."""
        for name in ("link", "match"):
            if self.kind == "xfail" and not getattr(self, name):
                raise UnfitError("an xfail needs it", name)

    def told(self) -> dict[str, str]:
        """Return what a row keeps."""
        told = {"kind": self.kind, "reason": self.reason, "link": self.link}
        return {key: text for key, text in told.items() if text}


class ExpectationFile(Record):
    """The fields of a file."""

    SCHEMA = SCHEMA

    expect: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Expectations:
    """The entries of a file, and the file's digest."""

    entries: Sequence[Expectation] = ()
    digest: str | None = None

    def on(self, device: str, identity: Mapping[str, Any]) -> Expectations:
        """Return those that are about a device: every condition must certainly hold."""
        who = subject(identity)
        chosen = [
            each
            for each in self.entries
            if fnmatchcase(device, each.device)
            and (not each.match or holds(conditions(dict(each.match), "any"), who)[0] is Truth.TRUE)
        ]
        return Expectations(chosen, self.digest)

    def of(self, names: Iterable[str]) -> dict[str, Expectation]:
        """Return what is expected of cases; of several entries about one the first counts."""
        found: dict[str, Expectation] = {}
        for name in names:
            for each in self.entries:
                if fnmatchcase(name, each.case):
                    found[name] = each
                    break
        return found


def load(path: str) -> Expectations:
    """Return what a file of expectations holds.

    Raises
    ------
    InputError (GE-203)
        It cannot be read, is no TOML, or an entry is wrong: the line or the key is named.
    """

    def bad(why: str) -> InputError:
        return InputError(
            f"{path} is no file of expectations.",
            asked_by="--expectations",
            known=why,
            hint="docs/conformance.md has an example",
        )

    try:
        data = read_start(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.", asked_by="--expectations") from None
    try:
        body = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError says line and column
        raise bad(str(error)) from None
    try:
        entries = checked(ExpectationFile, body)["expect"]
    except UnfitError as error:
        raise bad(str(error)) from None
    made = []
    for number, entry in enumerate(entries, 1):
        try:
            made.append(read(Expectation, entry))
        except UnfitError as error:
            about = f" (case {shown(entry['case'])})" if isinstance(entry.get("case"), str) else ""
            raise bad(f"expect number {number}{about}: {error}") from None
    return Expectations(made, hashlib.sha256(data).hexdigest())
