"""From a model that fails to a small one that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from modelgen.case import Case
from modelgen.meanings import Array, CannotError


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases with less: one output, an earlier output, an input in place of nodes."""
    values = [o for n in case.nodes for o in n.output if o in case.values]
    if len(case.outputs) > 1:
        yield from (replace(case, outputs=[o]) for o in case.outputs)
    for value in values:
        if [value] != case.outputs:
            yield replace(case, outputs=[value])
    for value in reversed(values):
        if value not in case.outputs:
            yield cut(case, value)


def cut(case: Case, value: str) -> Case:
    """Return a case that is given a value instead of computing it."""
    nodes = [n for n in case.nodes if value not in n.output]
    others = {o for n in case.nodes if value in n.output for o in n.output} - {value}
    read = {i for n in nodes for i in n.input}
    given = {v: as_fed(case.values[v]) for v in (value, *(others & read))}
    return replace(case, nodes=nodes, feeds={**case.feeds, **given})


def as_fed(array: Array) -> Array:
    """Return a value as a model takes it."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def shrunk(case: Case, fails: Callable[[Case], bool], most: int = 300) -> Case:
    """Return the smallest case found that still fails, after at most so many attempts."""
    goes_on = True
    while goes_on:
        goes_on = False
        for candidate in smaller(case):
            try:
                trial = candidate.pruned().evaluated()
            except CannotError:
                continue
            if size(trial) >= size(case):
                continue
            most -= 1
            if most < 0:
                return case
            if fails(trial):
                case, goes_on = trial, True
                break
    return case


def size(case: Case) -> tuple[int, int]:
    """Return what is to become small: nodes, then outputs."""
    return len(case.nodes), len(case.outputs)


def told(case: Case) -> list[str]:
    """Return the nodes of a case as lines, with the shapes that they read."""
    lines = []
    for node in case.nodes:
        read = ", ".join(
            f"{i}{'=' if i in case.constants else ':'}{list(case.values[i].shape)}" if i else "-"
            for i in node.input
        )
        attrs = ", ".join(f"{a.name}={_brief(a)}" for a in node.attribute)
        lines.append(f"{node.op_type}({read}) {attrs} -> {', '.join(node.output)}")
    return lines


def _brief(attribute: object) -> str:
    from onnx import helper

    return str(helper.get_attribute_value(attribute))[:60]  # type: ignore[arg-type]
