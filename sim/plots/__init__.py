"""Figures from the record's tables; see the modules. They return matplotlib figures and touch no global state."""

from sim.plots.gantt import plot_gantt
from sim.plots.latency import plot_latency_cdf, turn_latencies
from sim.plots.style import png_bytes
from sim.plots.throughput import plot_bars
from sim.plots.utilisation import NO_LOADS, outages, plot_utilisation, utilisation, weight_loads

__all__ = [
    "NO_LOADS",
    "outages",
    "plot_bars",
    "plot_gantt",
    "plot_latency_cdf",
    "plot_utilisation",
    "png_bytes",
    "turn_latencies",
    "utilisation",
    "weight_loads",
]
