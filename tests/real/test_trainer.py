"""The trainer in processes of its own against a plain PyTorch GRPO on transformers' model: the same losses,
gradients, log-probs and weights under every layout; checkpoints that change it; weights sent; clean ends.
"""

import asyncio
import dataclasses
import math
import socket
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from executor.tiny_model import make_tiny_model
from executor.trainer.batch import Sample, TrainBatch, plan_step
from executor.trainer.client import TrainerClient, weights_folder
from executor.trainer.processes import TrainerProcesses
from executor.trainer.spec import GrpoConfig, OptimizerConfig, TrainerConfig
from libra.errors import UserError

pytestmark = [pytest.mark.real, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

OPTIMIZER = OptimizerConfig(lr=1e-3, beta2=0.95, weight_decay=0.1, clip_grad=1.0)
NUM_STEPS = 3


def config_of(tp=1, dp=1, pp=1, **grpo):
    return TrainerConfig(
        train_tp_size=tp,
        train_pp_size=pp,
        train_dp_size=dp,
        micro_batch_size=2,
        dtype="float32",
        max_seq_length_tokens=64,
        optimizer=OPTIMIZER,
        grpo=GrpoConfig(kl_coef=0.05, **grpo),
    )


def batch_of(seed):
    """Three groups of four trajectories of several lengths and turns; the second has equal rewards."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(12):
        length = int(rng.integers(9, 40))
        mask = np.zeros(length, bool)
        mask[5:] = rng.random(length - 5) < 0.8
        mask[5] = True
        # Letters only: transformers keeps the padding token's embedding from learning, Megatron does not.
        tokens = rng.integers(0, 256, length).astype(np.int32)
        logprobs = np.where(mask, rng.normal(-5.5, 0.7, length), 0.0).astype(np.float32)
        reward = 0.5 if i // 4 == 1 else float(rng.random())
        samples.append(Sample(100 + i, i // 4, tokens, mask, logprobs, reward))
    return TrainBatch(tuple(samples))


@dataclass
class Plain:
    """GRPO in plain PyTorch on transformers' model: one trajectory at a time, nothing padded, nothing split."""

    folder: Path
    grpo: GrpoConfig
    figures: list = field(default_factory=list)

    def __post_init__(self):
        import torch
        from transformers import AutoModelForCausalLM

        load = AutoModelForCausalLM.from_pretrained
        self.torch = torch
        self.model = load(self.folder, attn_implementation="eager")
        self.reference = load(self.folder, attn_implementation="eager").requires_grad_(False)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        o = OPTIMIZER
        groups = [
            {"params": matrices, "weight_decay": o.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)

    def all_logprobs(self, model, sample):
        tokens = self.torch.from_numpy(sample.tokens.astype(np.int64))
        logits = model(tokens[None]).logits[0, :-1]
        return self.torch.log_softmax(logits, -1), tokens[1:]

    def logprobs(self, sample):
        with self.torch.no_grad():
            table, targets = self.all_logprobs(self.model, sample)
            return table.gather(1, targets[:, None])[:, 0].numpy()

    def step(self, batch):
        torch, grpo = self.torch, self.grpo
        plan = plan_step(batch, normalize_std=True, aggregation=grpo.loss_aggregation, max_length_tokens=64)
        total = kls = entropy = clipped = 0.0
        gaps = []
        self.adam.zero_grad()
        for sample, advantage, weight in zip(plan.samples, plan.advantages, plan.weights, strict=True):
            table, targets = self.all_logprobs(self.model, sample)
            chosen = torch.from_numpy(sample.loss_mask[1:])
            now = table.gather(1, targets[:, None])[chosen, 0]
            rollout = torch.from_numpy(sample.rollout_logprobs[1:])[chosen]
            base, _ = self.all_logprobs(self.reference, sample)
            gap = base.gather(1, targets[:, None])[chosen, 0] - now
            ratio = (now - (now.detach() if grpo.recompute_logprobs else rollout)).exp()
            high = grpo.clip if grpo.clip_high is None else grpo.clip_high
            plain, cut = ratio * advantage, ratio.clamp(1 - grpo.clip, 1 + high) * advantage
            objective = torch.minimum(plain, cut)
            if grpo.recompute_logprobs and grpo.importance_cap:
                objective = objective * (now.detach() - rollout).exp().clamp(max=grpo.importance_cap)
            kl = gap.exp() - gap - 1
            loss = (weight * (-objective + grpo.kl_coef * kl)).sum()
            loss.backward()
            total += loss.item()
            kls += (weight * kl.detach()).sum().item()
            entropy += -(table.exp() * table).sum(-1)[chosen].sum().item()
            clipped += (cut < plain).sum().item()
            gaps += (now.detach() - rollout).abs().tolist()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMIZER.clip_grad).item()
        self.adam.step()
        n = len(gaps)
        return {
            "loss": total,
            "grad_norm": norm,
            "kl": kls,
            "entropy": entropy / n,
            "clip_fraction": clipped / n,
            "logprob_diff_mean": sum(gaps) / n,
            "logprob_diff_max": max(gaps),
            "num_tokens": n,
        }

    def weights(self):
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}


def assert_same_figures(result, wanted):
    got = dataclasses.asdict(result)
    for name, value in wanted.items():
        assert math.isclose(got[name], value, rel_tol=5e-5, abs_tol=2e-6), (name, got[name], value)


def assert_close_weights(found, wanted, *, tied=False):
    names = set(wanted) - ({"lm_head.weight"} if tied else set())
    assert set(found) == names
    gaps = {name: (found[name] - wanted[name]).abs() for name in names}
    mean = sum(gap.sum().item() for gap in gaps.values()) / sum(gap.numel() for gap in gaps.values())
    assert mean < 1e-7
    assert max(gap.max().item() for gap in gaps.values()) < 5e-5  # Adam magnifies gradients near zero


def assert_same_logprobs(found, batch, plain):
    gaps = np.concatenate(
        [np.abs(f[1:] - plain.logprobs(s)) for f, s in zip(found, batch.samples, strict=True)]
    )
    assert all(f[0] == 0.0 for f in found)
    assert gaps.mean() <= 1e-5
    assert gaps.max() <= 1e-3


def assert_equal_bits(folder, model):
    from safetensors.numpy import load_file

    found, wanted = load_file(folder / "model.safetensors"), load_file(model / "model.safetensors")
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert array.dtype == found[name].dtype
        assert np.array_equal(array.view(np.uint32), found[name].view(np.uint32)), name


def read(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def alive(process):
    """Whether it runs; one that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def running(config, model, folder, use, **more):
    """Start a trainer, hand its client and processes to `use`, and end it."""
    processes = await TrainerProcesses.start(config, model, folder, timeout_s=300.0, **more)
    try:
        async with TrainerClient(processes.base_url, processes.died) as client:
            assert await client.wait_ready(300.0) == more.get("start_version", 0)
            return await use(client, processes)
    finally:
        members = [pid for rank in processes.ranks for pid in (rank.pid, *rank.descendants())]
        await processes.stop()
        assert not any(map(alive, members))


def receive(port, info, out):
    """What an engine's worker does: join the trainer's group as rank 1 and take the broadcasts."""
    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, wait_for_workers=False)
    prefix = dist.PrefixStore(f"tcp://127.0.0.1:{port}", store)
    group = dist.ProcessGroupGloo(prefix, 1, 2, timedelta(seconds=60))
    group._set_sequence_number_for_group()
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    for name, dtype, shape in info:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast([tensor], options).wait()
        out[name] = tensor


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    make_tiny_model(root / "untied", seed=1)
    make_tiny_model(root / "tied", seed=2, tied=True)
    make_tiny_model(root / "moe", seed=3, num_experts=4)
    return root


@pytest.fixture(scope="module")
def plain_steps(models):
    """Figures of three plain steps on the untied model, and its weights after them."""
    plain = Plain(models / "untied", config_of().grpo)
    plain.figures = [plain.step(batch_of(v)) for v in range(1, NUM_STEPS + 1)]
    return plain


@pytest.fixture(scope="module")
def tp2_checkpoint(models, plain_steps, tmp_path_factory):
    """A run at TP 2: everything that a driver asks of a trainer, once. Its checkpoint after step 2."""
    out, model = tmp_path_factory.mktemp("tp2"), models / "untied"

    async def use(client, processes):
        await client.publish(0, "disk", out)
        assert_equal_bits(weights_folder(out, 0), model)  # there and back, split over two ranks
        assert (weights_folder(out, 0) / "tokenizer.json").read_text() == (
            model / "tokenizer.json"
        ).read_text()

        for version in (1, 2):
            result = await client.step(batch_of(version), version)
            assert_same_figures(result, plain_steps.figures[version - 1])
            assert (result.version, result.num_trajectories, result.num_zero_variance_groups) == (
                version,
                8,
                1,
            )
        await client.save(out / "checkpoint")
        with pytest.raises(UserError, match="step to version 7 asked for at version 2"):
            await client.step(batch_of(3), 7)
        assert_same_figures(await client.step(batch_of(3), 3), plain_steps.figures[2])
        assert_same_logprobs(await client.logprobs(batch_of(9).samples), batch_of(9), plain_steps)

        await client.publish(3, "disk", out)
        await client.publish(3, "direct")
        info = await client.weight_info()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        received = {}
        engine = threading.Thread(target=receive, args=(port, info, received))
        engine.start()
        await client.init_direct(4, "127.0.0.1", port, 2)
        # All rewards equal: nothing moves, and the weights of version 3 are sent meanwhile.
        still = tuple(dataclasses.replace(s, reward=1.0) for s in batch_of(4).samples)
        sent, idle = await asyncio.gather(client.push(4, 3), client.step(TrainBatch(still), 4))
        engine.join(60)
        assert (idle.num_trajectories, idle.num_zero_variance_groups, idle.grad_norm) == (0, 3, 0.0)
        exported = read(weights_folder(out, 3))
        assert sent == sum(tensor.nbytes for tensor in exported.values())
        assert set(received) == set(exported)
        assert all((received[name] == exported[name]).all() for name in exported)
        with pytest.raises(UserError, match="version 4 is not held, but 3"):
            await client.push(4, 4)
        await client.stop()
        assert await asyncio.gather(*(rank.wait() for rank in processes.ranks)) == [0, 0]

    asyncio.run(running(config_of(tp=2), model, out, use))
    assert_close_weights(read(weights_folder(out, 3)), plain_steps.weights())
    return out / "checkpoint"


def test_two_ways_of_tensor_parallelism_train_as_one_model_does(tp2_checkpoint):
    """The assertions are in the fixture, since the next test goes on from what it saved."""
    assert (tp2_checkpoint / "trainer.json").exists()


def test_a_checkpoint_goes_on_under_another_layout_and_a_lost_rank_ends_all(
    models, plain_steps, tp2_checkpoint, tmp_path
):
    async def use(client, processes):
        assert_same_figures(await client.step(batch_of(3), 3), plain_steps.figures[2])
        await client.publish(3, "disk", tmp_path)
        assert_close_weights(read(weights_folder(tmp_path, 3)), plain_steps.weights())

        processes.ranks[1].kill()
        with pytest.raises(UserError, match=r"trainer rank [01] ended with status"):
            await client.step(batch_of(4), 4)
        async with asyncio.timeout(60):
            await asyncio.gather(*(rank.wait() for rank in processes.ranks))

    more = {"start_version": 2, "checkpoint": tp2_checkpoint}
    asyncio.run(running(config_of(dp=2), models / "untied", tmp_path, use, **more))


@pytest.mark.parametrize(
    ("name", "layout", "grpo"),
    [
        ("tied", {"pp": 2}, {"recompute_logprobs": False, "clip_high": 0.3}),
        ("moe", {}, {"loss_aggregation": "token_mean"}),
    ],
)
def test_tied_embeddings_over_a_pipeline_and_a_mixture_of_experts(models, tmp_path, name, layout, grpo):
    config = config_of(**layout, **grpo)
    plain = Plain(models / name, config.grpo)
    batches = {version: batch_of(version) for version in (1, 2)}
    wanted = {version: plain.step(batch) for version, batch in batches.items()}
    if not config.grpo.recompute_logprobs:
        assert wanted[1]["clip_fraction"] > 0.1  # the clip is at work

    async def use(client, processes):
        await client.publish(0, "disk", tmp_path)
        assert_equal_bits(weights_folder(tmp_path, 0), models / name)
        for version, batch in batches.items():
            assert_same_figures(await client.step(batch, version), wanted[version])
        assert_same_logprobs(await client.logprobs(batch_of(9).samples), batch_of(9), plain)
        await client.publish(2, "disk", tmp_path)

    asyncio.run(running(config, models / name, tmp_path, use))
    if name == "tied":  # transformers holds experts in another form in memory; their log-probs were compared
        assert_close_weights(read(weights_folder(tmp_path, 2)), plain.weights(), tied=True)


def test_the_cpu_shim_changes_nothing_where_a_gpu_is(monkeypatch):
    import torch

    from executor.trainer import megatron_cpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = dict(vars(torch.cuda))
    assert megatron_cpu.install() is False
    assert vars(torch.cuda) == before
    monkeypatch.undo()
    assert torch.zeros(1).type() == "torch.FloatTensor"  # no mode is entered
