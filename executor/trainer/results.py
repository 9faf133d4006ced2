"""What a train step tells, on both sides of the wire."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepResult:
    """Figures of one train step; means over generated tokens unless said otherwise.

    version: of the weights that it made. loss: as minimised. grad_norm: before clipping. kl: of policy and reference,
    0 without one. mean_reward: of all trajectories handed in. num_trajectories, num_tokens: trained on, without
    those of groups whose rewards are all equal; tokens are generated ones. clip_fraction: tokens whose ratio was
    clipped. logprob_diff_*: |trainer - engine| of the sampled tokens' log-probs. entropy: nats. train_s: seconds.
    """

    version: int
    loss: float
    grad_norm: float
    kl: float
    mean_reward: float
    num_trajectories: int
    num_tokens: int
    num_zero_variance_groups: int
    train_s: float
    clip_fraction: float
    logprob_diff_mean: float
    logprob_diff_max: float
    entropy: float
