"""``gpuedge kernels``: the kernel texts, and what they print to in each dialect."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from gpuedge import lang
from gpuedge.cli.output import Output
from gpuedge.core.errors import UsageError
from gpuedge.plan import library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("action", nargs="?", choices=("list", "show"), default="list", help="what to do (list)")
    add("name", nargs="?", metavar="NAME", help="with show: such as map/conv2d")
    add("--dialect", choices=tuple(lang.PRINTERS), help="with show: what it prints to")


def run(options: argparse.Namespace, output: Output) -> int:
    """List the kernels, or show one."""
    if options.action == "show":
        return _show(options, output)
    if options.name is not None:
        raise UsageError("`kernels list` takes no name.", hint=f"kernels show {options.name}")
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


def _show(options: argparse.Namespace, output: Output) -> int:
    texts, name = library.texts(), options.name or ""
    if name not in texts:
        near = get_close_matches(name, texts, n=1)
        raise UsageError(
            f"No kernel is called {name!r}.",
            known=", ".join(texts),
            hint=f"gpuedge kernels show {near[0]}" if near else "gpuedge kernels list",
        )
    text = texts[name]
    body: dict[str, Any] = {"schema": "gpuedge.kernel/1", "name": name, "text": text}
    if not options.dialect:
        output.document(body)
        output.text(text.rstrip("\n"))
        return 0
    kernel = lang.load(text, filename=f"shaders/{name}.kern")
    blob = lang.print_kernel(kernel, options.dialect)
    is_text = options.dialect != "spirv"
    listing = blob.code.decode() if is_text else blob.code.hex()
    body |= {
        "dialect": blob.dialect,
        "digest": blob.digest,
        "nbytes": len(blob.code),
        "tensors": [asdict(t) for t in blob.tensors],
        "specs": [asdict(s) for s in blob.specs],
        "push": [asdict(p) for p in blob.push],
        "push_bytes": blob.push_bytes,
        "code": listing,
    }
    output.document(body)
    output.log(f"{name} as {blob.dialect}: {len(blob.code)} bytes, sha256 {blob.digest}")
    if is_text:
        output.text(listing.rstrip("\n"))
    return 0
