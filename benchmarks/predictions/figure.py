"""The figure: how far predictions were from what was measured, device by device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

from predictions.verdicts import quantile

TICKS = (0.1, 0.2, 1 / 3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
LABELS = {0.1: "10x", 0.2: "5x", 1 / 3: "3x", 0.5: "2x", 1.0: "exact",
          2.0: "2x", 3.0: "3x", 5.0: "5x", 10.0: "10x"}  # fmt: skip


def draw(alternatives: Mapping[str, Sequence[float]], ratios: Sequence[float], path: Path) -> None:
    """Write the figure: a row per device, a point per model, quartiles as a box."""
    rows = {**alternatives, "GPU / CPU": ratios}
    names = list(rows)[::-1]
    shown = [[math.exp(v) for v in rows[name]] for name in names]
    figure, axis = plt.subplots(figsize=(9, 0.46 * len(names) + 1.5), dpi=110)
    axis.axvspan(1 / 3, 3, color="0.94", zorder=0)
    axis.axvspan(0.5, 2, color="0.87", zorder=0)
    axis.axvline(1, color="0.35", linewidth=0.9, zorder=1)
    for height, values in enumerate(shown, start=1):
        low, first, middle, third, high = (quantile(values, q) for q in (5, 25, 50, 75, 95))
        axis.plot([low, high], [height] * 2, "|-", color="black", linewidth=1, zorder=3)
        axis.barh(height, third - first, 0.5, first, facecolor="none", edgecolor="black", zorder=3)
        axis.plot([middle] * 2, [height - 0.25, height + 0.25], color="tab:red", zorder=4)
        offsets = [height + 0.2 * math.sin(7.1 * i) for i in range(len(values))]
        axis.plot(values, offsets, "o", markersize=3, alpha=0.45, color="tab:blue", zorder=2)
    axis.set_xscale("log")
    axis.set_yticks(range(1, len(names) + 1), names)
    axis.set_xticks(TICKS)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: LABELS.get(_near(x), "")))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("predicted too short   ←   predicted over measured median   →   too long")
    axis.set_title("Latency predicted from a cold calibration of 2 s, 20 models per device")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _near(x: float) -> float:
    return min(TICKS, key=lambda tick: abs(math.log(tick / x)))
