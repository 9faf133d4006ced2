"""Writes the report of a run or sweep.

Guarantees that the page stands alone (no file beside it is needed, nothing is fetched), that equal inputs give
equal bytes on one machine, and that what a summary-only recording cannot show is named and not left blank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from libra.errors import UserError
from libra.record.timeline import write_trace
from sim.plots.style import DPI, png_bytes
from sim.report import page
from sim.report.sections import provenance, run_sections, sweep_sections
from sim.results import RunResult, SweepResult, open_result

MAX_TIMELINE_TURNS: Final = 100_000
"""More make a file that trace viewers do not open (about 600 bytes a turn)."""
MAX_CDF_FIGURES: Final = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure under its file name (without ending)."""

    name: str
    caption: str
    figure: Figure


def write_report(directory: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of the run or sweep in `directory` into `out` (by default beside the data).

    Returns the path of `report.html`. UserError for a directory that holds neither, for damaged files, and for
    a place that cannot be written.
    """
    result = open_result(directory)
    target = Path(directory if out is None else out)
    shown = result if isinstance(result, RunResult) else result.representative()
    pictures = list(
        _run_pictures(result) if isinstance(result, RunResult) else _sweep_pictures(result, shown)
    )
    images = {picture.name: png_bytes(picture.figure) for picture in pictures}
    remarks = _remarks(result, shown)
    html = page.page(
        result.name,
        [
            *(run_sections(result) if isinstance(result, RunResult) else sweep_sections(result)),
            page.section("Figures", page.notes(remarks), *_figures(pictures, images)),
            *provenance(result),
        ],
    )
    try:
        _write(target, html, images)
        _write_timeline(target / "timeline.json", shown)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}); give another --out") from error
    return target / "report.html"


def _run_pictures(run: RunResult, which: str = "") -> Iterator[Picture]:
    if not run.is_full or not len(run.turns):
        return
    yield Picture(
        "gantt",
        "Turns by replica; a gap in a lane is a tool call, a bar's colour the trajectory's age." + which,
        run.plot_gantt(),
    )
    yield Picture(
        "utilisation",
        "Use of the GPUs of each TP degree over time, and turns running and waiting there." + which,
        run.plot_utilisation(),
    )
    if not which:
        yield Picture("latency_cdf", "Turn latency by TP degree, and its tail.", run.plot_latency_cdf())


def _sweep_pictures(sweep: SweepResult, shown: RunResult | None) -> Iterator[Picture]:
    finished = sweep.frame["status"].eq("finished")
    if finished.any():
        yield Picture(
            "throughput",
            "The sweep's metric by arm. Intervals are over seeds, which arms share: two that overlap can still "
            "differ in every pair, see the table.",
            sweep.plot_throughput(),
        )
    if shown is None:
        return
    for number, others in enumerate(sweep.places()[:MAX_CDF_FIGURES]):
        place = ", ".join(f"{axis}: {name}" for axis, name in others.items())
        yield Picture(
            f"latency_cdf_{number}" if number else "latency_cdf",
            f"Turn latency by {sweep.axis or 'sweep'}, all seeds together{f', {place}' if place else ''}.",
            sweep.plot_latency_cdf(**others),
        )
    yield from _run_pictures(shown, f" Cell {shown.cell}.")


def _remarks(result: RunResult | SweepResult, shown: RunResult | None) -> list[str]:
    if shown is None or not shown.is_full:
        return [
            "Recorded as summaries only: no Gantt chart, no utilisation, no latency distribution and no "
            "timeline.json. Record with level full to have them."
        ]
    lines: list[str] = []
    if isinstance(result, SweepResult):
        if len(result.places()) > MAX_CDF_FIGURES:
            lines.append(
                f"Latency is shown for {MAX_CDF_FIGURES} of the {len(result.places())} combinations of "
                f"{', '.join(result.other_axes)}."
            )
        lines.append(
            f"timeline.json is of cell {shown.cell}; open it in ui.perfetto.dev or chrome://tracing."
        )
    else:
        lines.append("timeline.json opens in ui.perfetto.dev or chrome://tracing.")
    if len(shown.turns) > MAX_TIMELINE_TURNS:
        lines[-1] = (
            f"No timeline.json: the run has {len(shown.turns):,} turns, and trace viewers open about "
            f"{MAX_TIMELINE_TURNS:,}."
        )
    return lines


def _figures(pictures: list[Picture], images: Mapping[str, bytes]) -> Iterator[str]:
    for picture in pictures:
        # Shown at 100 dots an inch; the file has more for sharp screens.
        width = int(picture.figure.get_size_inches()[0] * DPI * 100 / DPI)
        yield page.figure(images[picture.name], picture.caption, width)


def _write(target: Path, html: str, images: Mapping[str, bytes]) -> None:
    folder = target / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):  # of an earlier report; the folder is the report's own
        if old.stem not in images:
            old.unlink()
    for name, data in images.items():
        (folder / f"{name}.png").write_bytes(data)
    (target / "report.html").write_text(html, encoding="utf-8")


def _write_timeline(path: Path, shown: RunResult | None) -> None:
    if shown is None or not shown.is_full or len(shown.turns) > MAX_TIMELINE_TURNS:
        path.unlink(missing_ok=True)
        return
    write_trace(shown.record, shown.record.events, path)
