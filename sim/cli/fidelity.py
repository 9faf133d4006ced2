"""The verbs that compare with reality: `calibrate` and `validate`."""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import date
from pathlib import Path
from typing import Any

from libra.cost.calibration import COEFFICIENTS, Calibration, load_calibration, to_yaml
from libra.errors import UserError
from libra.record.manifest import file_sha256
from sim.calibrate import Target, calibrate, transfer
from sim.provenance import provenance
from sim.results.text import columns_of_text
from sim.traces.fitting import replay
from sim.traces.records import Trace, read_request_log, read_turn_trace
from sim.traces.scores import ERROR_KEYS, UNITS, Score, score


def calibrate_verb(args: argparse.Namespace) -> int:
    """Fit, print what was found and how far off it is, and write the file."""
    if args.transfer_from is not None:
        if args.files:
            raise UserError(
                "--transfer-from takes no measurements; leave the files out, or calibrate with them"
            )
        _refuse_unused(args)
        made = transfer(load_calibration(args.transfer_from), _needed(args, "gpu"), _today(args))
    else:
        if not args.files:
            raise UserError("no measurements; give grids, a mixed table, a trace or a log of requests (CSV)")
        engine_from = load_calibration(args.engine_from) if args.engine_from else None
        made = calibrate(
            args.files,
            _target(args),
            concurrency=args.concurrency,
            engine_from=engine_from,
            use=lambda index: not (args.hold_out_half and index % 2),
        )
    _print_calibration(made)
    _write(args.out, to_yaml(made))
    print(f"calibration: {args.out}", file=sys.stderr)
    return 0


def _refuse_unused(args: argparse.Namespace) -> None:
    """A transfer keeps the engine and its settings: a flag about them would be silently ignored."""
    settings = {each.name: each.default for each in fields(Target) if each.default is not MISSING}
    defaults: dict[str, Any] = {**settings, "tp": 1, "engine": "vllm", "model": None, "engine_version": None}
    defaults |= {"concurrency": 0, "hold_out_half": False, "engine_from": None}
    for name, default in defaults.items():
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')} has no effect with --transfer-from; leave it out")


def _target(args: argparse.Namespace) -> Target:
    for name in ("gpu", "model", "engine_version"):
        _needed(args, name)
    known = {each.name for each in fields(Target)} - {"date"}
    return Target(date=_today(args), **{name: getattr(args, name) for name in known})


def _needed(args: argparse.Namespace, name: str) -> str:
    value: str | None = getattr(args, name)
    if not value:
        raise UserError(f"--{name.replace('_', '-')} is missing; a calibration says what it is of")
    return value


def _today(args: argparse.Namespace) -> str:
    return args.date or date.today().isoformat()


def _print_calibration(made: Calibration) -> None:
    rows = [["coefficient", "value", "from"]]
    for name in COEFFICIENTS:
        value = getattr(made.cost, name)
        if value:
            rows.append([name, f"{value:.5g}", "fitted" if name in made.fitted else "derived"])
    print(f"{made.stamp}")
    print(*columns_of_text(rows, left=1), sep="\n")
    if made.errors:
        print(
            *columns_of_text(
                [["error", ""], *([k, f"{v:+.2%}"] for k, v in made.errors.items())], 1, max_cell=60
            ),
            sep="\n",
        )
    for note in made.notes:
        print(f"note: {note}")


def validate_verb(args: argparse.Namespace) -> int:
    """A run, a trace or a log of requests, simulated; 1 if the makespan is further off than `--max-error`."""
    given = [name for name in ("run", "trace", "requests") if getattr(args, name) is not None]
    if len(given) != 1:
        what = " and ".join(given) if given else "nothing"
        raise UserError(f"{what} to validate on; give one of RUN, --trace CSV, --requests CSV")
    if args.max_error is not None and not args.max_error >= 0:
        raise UserError(f"--max-error {args.max_error:g}: give a percentage of 0 or more")
    if args.run is not None:
        return _validate_run(args)
    return _validate_trace(args)


def _validate_run(args: argparse.Namespace) -> int:
    from sim.validate import validate as validate_run

    if args.plot is not None:
        raise UserError("--plot belongs to a trace; a RUN takes --json and --out")
    found = validate_run(args.run, args.fit, args.out, provenance(), args.calibration or ())
    rows = [["figure", "unit", "real", "simulated", "error %"]]
    for figure in found.figures:
        error = f"{figure.error_percent:+.1f}" if math.isfinite(figure.error_percent) else "-"
        rows.append([figure.name, figure.unit, f"{figure.real:,.4g}", f"{figure.simulated:,.4g}", error])
    print(*columns_of_text(rows, left=2), sep="\n")
    for tp, step in found.costs.steps.items():
        print(
            f"costs at tp {tp}: step {step.decode_base_s:.3g} s + {step.decode_per_seq_s:.3g} s x decoding turns + "
            f"{step.prefill_per_token_s:.3g} s x prefilled tokens, off by {step.mean_error:.1%} of a turn's time"
        )
    for note in found.notes:
        print(f"note: {note}")
    if args.json is not None:
        names = {"turn_latency_mean_s": "mean_latency_s", "ttft_mean_s": "mean_ttft_s"}
        real = {names.get(figure.name, figure.name): figure.real for figure in found.figures}
        other = {names.get(figure.name, figure.name): figure.simulated for figure in found.figures}
        _write_json(args.json, Score(real, other), {"run": str(args.run), "notes": found.notes})
    if args.out is not None:
        print(f"validation: {args.out / 'validation.json'}", file=sys.stderr)
    return 0 if args.max_error is None or abs(found.makespan_error_percent) <= args.max_error else 1


def _validate_trace(args: argparse.Namespace) -> int:
    calibration = _one_calibration(args)
    trace = _read(args, calibration)
    played = replay(trace, calibration.cost, calibration.settings, args.concurrency)
    scored = score(trace, played, args.deadline)
    rows = [["figure", "unit", "measured", "simulated", "error %"]]
    for name, measured in scored.measured.items():
        error = 100.0 * scored.error(name)
        text = f"{error:+.1f}" if math.isfinite(error) else "-"
        rows.append([name, UNITS[name], f"{measured:,.4g}", f"{scored.simulated[name]:,.4g}", text])
    print(f"{trace.path.name}: {len(trace.submit_s):,} turns of {trace.num_trajectories:,} trajectories")
    print(f"calibration: {calibration.stamp}")
    print(*columns_of_text(rows, left=2), sep="\n")
    counters = played.counters
    print(
        f"simulated: {counters.num_steps:,} steps, {counters.num_preemptions:,} preemptions, "
        f"{counters.recomputed_tokens:,} tokens recomputed, {counters.num_refused:,} turns refused"
    )
    if file_sha256(trace.path) in calibration.stamp.data.values():
        print("note: the calibration was fitted to this very file; its errors here predict nothing")
    if args.json is not None:
        about: dict[str, Any] = {
            "calibration": str(args.calibration[0]),
            "stamp": str(calibration.stamp),
            "trace": str(trace.path),
            "concurrency": None if trace.open_loop else args.concurrency,
            "deadline_s": args.deadline,
            "num_preemptions": counters.num_preemptions,
            "num_refused": counters.num_refused,
        }
        _write_json(args.json, scored, about)
    if args.plot is not None:
        from sim.plots.fidelity import plot_measured_simulated
        from sim.plots.style import png_bytes

        title = f"{trace.path.stem} on {calibration.stamp.model} tp {calibration.stamp.tp}"
        figure = plot_measured_simulated(trace.latency_s, played.latency_s, title=title)
        _write(args.plot, png_bytes(figure))
        print(f"plot: {args.plot}", file=sys.stderr)
    makespan = 100.0 * abs(scored.error("makespan_s"))
    return 0 if args.max_error is None or makespan <= args.max_error else 1


def _one_calibration(args: argparse.Namespace) -> Calibration:
    if args.fit is not None or args.out is not None:
        raise UserError("--fit and --out belong to a RUN; a trace takes --calibration, --json and --plot")
    if args.calibration is None or len(args.calibration) != 1:
        raise UserError("one --calibration CAL.yaml is needed (a trace is of one engine)")
    calibration = load_calibration(args.calibration[0])
    wanted = {name: getattr(args, name) for name in ("gpu", "model", "tp", "engine", "engine_version")}
    calibration.require(**{name: value for name, value in wanted.items() if value is not None})
    return calibration


def _read(args: argparse.Namespace, calibration: Calibration) -> Trace:
    if args.deadline is not None and not 0 < args.deadline < math.inf:
        raise UserError(f"--deadline {args.deadline:g}: give seconds above 0")
    if args.requests is not None:
        stamp = calibration.stamp
        return read_request_log(args.requests, stamp.gpu, stamp.model, stamp.tp)
    if args.concurrency < 1:
        raise UserError("--concurrency: how many trajectories ran at once? give 1 or more")
    return read_turn_trace(args.trace)


def _write_json(path: Path, scored: Score, about: Mapping[str, Any]) -> None:
    content = {
        "schema_version": 1,
        **about,
        "measured": {name: _known(value) for name, value in scored.measured.items()},
        "simulated": {name: _known(value) for name, value in scored.simulated.items()},
        "signed_error": {name: _known(scored.error(name)) for name in ERROR_KEYS},
    }
    _write(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
    print(f"json: {path}", file=sys.stderr)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write(path: Path, content: str | bytes) -> None:
    """Whole or not at all."""
    if not path.name:
        raise UserError("an empty file name; name the file to write")
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise UserError(f"{path}: cannot be written ({error.strerror}); check the folder") from None
