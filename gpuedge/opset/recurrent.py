"""Recurrent layers: all inputs times their weights at once, then a few kernels for each step.

Which time a step is at is read from memory, so that the programs of all steps are the same ones.
Both directions of a layer take their steps together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuedge.core.text import shown
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import BY_NAME, larger, smaller, tanh
from gpuedge.opset.expr import Expr, where
from gpuedge.opset.index import Index, Loaded, choose, of
from gpuedge.opset.limits import Limit
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import (
    Shape,
    Tensor,
    at,
    computed,
    constant,
    joined,
    mapped,
    product,
    reshape,
    transpose,
    view,
)

MOST_STEPS = 512
"""Steps that are taken one after the other; each takes two to five kernels."""

DIRECTIONS = ("forward", "reverse", "bidirectional")

Position = tuple[Index, ...]

_OWN: dict[str, tuple[Callable[..., Expr], dict[str, float]]] = {
    "affine": (lambda x, alpha, beta: x * alpha + beta, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (lambda x, alpha, beta: alpha * tanh(x * beta), {"alpha": 1.0, "beta": 1.0}),
}
"""Activations that are no operators of ONNX now; by default they scale and add nothing."""

_SHARED = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu",
           "Softsign", "Softplus")  # fmt: skip

ACTIVATIONS = {
    **_OWN, **{n.lower(): (BY_NAME[n].formula, dict(BY_NAME[n].numbers)) for n in _SHARED}
}  # fmt: skip
"""Formulas of activations and their numbers, by names in lower case (ONNX minds no case)."""


@dataclass(frozen=True)
class Activation:
    """An activation by its name in lower case, and its numbers."""

    name: str
    numbers: tuple[tuple[str, float], ...]

    def __call__(self, x: Expr) -> Expr:
        """Return it of an expression."""
        return ACTIVATIONS[self.name][0](x, **dict(self.numbers))


def _activations(call: OperatorCall, names: Sequence[str], count: int) -> list[list[Activation]]:
    """Return the activations of each direction."""
    said = _texts(call.attrs.get("activations", ())) or [*names] * count
    if len(said) != len(names) * count:
        raise call.unsupported(f"names {len(said)} activations instead of {len(names) * count}")
    unknown = [name for name in said if name.lower() not in ACTIVATIONS]
    if unknown:
        raise call.unsupported(f"has the activation {shown(unknown[0])}, which is not known")
    all_of = _numbered(said, call.attrs)
    return [all_of[i : i + len(names)] for i in range(0, len(all_of), len(names))]


def _numbered(names: Sequence[str], attrs: Mapping[str, Any]) -> list[Activation]:
    """Return known activations; alphas and betas go to those that have one, in their order."""
    left = {kind: list(_floats(attrs, f"activation_{kind}")) for kind in ("alpha", "beta")}

    def made(name: str) -> Activation:
        defaults = ACTIVATIONS[name][1]
        numbers = ((n, left[n].pop(0) if left[n] else d) for n, d in defaults.items())
        return Activation(name, tuple(numbers))

    return [made(name.lower()) for name in names]


def with_defaults(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a layer with the alphas and betas that it leaves to ONNX.

    ONNX Runtime (seen with 1.32.0) takes 0 for most of them.
    """
    names = _texts(attrs.get("activations", ()))
    if any(name.lower() not in ACTIVATIONS for name in names):
        return dict(attrs)
    each = [dict(activation.numbers) for activation in _numbered(names, attrs)]
    numbers = {
        f"activation_{kind}": tuple(n[kind] for n in each if kind in n)
        for kind in ("alpha", "beta")
    }
    return {**attrs, **{name: given for name, given in numbers.items() if given}}


def _texts(value: Any) -> list[str]:
    """Return a list of texts, which the reader leaves as a message."""
    each = getattr(value, "strings", value)
    return [s.decode(errors="replace") if isinstance(s, bytes) else str(s) for s in each]


def _floats(attrs: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = attrs.get(name, ())
    return tuple(float(v) for v in value) if isinstance(value, (list, tuple)) else ()


@dataclass(frozen=True)
class Moment:
    """Where a step is: its number, and that from the other end, in memory.

    Attributes
    ----------
    number : Tensor
        Both, so that it is no scalar, which kernels would have as text.
    """

    number: Tensor

    @classmethod
    def of(cls, step: int, steps: int) -> Moment:
        """Return the moment of a step."""
        return cls(constant(np.array([step, steps - 1 - step], np.int32)))

    def read(self, which: Index, steps: int) -> Index:
        """Return its number (0), or that from the other end (1)."""
        return of(Loaded(at(self.number, (which,)), 0, steps - 1))


class Recurrence:
    """The inputs of a recurrent node, checked, and what its steps share.

    Parameters
    ----------
    call : OperatorCall
    gates : int
        How many parts the rows of its weights have.
    names : sequence of str
        Its activations by default.

    Attributes
    ----------
    projected : Tensor
        Inputs times weights, and biases, (directions, steps, batch, gates * hidden).
    shape : tuple of int
        Of a state: directions, batch, hidden.
    """

    def __init__(self, call: OperatorCall, gates: int, names: Sequence[str]) -> None:
        self.call, self.gates = call, gates
        self.is_batch_first = bool(call.integer("layout", 0))
        x, w, r = call.input(0), call.input(1), call.input(2)
        self.dtype = x.dtype
        if x.rank != 3 or w.rank != 3 or r.rank != 3:
            raise call.bad_shape("needs inputs and weights with three axes each")
        x = transpose(x, (1, 0, 2)) if self.is_batch_first else x
        self.steps, batch, width = x.shape
        count, hidden = r.shape[0], r.shape[2]
        self.shape: Shape = (count, batch, hidden)
        self._check(x, w, r)
        said = call.text("direction", "forward").lower()
        if said not in DIRECTIONS or count != 1 + (said == "bidirectional"):
            raise call.bad_shape(f"has weights of {count} directions, and is {said!r}")
        self.is_reverse = said == "reverse"
        self.lengths = call.optional(4)
        if self.lengths is not None and self.lengths.shape != (batch,):
            raise call.bad_shape("needs a length for each row of its batch")
        self.formulas = _activations(call, names, count)
        self.clip = call.number("clip", 0.0)
        self.weights = _turned(r)
        rows = reshape(x, (self.steps * batch, width))
        self._rows = self.times(rows, _turned(w), gates * hidden)

    def _check(self, x: Tensor, w: Tensor, r: Tensor) -> None:
        (count, _, hidden), rows = self.shape, self.gates * self.shape[2]
        if w.shape != (count, rows, x.shape[2]) or r.shape != (count, rows, hidden):
            raise self.call.bad_shape("has weights that do not fit its input")
        if int(self.call.attrs.get("hidden_size", hidden)) != hidden:
            raise self.call.bad_shape(f"has a hidden_size that is not {hidden}")
        if not x.size or not r.size:
            raise self.call.unsupported("has an input or weights without elements")
        if self.steps > MOST_STEPS:
            raise self.call.unsupported(f"takes {self.steps} steps; the most is {MOST_STEPS}")

    # -- what steps are made of -------------------------------------------------------------------

    def times(self, rows: Tensor, weights: Tensor, width: int) -> Tensor:
        """Return rows, the same or others for each direction, times weights of each direction."""
        count = self.shape[0]
        if count == 1:
            flat = reshape(rows, rows.shape[-2:])
            total = product(flat, reshaped(weights, weights.shape[1:]))
            return reshape(total, (1, *total.shape))
        total = product(rows if rows.rank == 3 else reshape(rows, (1, *rows.shape)), weights)
        return reshape(total, (count, total.shape[-2], width))

    def projected(self, biases: Tensor | None) -> Tensor:
        """Return what the inputs give each gate at each time, with biases (directions, rows)."""
        count, batch, hidden = self.shape
        total = self._rows
        if biases is not None:
            wide = reshape(biases, (biases.size,) if count == 1 else (count, 1, biases.shape[1]))
            total = mapped(lambda a, b: a + b, total, wide)
        return reshape(total, (count, self.steps, batch, self.gates * hidden))

    def biases(self, index: int = 3) -> tuple[Tensor, Tensor] | None:
        """Return the biases of the inputs and of the states, (directions, rows) each."""
        b = self.call.optional(index)
        if b is None:
            return None
        count, rows = self.shape[0], self.gates * self.shape[2]
        if b.shape != (count, 2 * rows):
            raise self.call.bad_shape(f"needs biases of the shape {[count, 2 * rows]}")
        first, second = (part(b, (count, rows), (0, begin)) for begin in (0, rows))
        return first, second

    def initial(self, index: int) -> Tensor:
        """Return a state before the first step; zero where it is not given."""
        given = self.call.optional(index)
        if given is None:
            return constant(np.zeros(self.shape, self.dtype))
        count, batch, hidden = self.shape
        wanted = (batch, count, hidden) if self.is_batch_first else self.shape
        if given.shape != wanted:
            raise self.call.bad_shape(f"needs initial states of the shape {list(wanted)}")
        return transpose(given, (1, 0, 2)) if self.is_batch_first else given

    def act(self, number: int, x: Expr, direction: Index) -> Expr:
        """Return an activation of an expression, clipped before as the node wants it."""
        if self.clip > 0:
            x = smaller(larger(x, -self.clip), self.clip)
        first, last = self.formulas[0][number], self.formulas[-1][number]
        if first == last:
            return first(x)
        return where([0 - direction], first(x), last(x))

    def gate(self, total: Tensor, moment: Moment, place: Position, number: int) -> Expr:
        """Return what the inputs give a gate at a place of a state."""
        direction, row, unit = place
        time = self._time(moment, direction, row)
        return at(total, (direction, time, row, unit + number * self.shape[2]))

    def _time(self, moment: Moment, direction: Index, row: Index) -> Index:
        """Return which time a step is at: from the end of a sequence in the reverse direction."""
        steps = self.steps
        if self.lengths is None:
            return moment.read(Index(1) if self.is_reverse else direction, steps)
        ahead = moment.read(Index(), steps)
        back = self._length(row) - 1 - ahead
        back = choose([back], back, Index())
        if self.shape[0] == 1:
            return back if self.is_reverse else ahead
        return choose([0 - direction], ahead, back)

    def _length(self, row: Index) -> Index:
        lengths = self.lengths
        return (
            Index(self.steps) if lengths is None else of(Loaded(at(lengths, (row,)), 0, self.steps))
        )

    def state(self, moment: Moment, old: Tensor, new: Callable[[Position], Expr]) -> Tensor:
        """Return a state after a step; sequences that have ended keep theirs."""

        def body(place: Position) -> Expr:
            if self.lengths is None:
                return new(place)
            is_left = self._length(place[1]) - 1 - moment.read(Index(), self.steps)
            return where([is_left], new(place), at(old, place))

        return computed(self.shape, self.dtype, body)

    # -- results ----------------------------------------------------------------------------------

    def results(self, hidden: Sequence[Tensor], cell: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the outputs of the node from the states after each step."""
        last = [self._last(t) for t in (hidden[-1], cell) if t is not None]
        ends = tuple(transpose(t, (1, 0, 2)) if self.is_batch_first else t for t in last)
        is_asked = bool(self.call.outputs[0])
        return (self._sequence(hidden) if is_asked else ends[0], *ends)

    def _last(self, state: Tensor) -> Tensor:
        """Return a last state: zero for sequences of no length, as ONNX Runtime has it."""
        if self.lengths is None:
            return state

        def body(place: Position) -> Expr:
            return where([self._length(place[1]) - 1], at(state, place), 0.0)

        return computed(self.shape, self.dtype, body)

    def _sequence(self, hidden: Sequence[Tensor]) -> Tensor:
        """Return the states at each time; joined in pairs, as Concat does it.

        As rows of numbers: that makes short indices, of which there are many.
        """
        count = self.shape[0]
        parts = [reshape(h, (h.size,)) for h in hidden]
        while len(parts) > 1:
            pairs = [joined(parts[i], parts[i + 1], 0) for i in range(0, len(parts) - 1, 2)]
            parts = pairs + parts[len(pairs) * 2 :]
        whole = rows = reshape(parts[0], (self.steps, *self.shape))
        if self.lengths is not None or count > 1 or self.is_reverse:
            shape = (self.steps, *self.shape)
            whole = computed(shape, self.dtype, lambda place: self._at_time(rows, place))
        return transpose(whole, (2, 0, 1, 3)) if self.is_batch_first else whole

    def _at_time(self, whole: Tensor, place: Position) -> Expr:
        """Return the state at a time: in the reverse direction that of a step from the end."""
        time, direction, row, unit = place
        left = self._length(row) - 1 - time
        step = time
        if self.shape[0] > 1:
            step = choose([0 - direction], time, choose([left], left, Index()))
        elif self.is_reverse:
            step = choose([left], left, Index())
        return where([left], at(whole, (step, direction, row, unit)), 0.0)


def reshaped(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor with another shape, at once if it is constant."""
    return reshape(tensor, shape) if tensor.array is None else constant(tensor.array.reshape(shape))


def _turned(weights: Tensor) -> Tensor:
    """Transpose the matrix of each direction, at once if it is constant."""
    if weights.array is not None:
        return constant(np.ascontiguousarray(weights.array.transpose(0, 2, 1)))
    return transpose(weights, (0, 2, 1))


def part(tensor: Tensor, shape: Shape, begin: Sequence[int]) -> Tensor:
    """Return a part of a tensor, at once if it is constant."""
    if tensor.array is not None:
        cut = tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))
        return constant(np.ascontiguousarray(tensor.array[cut]))
    return view(tensor, shape, lambda place: [p + b for p, b in zip(place, begin, strict=True)])


def _sum(pair: tuple[Tensor, Tensor] | None) -> Tensor | None:
    """Return the sum of two biases, at once and not rounded to float16 if they are constant."""
    if pair is None:
        return None
    a, b = pair[0].array, pair[1].array
    if a is None or b is None:
        return mapped(lambda x, y: x + y, *pair)
    return constant(a.astype(np.float32) + b.astype(np.float32))


def _padded(biases: Tensor, width: int) -> Tensor:
    """Return biases with zeros behind, at once if they are constant."""
    if biases.array is not None:
        return constant(np.pad(biases.array, ((0, 0), (0, width))))
    return joined(biases, constant(np.zeros((biases.shape[0], width), biases.dtype)), 1)


def _own(total: Tensor, place: Position, number: int, width: int) -> Expr:
    """Return what the last state gives a gate."""
    return at(total, (*place[:2], place[2] + number * width))


# --- the three layers ----------------------------------------------------------------------------


def _rnn(call: OperatorCall) -> Sequence[Tensor]:
    layer = Recurrence(call, 1, ("Tanh",))
    total = layer.projected(_sum(layer.biases()))
    states = [layer.initial(5)]
    for step in range(layer.steps):
        moment, old = Moment.of(step, layer.steps), states[-1]
        own = layer.times(old, layer.weights, layer.shape[2])

        def new(place: Position, own: Tensor = own, moment: Moment = moment) -> Expr:
            return layer.act(0, layer.gate(total, moment, place, 0) + at(own, place), place[0])

        states.append(layer.state(moment, old, new))
    return layer.results(states[1:])


def _lstm(call: OperatorCall) -> Sequence[Tensor]:
    layer = Recurrence(call, 4, ("Sigmoid", "Tanh", "Tanh"))
    total = layer.projected(_sum(layer.biases()))
    steps = _LstmSteps(
        layer, total, call.optional(7), is_coupled=bool(call.integer("input_forget", 0))
    )
    hidden, cell = [layer.initial(5)], layer.initial(6)
    for step in range(layer.steps):
        moment = Moment.of(step, layer.steps)
        own = layer.times(hidden[-1], layer.weights, 4 * layer.shape[2])
        cell = steps.cell(moment, own, cell)
        hidden.append(steps.hidden(moment, own, cell, hidden[-1]))
    return layer.results(hidden[1:], cell)


INPUT, OUTPUT, FORGET, CELL = range(4)
"""Order of the gates in the weights of LSTM; peepholes have the first three."""


@dataclass(frozen=True)
class _LstmSteps:
    """The two kernels of a step of an LSTM that follow its product."""

    layer: Recurrence
    total: Tensor
    peepholes: Tensor | None
    is_coupled: bool

    def __post_init__(self) -> None:
        count, _, width = self.layer.shape
        if self.peepholes is not None and self.peepholes.shape != (count, 3 * width):
            raise self.layer.call.bad_shape(f"needs peepholes of the shape {[count, 3 * width]}")

    def _sum(
        self, moment: Moment, own: Tensor, place: Position, gate: int, cell: Expr | None
    ) -> Expr:
        """Return what goes into the activation of a gate."""
        layer, width = self.layer, self.layer.shape[2]
        value = layer.gate(self.total, moment, place, gate) + _own(own, place, gate, width)
        if self.peepholes is None or cell is None:
            return value
        return value + at(self.peepholes, (place[0], place[2] + gate * width)) * cell

    def cell(self, moment: Moment, own: Tensor, old: Tensor) -> Tensor:
        """Return the cell after a step."""

        def new(place: Position) -> Expr:
            before = at(old, place)
            taken = self.layer.act(0, self._sum(moment, own, place, INPUT, before), place[0])
            kept = 1.0 - taken
            if not self.is_coupled:
                kept = self.layer.act(0, self._sum(moment, own, place, FORGET, before), place[0])
            fresh = self.layer.act(1, self._sum(moment, own, place, CELL, None), place[0])
            return kept * before + taken * fresh

        return self.layer.state(moment, old, new)

    def hidden(self, moment: Moment, own: Tensor, cell: Tensor, old: Tensor) -> Tensor:
        """Return the hidden state after a step."""

        def new(place: Position) -> Expr:
            now = at(cell, place)
            shown = self.layer.act(0, self._sum(moment, own, place, OUTPUT, now), place[0])
            return shown * self.layer.act(2, now, place[0])

        return self.layer.state(moment, old, new)


UPDATE, RESET, HIDDEN = range(3)
"""Order of the gates in the weights of GRU."""


def _gru(call: OperatorCall) -> Sequence[Tensor]:
    layer = Recurrence(call, 3, ("Sigmoid", "Tanh"))
    is_linear = bool(call.integer("linear_before_reset", 0))
    count, _, width = layer.shape
    pair = layer.biases()
    after: Tensor | None = None  # a bias that is reset with the product it belongs to
    if pair is not None and is_linear:
        after = part(pair[1], (count, width), (0, HIDDEN * width))
        first = part(pair[1], (count, HIDDEN * width), (0, 0))
        pair = (pair[0], _padded(first, width))
    steps = _GruSteps(layer, layer.projected(_sum(pair)), after)
    states = [layer.initial(5)]
    weights = [part(layer.weights, (count, width, n * width), (0, 0, begin * width))
               for n, begin in ((2, 0), (1, HIDDEN))]  # fmt: skip
    for step in range(layer.steps):
        moment, old = Moment.of(step, layer.steps), states[-1]
        if is_linear:
            own = layer.times(old, layer.weights, 3 * width)
            states.append(steps.linear(moment, own, old))
            continue
        own = layer.times(old, weights[0], 2 * width)
        inner = layer.times(steps.reset(moment, own, old), weights[1], width)
        states.append(steps.usual(moment, own, inner, old))
    return layer.results(states[1:])


@dataclass(frozen=True)
class _GruSteps:
    """The kernels of a step of a GRU that follow its products."""

    layer: Recurrence
    total: Tensor
    after: Tensor | None

    def _gate(self, moment: Moment, own: Tensor, place: Position, number: int) -> Expr:
        layer = self.layer
        given = layer.gate(self.total, moment, place, number)
        return layer.act(0, given + _own(own, place, number, layer.shape[2]), place[0])

    def _mixed(
        self, moment: Moment, own: Tensor, old: Tensor, fresh: Callable[[Position], Expr]
    ) -> Tensor:
        """Return the state after a step: a part of the old one, the rest anew."""

        def new(place: Position) -> Expr:
            kept = self._gate(moment, own, place, UPDATE)
            given = self.layer.gate(self.total, moment, place, HIDDEN)
            added = self.layer.act(1, given + fresh(place), place[0])
            return (1.0 - kept) * added + kept * at(old, place)

        return self.layer.state(moment, old, new)

    def reset(self, moment: Moment, own: Tensor, old: Tensor) -> Tensor:
        """Return the old state with parts of it reset."""
        return computed(
            self.layer.shape, self.layer.dtype,
            lambda place: self._gate(moment, own, place, RESET) * at(old, place),
        )  # fmt: skip

    def usual(self, moment: Moment, own: Tensor, inner: Tensor, old: Tensor) -> Tensor:
        """Return the state after a step, where the state is reset before its product."""
        return self._mixed(moment, own, old, lambda place: at(inner, place))

    def linear(self, moment: Moment, own: Tensor, old: Tensor) -> Tensor:
        """Return the state after a step, where the product of the state is reset."""

        def fresh(place: Position) -> Expr:
            value = _own(own, place, HIDDEN, self.layer.shape[2])
            if self.after is not None:
                value = value + at(self.after, (place[0], place[2]))
            return self._gate(moment, own, place, RESET) * value

        return self._mixed(moment, own, old, fresh)


def _lengths(call: OperatorCall) -> tuple[Limit, ...]:
    """Return that no sequence is longer than the input."""
    if not call.has(4):
        return ()
    steps = call.input(0).shape[1 if call.integer("layout", 0) else 0]
    return (Limit(4, "lengths", (0,), (steps,)),)


def _differs(call: OperatorCall) -> bool:
    """Tell what ONNX Runtime lacks, batches first, and that its LSTM does not clip its cells.

    Of nothing it makes numbers that mean nothing, or ends the process (seen with 1.32.0).
    """
    clips = call.op == "LSTM" and call.number("clip", 0.0) > 0
    return clips or bool(call.integer("layout", 0)) or 0 in call.input(0).shape


def _layer(name: str, build: Callable[[OperatorCall], Sequence[Tensor]]) -> Operator:
    return Operator(
        name, build, others=(4,), limits=_lengths, differs=_differs,
        remark=f"up to {MOST_STEPS} steps",
    )  # fmt: skip


LAYERS = ("RNN", "LSTM", "GRU")

OPERATORS: tuple[Operator, ...] = (_layer("RNN", _rnn), _layer("LSTM", _lstm), _layer("GRU", _gru))
