"""An engine's own counters, out of the text that `/metrics` serves (Prometheus exposition format)."""

import re
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Gauges now, and totals since the engine started. Gauges keep their last value while it is paused.

    kv_used_fraction lies in 0..1; prefix_queries and prefix_hits count tokens.
    """

    num_running: int
    num_waiting: int
    kv_used_fraction: float
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int


def read_metrics(text: str) -> EngineMetrics:
    """Sums over the engines behind one address; 0 for what is not there."""
    totals = {name: 0.0 for name in _FIELDS.values()}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            match = _LINE.match(line)
            if match is not None and match["name"] in totals:
                totals[match["name"]] += float(match["value"])
    values = {field: totals[name] for field, name in _FIELDS.items()}
    fraction = values.pop("kv_used_fraction")
    return EngineMetrics(kv_used_fraction=fraction, **{field: int(value) for field, value in values.items()})


def kv_capacity_tokens(text: str) -> int:
    """Tokens of KV cache that the engine has; -1 where it does not tell."""
    for line in text.splitlines():
        if line.startswith("vllm:cache_config_info"):
            labels = dict(_LABEL.findall(line))
            try:
                return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
            except (KeyError, ValueError):
                return -1
    return -1


_FIELDS = {
    "num_running": "vllm:num_requests_running",
    "num_waiting": "vllm:num_requests_waiting",
    "kv_used_fraction": "vllm:kv_cache_usage_perc",
    "num_preemptions": "vllm:num_preemptions_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
