"""Which compiled model answers a call: the one cache of them, for sessions and for operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpuedge.runtime.compiled import CompiledModel

SHORTCUTS = 1024
"""Calls with a shortcut; with one more all are forgotten."""


class Shortcut(NamedTuple):
    """What a call led to: the model, the arguments that are its operands, and which are weights."""

    model: CompiledModel
    operands: tuple[tuple[str, int], ...]
    weights: tuple[int, ...]


class ModelCache:
    """Compiled models by signature, so many at most; the least recently used one goes first.

    Finding out the signature of a call takes longer than finding its model. So the arrays of the
    latest call are remembered (`match`), and what calls with arguments of one kind led to
    (`shortcuts`). Not for several threads at once, but for these two.

    Attributes
    ----------
    most : int
    dropped : int
        How many models made room for others.
    matched : hashable
        The signature that `match` knows.
    shortcuts : dict of hashable to Shortcut
        By arguments of calls; forgotten when a model goes.
    """

    def __init__(self, most: int, dropped: int = 0) -> None:
        self.most, self.dropped = most, dropped
        self.matched: Hashable = None
        self.shortcuts: dict[Hashable, Shortcut] = {}
        self._types: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] = ()
        self._models: dict[Hashable, CompiledModel] = {}

    def get(self, signature: Hashable) -> CompiledModel | None:
        """Return the model of a signature, and note that it is used now."""
        models = self._models
        model = models.get(signature)
        if model is not None and len(models) > 1:
            models[signature] = models.pop(signature)
        return model

    def add(self, signature: Hashable, model: CompiledModel) -> None:
        """Keep a model; `make_room` comes first."""
        self._models[signature] = model

    def make_room(self, signature: Hashable) -> list[CompiledModel]:
        """Close and return what is too many with one more model, of its kind of signature.

        Before the next one is compiled: a device need not hold more than the bound at any time.
        """
        alike = [known for known, _ in self.items() if type(known) is type(signature)]
        oldest = alike[: max(len(alike) + 1 - self.most, 0)]
        models = self.take(lambda known, _: known in oldest)
        self.dropped += len(models)
        for model in models:
            model.close()
        return models

    def take(self, is_taken: Callable[[Hashable, CompiledModel], bool]) -> list[CompiledModel]:
        """Forget models without closing them, and return them."""
        signatures = [s for s, model in self.items() if is_taken(s, model)]
        if signatures:
            self.shortcuts.clear()
        return [self._models.pop(signature) for signature in signatures]

    def close(self) -> None:
        """Close and forget all; where that was interrupted, it may be called again."""
        self.shortcuts.clear()
        for signature, model in self.items():
            model.close()
            self._models.pop(signature, None)

    def items(self) -> list[tuple[Hashable, CompiledModel]]:
        """Return every signature and its model, the one used last at the end."""
        return list(self._models.items())  # in one step: other threads go on meanwhile

    # -- calls like those before --------------------------------------------------------------

    def note(self, signature: Hashable, types: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
        """Remember the dtypes and shapes of the arrays of a call."""
        self._types = tuple((n, np.dtype(kind), shape) for n, (kind, shape) in types.items())
        self.matched = signature

    def match(self, inputs: Any) -> Any:
        """Return the signature of a call with arrays of just the types of the latest, else None."""
        if type(inputs) is not dict or len(inputs) != len(self._types):
            return None
        for name, dtype, shape in self._types:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        return self.matched

    def shorten(self, key: Hashable, shortcut: Shortcut) -> None:
        """Remember what a call led to, by a key of its arguments."""
        if len(self.shortcuts) >= SHORTCUTS:
            self.shortcuts.clear()
        self.shortcuts[key] = shortcut
