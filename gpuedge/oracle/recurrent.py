"""What recurrent layers of ONNX must give, step by step, with the activations they have by default.

Formulas are those of the operators RNN, GRU and LSTM in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuedge.opset.bounds import Num
from gpuedge.oracle import layers
from gpuedge.oracle.functions import elementwise

State = tuple[Num, ...]
"""The hidden state, and that of the cells of an LSTM; (batch, size) each."""

_sigmoid, _tanh = partial(elementwise, "sigmoid"), partial(elementwise, "tanh")
_times = partial(layers.gemm, trans_b=True)


def _part(x: Num, index: int) -> Num:
    return layers.moved(lambda a: a[index], x)


def _parts(x: Num, count: int) -> list[Num]:
    cuts = (np.split(part, count) for part in x)
    return [Num(v, e) for v, e in zip(*cuts, strict=True)]


class _Direction:
    """The weights of one direction, a gate after the other."""

    def __init__(self, gates: int, w: Num, r: Num, *more: Num | None) -> None:
        b, p = more
        size = r.v.shape[-1]
        self.w, self.r = _parts(w, gates), _parts(r, gates)
        self.b = _parts(b or Num.of(np.zeros(2 * gates * size)), 2 * gates)
        self.p = _parts(p or Num.of(np.zeros(3 * size)), 3)

    def sums(self, gate: int, x: Num, h: Num) -> Num:
        """Return what goes into the activation of a gate."""
        biases = self.b[gate] + self.b[gate + len(self.w)]
        return _times(x, self.w[gate]) + _times(h, self.r[gate]) + biases


def _rnn(own: _Direction, x: Num, state: State, _: bool) -> State:
    return (_tanh(own.sums(0, x, state[0])),)


def _gru(own: _Direction, x: Num, state: State, is_reset_last: bool) -> State:
    (h,) = state
    update, reset = (_sigmoid(own.sums(gate, x, h)) for gate in (0, 1))
    if is_reset_last:
        inner = reset * (_times(h, own.r[2]) + own.b[5]) + _times(x, own.w[2]) + own.b[2]
    else:
        inner = own.sums(2, x, reset * h)
    return ((1.0 - update) * _tanh(inner) + update * h,)


def _lstm(own: _Direction, x: Num, state: State, _: bool) -> State:
    h, c = state
    opened, kept = (_sigmoid(own.sums(gate, x, h) + own.p[gate] * c) for gate in (0, 2))
    cell = kept * c + opened * _tanh(own.sums(3, x, h))
    shown = _sigmoid(own.sums(1, x, h) + own.p[1] * cell)
    return shown * _tanh(cell), cell


STEPS: dict[str, tuple[int, Callable[[_Direction, Num, State, bool], State]]] = {
    "RNN": (1, _rnn), "GRU": (3, _gru), "LSTM": (4, _lstm),
}  # fmt: skip
"""How many gates an operator has, and what makes the next state."""


def layer(
    onnx: str, x: Num, w: Num, r: Num, *given: Any, whole: bool, hidden_size: int,
    direction: Any = "forward", linear_before_reset: int = 0,
) -> State:  # fmt: skip
    """Return all hidden states (steps, directions, batch, size), then the last of each state."""
    b, lengths, h, c, p = (*given, *(None,) * 5)[:5]
    (steps, batch, _), count = x.v.shape, w.v.shape[0]
    gates, step = STEPS[onnx]
    zero = Num.of(np.zeros((count, batch, hidden_size)))
    begin = [zero if first is None else first for first in ((h, c) if onnx == "LSTM" else (h,))]
    every, last = [], []
    for d in range(count):
        more = (None if o is None else _part(o, d) for o in (b, p))
        own = _Direction(gates, _part(w, d), _part(r, d), *more)
        is_reversed = d == 1 or direction in ("reverse", b"reverse")
        state: State = tuple(_part(first, d) for first in begin)
        seen: dict[int, Num] = {}
        for t in reversed(range(steps)) if is_reversed else range(steps):
            inside = np.ones((batch, 1)) if lengths is None else (t < lengths)[:, None]
            there = Num.of(np.broadcast_to(inside, (batch, hidden_size)))
            new = step(own, _part(x, t), state, bool(linear_before_reset))
            state = tuple(layers.choose(there, *pair) for pair in zip(new, state, strict=True))
            seen[t] = layers.choose(there, state[0], Num.of(np.zeros((batch, hidden_size))))
        every.append(_stacked([seen[t] for t in range(steps)], 0))
        last.append(state)
    finals = (_stacked(states, 0) for states in zip(*last, strict=True))
    return _stacked(every, 1), *finals


def _stacked(parts: Sequence[Num], axis: int) -> Num:
    values, errors = (np.stack(arrays, axis) for arrays in zip(*parts, strict=True))
    return Num(values, errors)
