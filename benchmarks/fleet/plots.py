"""The plots of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from .tables import DENIED_TARGET, SWITCH_TARGET, TARGETS, WRONG_TARGET, Results, after, hours

mpl.use("Agg")
from matplotlib import pyplot as plt

Axes = Any
OURS, OTHERS, LINE = "#1b6ca8", "#b8b8b8", "#c0392b"


def _figure(columns: int, width: float, height: float) -> tuple[Any, list[Axes]]:
    figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    for ax in axes[0]:
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=90, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def _bars(ax: Axes, rows: dict[str, float], target: float | None, title: str) -> None:
    names = list(rows)[::-1]
    values = [rows[n] for n in names]
    ax.barh(names, values, color=[OURS if n.startswith("ours") else OTHERS for n in names])
    for i, value in enumerate(values):
        ax.text(value, i, f" {value:.2g}" if value < 100 else f" {value:.0f}", va="center", size=7)
    if target is not None:
        ax.axvline(target, color=LINE, lw=1, ls="--")
    ax.set_title(title, size=9)
    ax.tick_params(labelsize=7)


def by_policy(results: Results, path: Path) -> None:
    """Mean and p95 of regret by policy, logarithmic."""
    figure, axes = _figure(2, 10, 4)
    for ax, name in zip(axes, ("mean", "p95"), strict=True):
        rows = {
            policy: float(np.mean([r["score"][name] for r in found.values()]))
            for policy, found in results["compare"].items()
            if policy != "facts"
        }
        for launch in (1, 5):
            label = f"ours, launch {launch}"
            rows[label] = float(np.mean(after(results, "base", launch, name)))
        _bars(ax, rows, TARGETS[1][name], f"{name} of regret, % (log); dashed: target, launch 1")
        ax.set_xscale("log")
        ax.set_xlim(right=ax.get_xlim()[1] * 3)
    axes[1].set_yticklabels([])
    _save(figure, path)


def by_launch(results: Results, path: Path) -> None:
    """Each figure against the number of launches."""
    figure, axes = _figure(4, 12, 3)
    for ax, name in zip(axes, TARGETS[1], strict=True):
        for case, color in (("base", OURS), ("speedup 1.2", "#d08a2e")):
            found = results["decide"][case]
            lines = np.array([[at[name] for at in r["launches"]] for r in found.values()])
            x = np.arange(1, lines.shape[1] + 1)
            ax.plot(x, lines.mean(axis=0), color=color, marker=".", label=case)
            ax.fill_between(x, lines.min(axis=0), lines.max(axis=0), color=color, alpha=0.2, lw=0)
        for launch, wanted in TARGETS.items():
            ax.plot(launch, wanted[name], "v", color=LINE, ms=7, label="target" * (launch == 1))
        ax.set_title({"harm": "harm, % of pairs", "missed": "missed, % of 2x wins"}.get(
            name, f"{name} of regret, %"), size=9)  # fmt: skip
        ax.set_xlabel("launches", size=8)
        ax.set_ylim(bottom=0)
        ax.tick_params(labelsize=7)
    axes[0].legend(fontsize=7, frameon=False)
    _save(figure, path)


def by_case(results: Results, path: Path) -> None:
    """Mean regret after the first and the fifth launch, by case."""
    figure, axes = _figure(2, 10, 6)
    names = list(results["decide"])[::-1]
    for ax, figure_name in zip(axes, ("mean", "p95"), strict=True):
        for launch, color, y in ((1, "#8fbfe0", 0.2), (5, OURS, -0.2)):
            values = [float(np.mean(after(results, n, launch, figure_name))) for n in names]
            ax.barh(np.arange(len(names)) + y, values, 0.4, color=color, label=f"launch {launch}")
            ax.axvline(TARGETS[launch][figure_name], color=color, lw=1, ls="--")
        ax.set_title(f"{figure_name} of regret, %; dashed: targets", size=9)
        ax.tick_params(labelsize=7)
    axes[0].set_yticks(range(len(names)), names)
    axes[1].set_yticks([])
    axes[0].legend(fontsize=7, frameon=False)
    _save(figure, path)


def by_gate(results: Results, path: Path) -> None:
    """What gets past the gates, and what good devices pay for them."""
    figure, axes = _figure(2, 10, 4)
    wrong, denied = {}, {}
    for name, found in results["gates"].items():
        sums = {k: sum(r["counts"][k] for r in found.values()) for k in ("wrong", "pairs")}
        label = "ours" if name == "gpuedge (+ crosscheck)" else name.replace("gpuedge, ", "ours, ")
        wrong[label] = 1e5 * sums["wrong"] / sums["pairs"]
        good, lost = (sum(r["counts"][k] for r in found.values()) for k in ("good", "denied"))
        denied[label] = 100 * lost / good
    _bars(axes[0], wrong, WRONG_TARGET, "same wrong numbers every time, in use, per 100,000 pairs")
    _bars(axes[1], denied, DENIED_TARGET, "good (device, API) denied, %")
    axes[0].set_xscale("symlog", linthresh=0.1)
    axes[0].set_xlim(0, 1000)
    axes[1].set_yticklabels([])
    _save(figure, path)


def in_service(results: Results, path: Path) -> None:
    """Regret and switches of the rules in service."""
    figure, axes = _figure(2, 10, 2.8)
    found = {n.replace("monitor", "ours: monitor"): hours(r) for n, r in results["serve"].items()}
    for ax, name, title, target in (
        (axes[0], "mean", "mean regret over one hour, %", None),
        (axes[1], "switches", "switches an hour (log); dashed: target", SWITCH_TARGET),
    ):
        _bars(ax, {n: f[name] for n, f in found.items()}, target, title)
    axes[1].set_xscale("symlog", linthresh=0.1)
    axes[1].set_xlim(0, 300)
    axes[1].set_yticklabels([])
    _save(figure, path)


def draw_all(results: Results, folder: Path) -> None:
    """Draw every plot into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    by_policy(results, folder / "fleet-policies.png")
    by_launch(results, folder / "fleet-launches.png")
    by_case(results, folder / "fleet-cases.png")
    by_gate(results, folder / "fleet-gates.png")
    in_service(results, folder / "fleet-service.png")
