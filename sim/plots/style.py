"""How every figure looks, and figures that show themselves in a notebook without pyplot.

Guarantees that drawing leaves matplotlib's global state as it was (no pyplot; settings hold for the drawing
alone), so a figure looks the same whatever the reader's own settings, and that equal figures give equal PNG
bytes on one machine (no date, no version in the file).
"""

from collections.abc import Callable, Iterator
from functools import wraps
from io import BytesIO
from math import ceil
from typing import Any, Final, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

PALETTE: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#8C6D1F")
"""M. Okabe and K. Ito, "Color Universal Design" (2008), told apart with any colour vision; yellow, too pale on
white, is an ochre here."""
LINES: Final = ("-", "--", "-.", ":")
RUNNING, WAITING, PAUSED, IDLE = "#0072B2", "#E69F00", "#CC79A7", "#D9D9D9"
MUTED: Final = "#555555"
DPI: Final = 130

_SETTINGS: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine has it
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "white",
    "axes.edgecolor": "#444444",
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "savefig.facecolor": "white",
    "text.usetex": False,
    "svg.hashsalt": "libra",
}


class Chart(Figure):
    """A figure that a notebook shows as its last value."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Hold the house settings while `draw` runs."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return drawn


def new_chart(width_in: float, height_in: float) -> Chart:
    """An empty figure of that size in inches, laid out so that nothing is cut off."""
    figure = Chart(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def place(ax: Axes | None, width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """The caller's axes and their figure, or those of a new figure."""
    if ax is None:
        figure = new_chart(width_in, height_in)
        return figure, figure.add_subplot()
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure), "the axes belong to no figure"
    return figure, ax


@styled
def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG."""
    out = BytesIO()
    figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def line_styles() -> Iterator[tuple[str, str]]:
    """(colour, dash) pairs; the dash changes when the colours have all been used."""
    number = 0
    while True:
        yield PALETTE[number % len(PALETTE)], LINES[number // len(PALETTE) % len(LINES)]
        number += 1


def legend_below(figure: Figure, handles: list[Any], labels: list[str], width_in: float) -> None:
    """A legend under the axes, where it covers nothing; as many columns as the longest label leaves room for."""
    longest = max((len(label) for label in labels), default=1)
    fitting = max(1, int(width_in * 15 / (longest + 9)))  # 15 characters an inch, 9 for the handle
    rows = ceil(len(labels) / fitting) or 1
    figure.legend(handles, labels, loc="outside lower center", ncols=ceil(len(labels) / rows) or 1)


def note(ax: Axes, text: str) -> None:
    """A muted remark over the axes, right of the title."""
    ax.set_title(text, loc="right", fontsize=8, fontweight="normal", color=MUTED)


def empty(ax: Axes, text: str) -> None:
    """Say in the axes why there is nothing to see."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    ax.set_xticks([])
    ax.set_yticks([])
