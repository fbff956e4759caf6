"""``gpuedge kernels``: the kernel texts, what they print to, and what kernels a model becomes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpuedge import lang
from gpuedge.cli import picture
from gpuedge.cli.arguments import check_writable
from gpuedge.cli.check import add_shapes, read_shapes
from gpuedge.cli.devices import named_gpu
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import UsageError
from gpuedge.core.text import Table
from gpuedge.graph.packed import read_model
from gpuedge.plan import library
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.pack import LEAST
from gpuedge.safety.paths import check_readable, save_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    actions = ("list", "show", "explain")
    add("action", nargs="?", choices=actions, default="list", help="what to do (list)")
    add("name", nargs="?", metavar="NAME",
        help="with show: such as map/conv2d; with explain: a model, an ONNX file")  # fmt: skip
    add("--dialect", choices=tuple(lang.PRINTERS), help="with show: what it prints to")
    add("--device", metavar="D",
        help="with explain: such as vulkan, gles20 (the least that Vulkan guarantees)")  # fmt: skip
    add_shapes(parser.add_argument)
    add("--output", metavar="FILE",
        help="with explain: where to write the picture, .svg by Graphviz or .dot for it (stdout)"
    )  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """List the kernels, show one, or draw what becomes of a model."""
    if options.action == "show":
        return _show(options, output)
    if options.action == "explain":
        return _explain(options, output)
    if options.name is not None:
        raise UsageError("`kernels list` takes no name.", hint=f"kernels show {options.name}")
    variants = library.variants()
    kernels: list[dict[str, Any]] = []
    for name, text in library.texts().items():
        users = [v.id for v in variants if name in v.kernels]
        kernels.append({"name": name, "lines": len(text.splitlines()), "variants": users})
    rows_of_variants = [asdict(v) for v in variants]
    rows = [(k["name"], k["lines"], ", ".join(k["variants"])) for k in kernels]
    details = [(v.op, v.id, "x".join(map(str, v.local)), _facts(v)) for v in variants]
    titles = ("operation", "variant", "workgroup", "only where")
    output.show(
        {"schema": "gpuedge.plan/1", "kernels": kernels, "variants": rows_of_variants},
        [
            Table("Kernel texts", ("kernel", "lines", "variants"), rows),
            Table("Variants, as in variants.toml", titles, details),
        ],
    )
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
        output.show(body, [text.rstrip("\n")])
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
    output.log(f"{name} as {blob.dialect}: {len(blob.code)} bytes, sha256 {blob.digest}")
    output.show(body, [listing.rstrip("\n")] if is_text else ())
    return 0


def _explain(options: argparse.Namespace, output: Output) -> int:
    """Draw a model's graph before and after rewriting."""
    if options.name is None:
        raise UsageError("`kernels explain` takes a model.", hint="kernels explain model.onnx")
    check_readable(options.name, "model")
    check_writable(options.output, "--output")
    shapes = read_shapes(options.shape)
    with blaming(shape=(UsageError,)):
        graph = read_model(options.name).specialise(shapes)
    row = LEAST
    if options.device is not None:
        row = named_gpu(options.device, "kernels explain", output)
    kernels = {step.nodes: step.kernel for step in Forecast(graph, row).steps}
    drawings = {"before": picture.before(graph), "after": picture.after(graph, kernels)}
    titles = (
        f"{Path(options.name).name}: the graph",
        f"after rewriting, for {row.device} ({row.name})",
    )
    text = picture.dot(list(zip(titles, drawings.values(), strict=True)))
    if options.output is not None:
        data = picture.svg(text) if options.output.endswith(".svg") else text.encode()
        save_named(Path(options.output), data, "--output")
    for name, drawn in drawings.items():
        output.log(f"{name}: {picture.about(drawn)}")
    body = {
        "schema": "gpuedge.kernels.explain/2", "model": options.name, "device": row.device,
        **{name: asdict(drawn) for name, drawn in drawings.items()},
        "file": options.output, "dot": None if options.output else text,
    }  # fmt: skip
    output.show(body, () if options.output else [text.rstrip("\n")])
    return 0
