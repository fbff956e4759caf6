"""A plan: the passes that compute a segment, as pure data, before any device exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from gpuedge.core.dtypes import EXACT
from gpuedge.core.kernel import Number
from gpuedge.core.storage import FLOAT32, Storage
from gpuedge.plan.layout import Layout
from gpuedge.plan.tuned import TunedKernel

Texels = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Source:
    """Kernel text to print: a library kernel by name, and the text of its epilogue, if any.

    `is_half`: its halves are float16, not float32. `consts`: values of its own constants, by name.
    `along`: what neighbours that one invocation computes have in common (`gpuedge.lang`).
    """

    kernel: str
    epilogue: str | None = None
    is_half: bool = False
    consts: tuple[tuple[str, int], ...] = ()
    along: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel launch. `tensors` maps the kernel's tensor names to plan tensors.

    `specs` are values by name of what the kernel's text leaves open: of its specs, each of which
    makes another pipeline, and of its params. `outputs` are the plan tensors it writes.
    """

    source: Source
    variant: str
    tensors: Mapping[str, str]
    outputs: tuple[str, ...]
    specs: Mapping[str, Number]
    groups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one node or fused group: the model's nodes, their ops, the variants used.

    `storages` are the kinds of storage that its passes write, `passes` their places in the plan.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    variants: tuple[str, ...]
    storages: tuple[str, ...] = ()
    passes: tuple[int, ...] = ()

    @property
    def kernel(self) -> str:
        """What runs, for people: the variants, or ``view`` where nothing does."""
        return "+".join(self.variants) or "view"


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor the host fills from segment inputs or constants.

    `build` arranges the float32 arrays of `sources` as texels; None uploads the only source as is.
    With `is_raw` it takes the arrays in their own dtypes: integers of which it makes digits.
    """

    sources: tuple[str, ...]
    build: Callable[..., Texels] | None
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """A choice between variants that fit: the one taken comes first, then those of higher scores.

    `passes` are the places in the plan of the passes before which it was made; `tuned` is what was
    measured, if something was.
    """

    op: str
    variants: tuple[str, ...]
    passes: tuple[int, ...]
    tuned: TunedKernel | None = None


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """One tensor of a plan.

    `memory` names the tensor whose memory it shares (itself unless it is a view). `host` is set
    for tensors the host fills: constants (every source is constant) and segment inputs. `storage`
    is how the device keeps its texels, the same for all views of one memory; `start` is the texel
    of the memory that it begins at.
    """

    name: str
    layout: Layout
    memory: str
    host: HostTensor | None = None
    is_constant: bool = False
    storage: Storage = FLOAT32
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it takes of its memory."""
        return self.layout.nbytes // 16 * self.storage.texel_bytes

    @property
    def offset(self) -> int:
        """Bytes of its memory that lie before it."""
        return self.start * self.storage.texel_bytes


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """An output whose size only values tell: its dtype and longest shape, and where its length is.

    `count` names the output of the plan whose first element is the length of `axis`.
    """

    dtype: str
    shape: tuple[int, ...]
    axis: int
    count: str


@dataclass(frozen=True)
class Plan:
    """Passes in order, their tensors, and where the segment's outputs are found.

    `outputs` maps output names to plan tensors in linear layout; what has another in `lows` is the
    high digit of integers of 32 bits, and that the low one. `constants` are the values of
    constant sources, those of the graph and those the planner combined. `fixed` holds outputs that
    need no device at all: empty arrays and constants. `most_integer` is how large integers of the
    segment's inputs may be, so that all that is made of them is exact. `open` are outputs that the
    host cuts to their length. `choices` are those between several variants, by their keys.
    """

    passes: tuple[Pass, ...]
    tensors: Mapping[str, PlanTensor]
    outputs: Mapping[str, str]
    constants: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    fixed: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    most_integer: int = EXACT
    lows: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, OpenOutput] = field(default_factory=dict)
    choices: Mapping[str, VariantChoice] = field(default_factory=dict)

    def with_inputs(self, kept: Mapping[str, Storage]) -> Plan:
        """Return the same passes where inputs lie otherwise, by the names of their tensors."""
        return replace(self, tensors={
            name: replace(tensor, storage=kept.get(tensor.memory, tensor.storage))
            for name, tensor in self.tensors.items()
        })  # fmt: skip

    def runs(self) -> Iterator[tuple[int | None, list[int]]]:
        """Yield passes in a row that belong to one step (or none): its place, and theirs."""
        owners = {i: n for n, step in enumerate(self.steps) for i in step.passes}
        for owner, some in groupby(range(len(self.passes)), owners.get):
            yield owner, list(some)
