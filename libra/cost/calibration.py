"""Calibration files: coefficients of one engine, with a stamp that says what they are good for.

Guarantees that a calibration is used for what it was made for. Its stamp names GPU, model, TP degree, dtype, engine,
the engine's version and settings, the data it was fitted to (by hash) and the date; a reader that wants something
else gets a `UserError` and never a neighbour's figures. Files are YAML:

    schema_version: 1
    stamp: {gpu: H200, model: Qwen3-4B, tp: 1, dtype: bfloat16, engine: vllm, engine_version: 0.26.0, ...}
    settings: {max_num_seqs: 128, max_num_batched_tokens: 2048, ...}
    coefficients: {decode_base_s: 0.00368, ...}
    derived: {prefill_per_attention_s: ..., ...}
    errors: {decode_mean: 0.022, ...}

`coefficients` were fitted to the stamp's data, at most `MAX_COEFFICIENTS` of them; `derived` were not: they are
measured facts of the engine's front end, physics, or another calibration's, and `notes` says which.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml

from libra.cost.rollout import ReplicaCost
from libra.cost.yaml_sections import Sections
from libra.errors import UserError

SCHEMA_VERSION: Final = 1
MAX_COEFFICIENTS: Final = 10
SECTIONS: Final = (
    "schema_version",
    "stamp",
    "settings",
    "coefficients",
    "derived",
    "experts",
    "errors",
    "notes",
)

COEFFICIENTS: Final = (
    "decode_base_s",
    "decode_per_seq_s",
    "decode_per_context_token_s",
    "prefill_base_s",
    "prefill_per_token_s",
    "prefill_per_attention_s",
    "graph_host_s",
    "eager_host_s",
    "host_per_seq_s",
    "admission_s",
    "admission_per_seq_s",
    "dispersed_kv_factor",
    "experts_s",
)
"""Fields of `ReplicaCost` that a calibration gives, fitted or derived."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a calibration is of.

    method: measured, or transferred (from another GPU's by the analytic ratio). data: file name -> SHA-256 of what
    was fitted. development_trace: the one trace among them, empty without. engine_from: calibration whose engine-wide
    coefficients were taken over, empty without.
    """

    gpu: str
    model: str
    tp: int
    dtype: str
    engine: str
    engine_version: str
    method: str
    date: str
    data: Mapping[str, str]
    development_trace: str = ""
    engine_from: str = ""

    @property
    def engine_key(self) -> tuple[str, ...]:
        """What calibrations must share to be used in one simulation."""
        return (self.gpu, self.model, self.dtype, self.engine, self.engine_version, self.method)

    def __str__(self) -> str:
        return (
            f"{self.model} {self.dtype} on {self.gpu} at tp {self.tp}, {self.engine} {self.engine_version} "
            f"({self.method})"
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the engine that the data were measured on, with vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_capacity_tokens: int
    max_model_len: int = 40960
    enable_prefix_caching: bool = True
    capture_tokens: int = 256
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        """Refuse counts that no engine has; 0 only for no captured graphs."""
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "kv_capacity_tokens",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; give 1 or more")
        if self.capture_tokens < 0:
            raise UserError(f"capture_tokens is {self.capture_tokens}; give 0 or more")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A stamped cost. fitted: names of the coefficients that the data fixed. errors: as fractions, by what they
    are of.
    """

    stamp: Stamp
    settings: EngineSettings
    cost: ReplicaCost
    fitted: tuple[str, ...]
    errors: Mapping[str, float]
    notes: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if len(self.fitted) > MAX_COEFFICIENTS:
            raise UserError(
                f"{self.path or 'calibration'}: coefficients: {len(self.fitted)} fitted; {MAX_COEFFICIENTS} at "
                "most, or it over-fits"
            )

    def require(self, **wanted: str | int) -> None:
        """Raise `UserError` unless the stamp has these values."""
        for name, value in wanted.items():
            have = getattr(self.stamp, name)
            if have != value:
                raise UserError(
                    f"{self.path or 'calibration'}: made for {name} {have}, wanted for {value} ({self.stamp}); "
                    "calibrate for it, or give a calibration of it"
                )


def to_yaml(calibration: Calibration) -> str:
    """The text of a calibration file."""
    cost = calibration.cost
    values = {name: float(f"{getattr(cost, name):.5g}") for name in COEFFICIENTS}
    stamp = {key: value for key, value in asdict(calibration.stamp).items() if value not in ("", {})}
    content = {
        "schema_version": SCHEMA_VERSION,
        "stamp": {**stamp, "data": dict(calibration.stamp.data)},
        "settings": asdict(calibration.settings),
        "coefficients": {name: values[name] for name in COEFFICIENTS if name in calibration.fitted},
        "derived": {
            name: values[name]
            for name in COEFFICIENTS
            if name not in calibration.fitted and (values[name] or name != "experts_s")
        },
        **_experts(cost),
        "errors": {name: round(value, 4) for name, value in calibration.errors.items()},
        "notes": list(calibration.notes),
    }
    return yaml.safe_dump(content, sort_keys=False, width=118, allow_unicode=True)


def _experts(cost: ReplicaCost) -> dict[str, Any]:
    if not cost.num_experts:
        return {}
    return {"experts": {"num_experts": cost.num_experts, "experts_per_token": cost.experts_per_token}}


@dataclass(frozen=True, slots=True)
class _Experts:
    num_experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.experts_per_token <= self.num_experts or (
            self.num_experts and not self.experts_per_token
        ):
            raise UserError(
                f"experts_per_token is {self.experts_per_token} of {self.num_experts}; give 1 to num_experts"
            )


def load_calibration(path: Path) -> Calibration:
    """Read and check a calibration file. Raises UserError that names file and key."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a calibration file") from None
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place is not None else ""
        raise UserError(f"{path}{line}: not YAML; `python -m sim calibrate` writes such files") from None
    return parse_calibration(content, str(path))


def parse_calibration(content: Any, origin: str) -> Calibration:
    """From the parsed YAML; `origin` is named in errors."""
    if (
        not isinstance(content, dict)
        or cast("dict[str, Any]", content).get("schema_version") != SCHEMA_VERSION
    ):
        raise UserError(
            f"{origin}: no calibration (schema_version {SCHEMA_VERSION}); `python -m sim calibrate` writes one"
        )
    content = cast("dict[str, Any]", content)
    for key in content:
        if key not in SECTIONS:
            raise UserError(f"{origin}: unknown section {key!r}; known: {', '.join(SECTIONS)}")
    reader = Sections(content, origin)
    stamp = reader.section("stamp", Stamp)
    settings = reader.section("settings", EngineSettings)
    fitted = reader.numbers("coefficients", COEFFICIENTS)
    derived = reader.numbers("derived", COEFFICIENTS)
    both = sorted(set(fitted) & set(derived))
    if both:
        raise UserError(f"{origin}: {both[0]} is both fitted and derived; remove one")
    values = {"experts_s": 0.0} | derived | fitted
    for name in ("decode_base_s", "decode_per_context_token_s", "prefill_per_token_s"):
        if not values.get(name, 0.0) > 0.0:
            raise UserError(f"{origin}: coefficients: {name} is missing or 0; calibrate again")
    missing = [name for name in COEFFICIENTS if name not in values]
    if missing:
        raise UserError(f"{origin}: {missing[0]} is in neither coefficients nor derived; calibrate again")
    experts = reader.section("experts", _Experts)
    cost = ReplicaCost(
        gpu=stamp.gpu,
        model=stamp.model,
        tp=stamp.tp,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        capture_tokens=settings.capture_tokens,
        async_scheduling=settings.async_scheduling,
        source=f"{origin}: {stamp}",
        **values,  # type: ignore[arg-type]
        num_experts=experts.num_experts,
        experts_per_token=experts.experts_per_token,
    )
    return Calibration(
        stamp=stamp,
        settings=settings,
        cost=cost,
        fitted=tuple(fitted),
        errors=reader.errors(),
        notes=reader.notes(),
        path=Path(origin),
    )
