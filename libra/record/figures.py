"""The figures of a run's summary: what each counts, in which unit, and which direction is better.

Guarantees one definition for tables, reports and `python -m sim list metrics`; `libra.record.metrics` computes
them. What is said of training (trained, wasted, left over) is nan for a run without a train step.
"""

from typing import Final, Literal, NamedTuple

TP_DEGREES: Final = (1, 2, 4, 8)


class Metric(NamedTuple):
    """Unit, which direction is better, and what exactly is counted."""

    unit: str
    better: Literal["higher", "lower", "neutral"]
    doc: str


METRICS: Final[dict[str, Metric]] = {
    "makespan_s": Metric("s", "lower", "Start of the run to its end, whatever ended it."),
    "trained_tokens_per_s": Metric(
        "tokens/s",
        "higher",
        "Output tokens of the trajectories that train steps consumed, over the makespan.",
    ),
    "output_tokens_per_s": Metric(
        "tokens/s",
        "higher",
        "Generated tokens of all ended turns over the makespan, whether trained on or not.",
    ),
    "trajectories_per_h": Metric(
        "1/h", "higher", "Trajectories whose episode finished, per hour of makespan."
    ),
    "train_tokens_per_s": Metric(
        "tokens/s",
        "higher",
        "Context tokens (prompts, tool answers and outputs) consumed by train steps, over the makespan.",
    ),
    "num_train_steps": Metric("1", "neutral", "Optimizer steps made."),
    "step_s": Metric("s", "lower", "Mean time from the end of a train step to the end of the next."),
    "step_rollout_wait_s": Metric(
        "s",
        "lower",
        "Mean part of it in which the trainer waited for trajectories; publication is not in it.",
    ),
    "step_publish_s": Metric(
        "s", "lower", "Mean part of it in which the weights of the step before were being published."
    ),
    "step_train_s": Metric("s", "lower", "Mean part of it in which the trainer computed."),
    "sync_s": Metric("s", "lower", "Mean time from publication's start to the last load of that version."),
    "tail_share": Metric("1", "lower", "Share of the rollout spent after 90 % of its trajectories finished."),
    "step_tail_share": Metric(
        "1", "lower", "The same within the trajectories of each step, mean over steps."
    ),
    "train_busy_share": Metric("1", "higher", "Share of the makespan in which the trainer computed."),
    "train_idle_share": Metric("1", "lower", "1 - train_busy_share."),
    "rollout_busy_share": Metric(
        "1", "higher", "Share of the GPU time of replicas that were up with a turn on the replica."
    ),
    "rollout_paused_share": Metric("1", "lower", "Share of the same time in weight loads."),
    "rollout_idle_share": Metric("1", "lower", "Share of the same time without any turn."),
    "rollout_down_share": Metric(
        "1",
        "lower",
        "Share of rollout GPU time in which a replica was down after a loss or stop; neither busy nor idle.",
    ),
    **{
        f"rollout_busy_share_tp{tp}": Metric("1", "higher", f"rollout_busy_share of replicas of TP {tp}.")
        for tp in TP_DEGREES
    },
    "queue_mean_s": Metric(
        "s",
        "lower",
        "Mean time from ready to the first step of a finished turn. Ready: its tool has returned; a first turn is "
        "ready at its trajectory's start, or at its arrival where requests push themselves.",
    ),
    "queue_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "turn_latency_p50_s": Metric(
        "s", "lower", "Median time from ready to the last token of a turn, failed attempts included."
    ),
    "turn_latency_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "turn_latency_p99_s": Metric("s", "lower", "99th percentile of the same."),
    "ttft_mean_s": Metric("s", "lower", "Mean time from ready to the first token of a turn."),
    "ttft_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "engine_queue_mean_s": Metric(
        "s",
        "lower",
        "Mean time from submission to the first step: the engine's part alone. A policy that holds turns back "
        "lowers it.",
    ),
    "engine_queue_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "engine_latency_p50_s": Metric("s", "lower", "Median time from submission to the last token of a turn."),
    "engine_latency_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "engine_latency_p99_s": Metric("s", "lower", "99th percentile of the same."),
    "engine_ttft_mean_s": Metric("s", "lower", "Mean time from submission to the first token of a turn."),
    "engine_ttft_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "trajectory_latency_p50_s": Metric(
        "s",
        "lower",
        "Median time from a trajectory's arrival to its end, tools included. Where prompts are pulled it arrives "
        "when the policy fetches it, so only pushed requests compare by it.",
    ),
    "trajectory_latency_p95_s": Metric("s", "lower", "95th percentile of the same."),
    "num_turns": Metric("1", "neutral", "Turns that finished."),
    "output_tokens": Metric("tokens", "neutral", "Tokens generated by all attempts that ended."),
    "trained_output_tokens": Metric("tokens", "higher", "Those of trajectories that train steps consumed."),
    "wasted_output_tokens": Metric(
        "tokens", "lower", "Those never trained on: of dropped trajectories and of those left at the end."
    ),
    "wasted_share": Metric("1", "lower", "wasted_output_tokens over output_tokens."),
    "dropped_output_tokens": Metric(
        "tokens", "lower", "Those of trajectories given up (stale, short group, failed, ...)."
    ),
    "leftover_output_tokens": Metric(
        "tokens", "lower", "Those of trajectories not yet trained on, finished or not, when the run ended."
    ),
    "num_preemptions": Metric("1", "lower", "Times that a running turn lost its KV cache."),
    "recomputed_tokens": Metric("tokens", "lower", "Tokens prefilled again because of preemption."),
    "prefix_hit_rate": Metric(
        "1", "higher", "Prompt tokens found in the prefix cache over all prompt tokens."
    ),
    "staleness_min": Metric("versions", "lower", "Least staleness of any trained token."),
    "staleness_mean": Metric("versions", "lower", "Token-weighted mean staleness of trained trajectories."),
    "staleness_max": Metric("versions", "lower", "Largest staleness of any trained token."),
    "num_trajectories": Metric("1", "neutral", "Trajectories that arrived."),
    "num_finished": Metric("1", "higher", "Trajectories whose episode finished and that were not dropped."),
    "num_dropped": Metric("1", "lower", "Trajectories given up."),
    "num_failed_turns": Metric("1", "lower", "Attempts of turns that failed, refused ones included."),
    "num_refused_prompts": Metric("1", "lower", "Turns refused because the prompt was too long."),
}
"""Every figure of a summary, in the order in which reports show them."""

HEADLINE_TRAINING: Final = "trained_tokens_per_s"
HEADLINE_ROLLOUT: Final = "output_tokens_per_s"


def headline(training: bool) -> str:
    """The metric that a comparison is about unless it names one.

    Where a trainer consumes trajectories only what it consumed counts: a policy that generates and throws away is
    no better for it. Where nothing is trained, all that was generated counts.
    """
    return HEADLINE_TRAINING if training else HEADLINE_ROLLOUT
