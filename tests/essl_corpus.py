"""Kernels to compile as ESSL: those of every other dialect in every storage, and those of plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import op_cases as cases
import planrun
import pytest
import wgsl_corpus

from gpuedge import lang
from gpuedge.core.storage import HALF_TEXELS, KINDS, TEXELS
from gpuedge.plan.plan import Source

TEXTURES = {
    "essl300": [k for k in KINDS if "buffer" not in k],
    "essl300_single": [k for k in KINDS if "buffer" not in k],
    "essl100": [k for k in KINDS if "buffer" not in k and k != "rgba32ui"],
    "essl310": [TEXELS, HALF_TEXELS],  # what kernels read; they write buffers
}


@lru_cache(maxsize=1)
def planned() -> tuple[lang.Kernel, ...]:
    """Kernels with the epilogues that plans write: softmax, strided gathers, fused chains."""
    found: dict[Source, lang.Kernel] = {}
    with pytest.MonkeyPatch.context() as patch:
        kernel_of = planrun.kernel_of

        def noted(source: Source) -> lang.Kernel:
            found[source] = kernel_of(source)
            return found[source]

        patch.setattr(planrun, "kernel_of", noted)
        device = planrun.plan_device(planrun.TEXTURES)
        for strategy in (cases.softmax(), cases.movement(), cases.binary(), cases.expression()):
            cases.run_cases(strategy, 25, device)
    return tuple(found.values())


def corpus(dialect: str) -> Iterator[tuple[str, str]]:
    """Every kernel that the dialect can say, and every storage kind of the library's."""
    for text in wgsl_corpus.texts():
        if text.kernel.form == "group" and dialect != "essl310":
            continue
        if text.name.startswith(("group/matmul_bytes", "group/conv2d_bytes")):
            continue  # products of packed bytes
        refused = text.name in ("body 9", "body 11") or text.name.startswith("ints ")
        if dialect == "essl100" and refused:
            continue  # the largest int, the bits of ints
        blob = lang.print_kernel(text.kernel, dialect)
        yield text.name, blob.specialised(text.specs, {"ROW": 4096})
        for along in ("row", "plane") if dialect == "essl300" else ():
            blob = lang.print_kernel(text.kernel, dialect, None, along)
            yield f"{text.name} {along}", blob.specialised(text.specs, {"ROW": 4096})
        for kind in TEXTURES.get(dialect, []) if "/" in text.name else ():
            is_read = dialect == "essl310"
            kinds = {x.name: kind for x in text.kernel.tensors if x.access == "read" or not is_read}
            blob = lang.print_kernel(text.kernel, dialect, kinds)
            yield f"{text.name} {kind}", blob.specialised(text.specs, {"ROW": 64})
    for i, kernel in enumerate(planned()):
        yield f"planned {i}", lang.print_kernel(kernel, dialect).specialised({}, {"ROW": 4096})
