"""Makes the pages of docs/tables that list what the code has: public names, settings, files.

`make generate` writes them with what else is generated; a test compares them with the code.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType

import gpuedge
from gpuedge.core.config import SETTINGS
from gpuedge.safety.store import FILES, MEGABYTE

WIDTH = 100

API = """# Python API

This page is made from the docstrings by `make generate`. `import gpuedge` loads no driver and no
numpy. Everything is also told by `help(gpuedge.conv2d)`. [Running models](../running-models.md)
says how to use it, [numerics](../numerics.md) how far results may be from the exact ones. Every
error is a `gpuedge.GpuEdgeError`; [errors](errors.md) lists all of them.
"""

SETTINGS_PAGE = """# Settings

This page is made from the code by `make generate`. How settings are given is told in
[running models](../running-models.md#settings).

| variable | name | default | meaning |
|---|---|---|---|
"""

FILES_PAGE = """# Files in the cache folder

This page is made by `make generate` from the table in `gpuedge/safety/store.py`, which
`gpuedge cache` reads too. [Files on disk](../files-on-disk.md) says what guards them.

| file | what it holds | written by | until | at most |
|---|---|---|---|---|
"""

CLASSES = (
    ("Models", ("Session", "Policy", "Decision", "check", "ModelCheck", "quantize",
                "quantization_error", "QuantizationReport", "OutputDeviation", "for_frames")),
    ("Arrays on a device", ("array", "DeviceArray", "explain", "BoundSession")),
    ("Devices", ("probe", "probe_async", "ProbeReport", "ProbeProgress", "open", "Device",
                 "SharedModel", "config", "freeze_support")),
)  # fmt: skip

PARTS = (
    "Answer", "CandidateRow", "Caps", "DecisionRecord", "DeviceCheck", "Elementwise", "Failure",
    "Health", "Identity", "NodeCheck", "Place", "PlacementRow", "ProbeRow", "Reason",
    "SegmentCheck", "UserKernel",
)  # fmt: skip
"""Types of what results hold, by which programs annotate; nobody makes one."""

WORDS = """
## Fixed words

Types for annotations: type checkers refuse other words, and editors offer these.

| name | words |
|---|---|
"""

RETURNED = (
    "Decision",
    "ModelCheck",
    "ProbeReport",
    "ProbeProgress",
    "Device",
    "DeviceArray",
    "BoundSession",
    *PARTS,
)
"""Classes that functions return: nobody calls them."""

LISTS = ("Parameters", "Attributes", "Raises")
"""Sections of docstrings that list something; others do where their entries are explained."""


def settings_page() -> str:
    """Return the text of docs/tables/settings.md."""
    rows = []
    for one in SETTINGS.values():
        default = "(empty)" if one.default in ("", ()) else f"`{one.default}`"
        rows.append(f"| `{one.variable}` | `{one.name}` | {default} | {one.help} |\n")
    return SETTINGS_PAGE + "".join(rows)


def files_page() -> str:
    """Return the text of docs/tables/files.md: files that this version writes."""
    rows = []
    for kind in FILES:
        count = kind.max_bytes or 0
        size = f"{count // MEGABYTE} MiB" if count >= MEGABYTE else f"{count} bytes"
        cells = (f"`{kind.pattern}`", kind.purpose, kind.writer, kind.expires)
        if kind.writer != "-":
            rows.append(f"| {' | '.join(cells)} | {size if count else '-'} |\n")
    return FILES_PAGE + "".join(rows)


def api_page() -> str:
    """Return the text of docs/tables/api.md: every public name with its docstring."""
    groups = (*CLASSES, ("What results hold", PARTS), ("Operations on arrays", gpuedge._OPS))
    text = "".join(
        f"\n## {title}\n" + "".join(text for name in names for text in _name(name))
        for title, names in groups
    )
    return API + text + WORDS + "".join(map(_words, gpuedge._WORDS))


def _words(name: str) -> str:
    """Return the row of a type of fixed words."""
    found = re.findall(r"'(\w+)'", str(getattr(gpuedge, name)))
    end = ", with a number as in `vulkan:1`" if name == "DeviceName" else ""
    return f"| `{name}` | {', '.join(f'`{word}`' for word in found)}{end} |\n"


def _name(name: str) -> Iterator[str]:
    """Yield the texts of a public name and, of a class, of what it has."""
    thing = getattr(gpuedge, name)
    yield _entry("###", name, thing)
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            if not key.startswith("_") and inspect.getdoc(member) and _is_ours(member):
                yield _entry("####", f"{name}.{key}", member)


def _is_ours(member: object) -> bool:
    return isinstance(member, (FunctionType, property, classmethod, staticmethod))


def _entry(level: str, name: str, thing: object) -> str:
    title = f"\n{level} `{name}`\n\n"
    called = getattr(thing, "__func__", thing)
    if callable(called) and name not in RETURNED:
        title += f"```python\n{_signature(name, called)}\n```\n\n"
    return f"{title}{markdown(inspect.getdoc(thing) or '')}\n"


def _signature(name: str, thing: object) -> str:
    """Return how something is called, without annotations, in lines of at most `WIDTH`."""
    found = inspect.signature(thing)  # type: ignore[arg-type]
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()
            if p.name not in ("self", "cls")]  # fmt: skip
    text = str(found.replace(parameters=bare, return_annotation=found.empty))
    head = name.rpartition(".")[2]
    return textwrap.fill(head + text, WIDTH, subsequent_indent="    ", break_long_words=False)


def markdown(doc: str) -> str:
    """Return a numpydoc docstring as Markdown: headings of sections bold, their entries a list."""
    head, *parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", f"{doc}\n", flags=re.MULTILINE)
    text = [_plain(head)]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        is_list = title in LISTS or re.search(r"^\S.*\n    ", body, re.MULTILINE)
        text.append(f"**{title}**\n\n{_listed(body) if is_list else _plain(body)}")
    return "\n\n".join(text)


def _listed(body: str) -> str:
    """Return the entries of a section as a list, a line of its own for each."""
    items = []
    for entry in re.split(r"\n(?=\S)", body.strip("\n")):
        name, _, text = entry.partition("\n")
        word, _, kind = name.partition(" : ")
        label = f"`{word}`, {kind}" if kind else f"`{word}`"
        whole = f"{label}: {' '.join(text.split())}" if text.strip() else label
        items.append(_filled(_code(whole), "* ", "  "))
    return "\n".join(items)


def _plain(body: str) -> str:
    """Return paragraphs filled, indented code as it is, sessions of the interpreter as code."""
    text = body.strip("\n")
    if text.startswith(">>>"):
        return f"```python\n{text}\n```"
    parts = _code(text).split("\n\n")
    return "\n\n".join(p if re.search(r"^[ *]", p, re.M) else _filled(p, "", "") for p in parts)


def _code(text: str) -> str:
    """Return text with names as code, and pages as links."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return re.sub(r"`?docs/([\w-]+)\.md`?", r"[\1](../\1.md)", text)


def _filled(text: str, first: str, later: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=later,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def pages() -> dict[str, str]:
    """Return what this makes, by path in the repository."""
    return {
        "docs/tables/api.md": api_page(),
        "docs/tables/files.md": files_page(),
        "docs/tables/settings.md": settings_page(),
    }
