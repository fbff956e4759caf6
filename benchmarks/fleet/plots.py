"""The plots of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from .cases import STAGES, TOLD
from .tables import QUAD, SWITCH_TARGET, TARGETS, Results, mean

mpl.use("Agg")
from matplotlib import pyplot as plt

COLORS = ("#8fbfe0", "#1b6ca8", "#0b3050")
TITLES = ("mean regret, %", "p95 of regret, %", "harm, % of pairs", "missed, % of 2x wins")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=90, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def _clean(ax: Any) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=7)


def by_population(results: Results, path: Path) -> None:
    """The four figures of every population and stage, with targets and bounds."""
    names = [n for n in results["serve"] if not n.startswith(TOLD)][::-1]
    figure, axes = plt.subplots(1, 4, figsize=(13, 5), sharey=True)
    for k, (ax, figure_name) in enumerate(zip(axes, QUAD, strict=True)):
        for j, (stage, color) in enumerate(zip(STAGES, COLORS, strict=True)):
            y = np.arange(len(names)) + 0.27 * (1 - j)
            ax.barh(y, [mean(results, n, stage, figure_name) for n in names], 0.25, color=color,
                    label=stage)  # fmt: skip
            marks = [(TARGETS[n][stage][k], at) for n, at in zip(names, y, strict=True)
                     if n in TARGETS]  # fmt: skip
            ax.plot(*zip(*marks, strict=True), "v", color="#c0392b", ms=4,
                    label="target" * (j == 2))  # fmt: skip
            least = [(mean(results, TOLD + n, stage, figure_name), at)
                     for n, at in zip(names, y, strict=True)
                     if TOLD + n in results["serve"]]  # fmt: skip
            if least:
                ax.plot(*zip(*least, strict=True), "|", color="#f0a202", ms=8, mew=2,
                        label="told everything" * (j == 2))  # fmt: skip
        ax.set_title(TITLES[k], size=9)
        _clean(ax)
    axes[0].set_yticks(range(len(names)), names)
    axes[-1].legend(fontsize=7, frameon=False, loc="lower right")
    _save(figure, path)


def by_oracle(results: Results, path: Path) -> None:
    """How the mean splits: cold runs, openings, what is given up by choice; and switches."""
    names = [n for n in results["serve"] if not n.startswith(TOLD)][::-1]
    figure, axes = plt.subplots(1, 4, figsize=(13, 4), sharey=True)
    at = np.arange(len(names))
    for ax, stage in zip(axes, STAGES, strict=False):
        for j, (prefix, label) in enumerate(
            (("", "time"), ("cold ", "oracle pays cold runs"), ("felt cold ", "and felt"))
        ):
            found = [mean(results, n, stage, prefix + "mean") for n in names]
            ax.barh(at + 0.27 * (1 - j), found, 0.25, color=COLORS[j], label=label)
        ax.set_title(f"mean regret, {stage}, %", size=9)
        _clean(ax)
    axes[3].barh(at, [mean(results, n, "hour", "switches") for n in names], color=COLORS[1])
    axes[3].axvline(SWITCH_TARGET, color="#c0392b", lw=1, ls="--")
    axes[3].set_title("switches an hour; dashed: target", size=9)
    _clean(axes[3])
    axes[0].set_yticks(range(len(names)), names)
    axes[0].legend(fontsize=7, frameon=False)
    _save(figure, path)


def draw_all(results: Results, folder: Path) -> None:
    """Draw every plot into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if "serve" in results:
        by_population(results, folder / "fleet-populations.png")
        by_oracle(results, folder / "fleet-oracles.png")
