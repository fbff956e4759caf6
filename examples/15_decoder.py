"""What you will see: letters of a small transformer, whose cache never leaves the device.

Its weights are drawn at random, so the text means nothing; it is the same on every device.

The caches that a step gives are the inputs of the next one, as arrays on the device: two integers
go there per step, and the scores come back.

Usage: python examples/15_decoder.py [DEVICE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np
from build_decoder import LETTERS, decoder

import gpuedge


def generate(session: gpuedge.Session, prompt: str, count: int, device: str) -> Iterator[int]:
    """Yield the tokens that follow a text, each the one of the highest score."""
    token, place = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    scores = np.empty(session.outputs["scores"][1], np.float32)
    empty = {
        name: gpuedge.array(np.zeros(shape, np.float32), device=device)
        for name, (_, shape) in session.inputs.items()
        if name not in ("token", "place")
    }
    bound = session.bind({"token": token, "place": place, **empty}, {"scores": scores})
    caches = empty
    for number in range(len(prompt) + count - 1):
        token[...] = LETTERS.index(prompt[number]) if number < len(prompt) else scores.argmax()
        place[...] = number
        results = bound.run(caches)  # token and place are bound, and read anew
        caches = {name: results[f"new_{name}"] for name in empty}
        if number >= len(prompt) - 1:
            yield int(scores.argmax())


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "auto"
    with gpuedge.Session(decoder(), device=device) as session:
        start = time.process_time()
        tokens = list(generate(session, "the ", 40, device))
        print("the " + "".join(LETTERS[token] for token in tokens))
        spent = (time.process_time() - start) / (len(tokens) + 3)
        print(f"{device}: {1e3 * spent:.1f} ms of processor time a token")
