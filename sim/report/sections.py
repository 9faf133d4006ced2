"""What the page says, apart from its figures."""

from collections.abc import Iterator
from typing import Final

from libra.record.frames import step_times
from sim.endings import FINISHED
from sim.report import page
from sim.results import RunResult, SweepResult
from sim.results.labels import HEADLINE, label, number, sentence
from sim.results.text import markup

MAX_SENTENCES: Final = 12
MAX_STEPS: Final = 200


def sweep_sections(sweep: SweepResult) -> Iterator[str]:
    """Verdicts, the comparison, cells and failures."""
    yield page.lead(_compared(sweep))
    rows = sweep.differences()
    # Decided ones first, in the order of the grid.
    told = sorted(rows, key=lambda row: row.verdict in ("undecided", "equal"))
    yield page.items((sentence(row), row.verdict) for row in told[:MAX_SENTENCES])
    if len(told) > MAX_SENTENCES:
        yield page.notes([f"{len(told) - MAX_SENTENCES} more comparisons are in the table."])
    yield page.section("Comparison", _comparison(sweep), page.notes(sweep.footnotes()))
    yield page.section("Failed cells", _failed(sweep))
    yield page.section("Cells", _cells(sweep))


def _compared(sweep: SweepResult) -> str:
    sizes = [f"{axis}: {', '.join(points)}" for axis, points in sweep.file.axes.items()]
    seeds = len(sweep.file.seeds)
    text = "; ".join([*sizes, f"{seeds} seed{'s' if seeds > 1 else ''}"])
    against = ", ".join(f"{axis} {point}" for axis, point in sweep.file.baseline.items())
    metric = label(sweep.file.metric)
    return f"{text}; metric: {metric.text}" + (f"; baseline: {against}" if against else "")


def _comparison(sweep: SweepResult) -> str:
    rows = sweep.rows()
    if not rows:
        return page.notes(["No cell has finished."])
    metrics = {short: label(metric).text for metric, short in HEADLINE.items()}
    head = [metrics.get(name, "seeds" if name == "n" else name) for name in rows[0]]
    column = len(sweep.axes) + 3
    marked = [
        (i, column, row[column]) for i, row in enumerate(rows[1:]) if row[column] in ("better", "worse")
    ]
    return page.scroll(markup(head, rows[1:], left=len(sweep.axes), classes=marked))


def _failed(sweep: SweepResult) -> str:
    if not sweep.failed:
        return ""
    rows = [[sweep.cell_name(cell.key), cell.error] for cell in sweep.failed]
    return page.scroll(markup(["cell", "error"], rows, left=2))


def _cells(sweep: SweepResult) -> str:
    metrics = [name for name in dict.fromkeys([sweep.file.metric, *HEADLINE]) if name in sweep.metrics]
    head = [*sweep.axes, "seed", "status", *(label(name).text for name in metrics)]
    rows: list[list[str]] = []
    marked: list[tuple[int, int, str]] = []
    for number_of_row, cell in enumerate(sweep.frame.to_dict("records")):
        rows.append(
            [
                *(str(cell[name]) for name in (*sweep.axes, "seed", "status")),
                *(number(cell[name] * label(name).scale) for name in metrics),
            ]
        )
        if cell["status"] not in ("finished", "missing"):
            marked.append((number_of_row, len(sweep.axes) + 1, "failed"))
    table = markup(head, rows, left=len(sweep.axes), classes=marked)
    return f"<details><summary>{len(rows)} cells</summary>{page.scroll(table)}</details>"


def run_sections(run: RunResult) -> Iterator[str]:
    """How the run ended, its figures and its train steps."""
    manifest = run.manifest
    yield page.lead(
        f"One run, seed {manifest.get('seed')}: ended after {number(float(manifest.get('horizon_s', 0.0)))} s "
        f"with {manifest.get('exit_reason')}."
    )
    if manifest["exit_reason"] not in FINISHED:
        yield page.notes(
            ["This run was ended before its work was done: its figures are of an unfinished run."]
        )
    rows = [list(row) for row in run.figures().itertuples(index=False)]
    table = markup(
        ["metric", "value", "meaning"], rows, left=1, classes=[(i, 2, "l") for i in range(len(rows))]
    )
    yield page.section("Figures of the run", page.scroll(table))
    if run.is_full and len(run.train_steps):
        yield page.section("Train steps", _steps(run))


def _steps(run: RunResult) -> str:
    steps = step_times(run.record)
    head = ["version"] + [
        label(name).text if name == "tail_share" else name.replace("_s", " [s]").replace("_", " ")
        for name in steps.columns
    ]
    rows = [
        [
            str(version),
            *(number(float(value) * (100.0 if name == "tail_share" else 1.0)) for name, value in row.items()),
        ]
        for version, row in steps.head(MAX_STEPS).iterrows()
    ]
    rest = [f"The first {MAX_STEPS} of {len(steps)} steps."] if len(steps) > MAX_STEPS else []
    return page.scroll(markup(head, rows)) + page.notes(rest)


def provenance(result: RunResult | SweepResult) -> Iterator[str]:
    """Code, configuration and seeds that made the figures, and whether all cells agree on them."""
    runs = [result] if isinstance(result, RunResult) else result.runs({})
    rows: dict[str, list[str] | str] = {}
    if isinstance(result, SweepResult):
        rows["seeds"] = [str(seed) for seed in result.file.seeds]
        rows["experiment hash"] = result.file.experiment_hash
    else:
        rows["seed"] = str(result.manifest.get("seed"))
        rows["configuration SHA-256"] = str(result.manifest.get("config_sha256", ""))
    commits = [
        f"{run.manifest.get('commit')}{' with uncommitted changes' if run.manifest.get('dirty') else ''}"
        for run in runs
        if run.manifest.get("commit")
    ]
    rows["commit"] = list(dict.fromkeys(commits))
    for key, name in (("code_hash", "code hash"), ("calibration_id", "calibration"), ("world", "world")):
        rows[name] = list(dict.fromkeys(str(run.manifest.get(key) or "") for run in runs))
    packages = dict.fromkeys(
        f"{name} {version}" for run in runs for name, version in run.manifest.get("packages", {}).items()
    )
    rows["packages"] = list(packages)
    mixed = len(set(rows["code hash"])) > 1
    warning = ["Cells were made by different versions of the code: compare them with care."] if mixed else []
    configs = [page.folded("Configuration", runs[0].manifest.get("config", {}))] if runs else []
    if runs and isinstance(result, SweepResult):
        first = result.representative() or runs[0]
        configs = [page.folded(f"Configuration of cell {first.cell}", first.manifest.get("config", {}))]
    yield page.section("Configuration and provenance", page.notes(warning), page.facts(rows), *configs)
