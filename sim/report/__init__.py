"""The report of a run or a sweep: `report.html`, `figures/*.png`, `timeline.json`."""

from sim.report.build import write_report

__all__ = ["write_report"]
