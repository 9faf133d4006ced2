"""Measured against simulated, turn by turn."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.style import MUTED, PALETTE, empty, note, place, styled


@styled
def plot_measured_simulated(
    measured_s: npt.NDArray[np.float64],
    simulated_s: npt.NDArray[np.float64],
    *,
    title: str = "",
    ax: Axes | None = None,
) -> Figure:
    """Latency of each turn in both worlds (s, logarithmic). On the line they are equal; the band is 10 % wide.

    Single turns scatter: a closed loop amplifies small differences. What a simulation must get right is the cloud.
    """
    figure, ax = place(ax, 5.4, 5.0)
    both = np.isfinite(measured_s) & np.isfinite(simulated_s) & (measured_s > 0) & (simulated_s > 0)
    if not both.any():
        empty(ax, "no turn ran in both worlds")
        return figure
    measured_s, simulated_s = measured_s[both], simulated_s[both]
    low = float(min(measured_s.min(), simulated_s.min())) / 1.2
    high = float(max(measured_s.max(), simulated_s.max())) * 1.2
    line = np.array([low, high])
    ax.fill_between(line, line / 1.1, line * 1.1, color="#D9D9D9", linewidth=0)
    ax.plot(line, line, color=MUTED, linewidth=0.8)
    ax.plot(measured_s, simulated_s, ".", color=PALETTE[0], markersize=3, alpha=0.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    ax.set_xlabel("measured turn latency (s)")
    ax.set_ylabel("simulated turn latency (s)")
    ax.set_title(title or "Measured and simulated turns")
    note(ax, f"{len(measured_s):,} turns")
    return figure
