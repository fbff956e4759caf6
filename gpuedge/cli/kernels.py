"""``gpuedge kernels``: the kernel texts, what they print to, and whether they are sound."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from gpuedge import lang
from gpuedge.cli.output import Output
from gpuedge.core.errors import GpuEdgeError, UsageError
from gpuedge.lang.tree import Kernel
from gpuedge.plan import library

DIALECTS = tuple(lang.PRINTERS)
FRAGMENTS = ("essl300", "essl100")
"""Dialects of fragment shaders, which cannot say all that the language can."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "show", "check"),
        default="list",
        help="what to do (list)",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="with show: such as map/conv2d")
    parser.add_argument("--dialect", choices=DIALECTS, help="with show: what it prints to")


def run(options: argparse.Namespace, output: Output) -> int:
    """List, show or check kernels; `check` returns 1 if one does not print."""
    if options.action == "show":
        return _show(options, output)
    if options.name is not None:
        raise UsageError(
            f"`kernels {options.action}` takes no name.", hint=f"kernels show {options.name}"
        )
    return _check(output) if options.action == "check" else _list(output)


def _list(output: Output) -> int:
    variants = library.variants()
    kernels: list[dict[str, Any]] = []
    for name, text in library.texts().items():
        users = [v.id for v in variants if v.kernel == name]
        kernels.append({"name": name, "lines": len(text.splitlines()), "variants": users})
    found = [asdict(v) for v in variants]
    output.document({"schema": "gpuedge.plan/1", "kernels": kernels, "variants": found})
    rows = [(k["name"], k["lines"], ", ".join(k["variants"])) for k in kernels]
    output.table("Kernel texts", ("kernel", "lines", "variants"), rows)
    details = [(v.op, v.id, "x".join(map(str, v.local)), _facts(v)) for v in variants]
    titles = ("operation", "variant", "workgroup", "only where")
    output.table("Variants, as in variants.toml", titles, details)
    return 0


def _facts(variant: library.Variant) -> str:
    rules = [f"{name}>={least}" for name, least in variant.needs.items()]
    rules += [f"{low}<={name}<={high}" for name, (low, high) in variant.when.items()]
    return ", ".join(rules) or "always"


def _text_of(name: str | None) -> str:
    texts = library.texts()
    if name in texts:
        return texts[name]
    near = get_close_matches(name or "", texts, n=1)
    raise UsageError(
        f"No kernel is called {name!r}." if name else "`kernels show` needs a name.",
        known=", ".join(texts),
        hint=f"gpuedge kernels show {near[0]}" if near else None,
    )


def _load(name: str, text: str) -> Kernel:
    return lang.load(text, filename=f"shaders/{name}.kern")


def beyond(kernel: Kernel, dialect: str) -> str:
    """Return what a kernel uses that a dialect does not have, empty if it can be printed so."""
    if dialect in FRAGMENTS and kernel.form == "group":
        return "group kernels are not in fragment dialects: there are no workgroups"
    return ""


def _show(options: argparse.Namespace, output: Output) -> int:
    text = _text_of(options.name)
    body: dict[str, Any] = {"schema": "gpuedge.kernel/1", "name": options.name, "text": text}
    if not options.dialect:
        output.document(body)
        output.text(text.rstrip("\n"))
        return 0
    blob = lang.print_kernel(_load(options.name, text), options.dialect)
    is_text = options.dialect != "spirv"
    listing = blob.code.decode() if is_text else disassemble(blob.code)
    body |= {
        "dialect": blob.dialect,
        "digest": blob.digest,
        "nbytes": len(blob.code),
        "tensors": [asdict(t) for t in blob.tensors],
        "specs": [asdict(s) for s in blob.specs],
        "push": [asdict(p) for p in blob.push],
        "push_bytes": blob.push_bytes,
        "code" if is_text else "disassembly": listing,
    }
    output.document(body)
    output.text(f"{options.name} as {blob.dialect}: {len(blob.code)} bytes, sha256 {blob.digest}")
    output.table(
        "Interface",
        ("what", "name", "type", "place"),
        [("tensor", t.name, t.access, f"binding {t.binding}, {t.storage}") for t in blob.tensors]
        + [("spec", s.name, f"{s.type} = {s.default}", f"id {s.spec_id}") for s in blob.specs]
        + [("push", p.name, p.type, f"byte {p.offset}") for p in blob.push],
    )
    if listing is None:
        output.log(
            "no disassembly: spirv-dis is not installed (Debian: apt-get install spirv-tools)"
        )
    else:
        output.text(listing.rstrip("\n"))
    return 0


def disassemble(code: bytes) -> str | None:
    """Return the assembly text of a SPIR-V module, or None without ``spirv-dis`` on the PATH."""
    tool = shutil.which("spirv-dis")
    if tool is None:
        return None
    done = subprocess.run([tool, "-"], input=code, capture_output=True, check=False, timeout=30)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _check(output: Output) -> int:
    rows = [row for name, text in library.texts().items() for row in _check_one(name, text)]
    keys = ("kernel", "dialect", "result", "detail")
    document = [dict(zip(keys, row, strict=True)) for row in rows]
    output.document({"schema": "gpuedge.plan-check/1", "checks": document})
    output.table("Kernel check", keys, rows)
    counts = {word: sum(row[2] == word for row in rows) for word in ("PASS", "INFO", "FAIL")}
    output.text(", ".join(f"{n} {word}" for word, n in counts.items()))
    return 1 if counts["FAIL"] else 0


def _check_one(name: str, text: str) -> Iterator[tuple[str, str, str, str]]:
    """Print a text in every dialect: PASS, FAIL, or INFO where the dialect lacks what it needs."""
    try:
        kernel = _load(name, text)
    except GpuEdgeError as error:
        yield name, "all", "FAIL", str(error)
        return
    for dialect in DIALECTS:
        missing = beyond(kernel, dialect)
        if missing:
            yield name, dialect, "INFO", missing
            continue
        try:
            yield name, dialect, "PASS", f"{len(lang.print_kernel(kernel, dialect).code)} bytes"
        except GpuEdgeError as error:
            yield name, dialect, "FAIL", str(error)
