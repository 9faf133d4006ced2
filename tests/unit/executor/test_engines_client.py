"""The client of an engine, against a stand-in server."""

import asyncio
import math

import aiohttp
import pytest

from executor.engines.client import EngineClient, is_up
from executor.engines.errors import (
    EngineTimeout,
    EngineUnreachable,
    FeatureMissing,
    PromptTooLong,
    RequestRefused,
)
from executor.engines.fake_engine import FakeConfig, logprob_of, next_token
from executor.engines.fake_server import FakeServer
from executor.engines.transport import new_session
from executor.engines.wire import GenerateRequest, VersionSpan
from tests.support.fake_rollout import run, spin

PROMPT = tuple(range(40, 80))
OLDER = FakeConfig(generate=False, versions=False)


def expected(count: int, weights: int = 0, prompt=PROMPT) -> list[int]:
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context, weights, 512))
    return context[len(prompt) :]


def with_server(test, config: FakeConfig | None = None) -> None:
    """Run `test(server, client)`; its clock counts calls."""

    async def body() -> None:
        ticks = iter(range(10**9))
        async with FakeServer(config or FakeConfig()) as server, new_session() as session:
            await test(server, EngineClient(server.base_url, session, lambda: float(next(ticks))))

    run(body())


@pytest.mark.parametrize("config", [FakeConfig(), OLDER], ids=["newer", "older"])
def test_a_turn_comes_back_whole_with_logprobs_and_times(config):
    async def test(server: FakeServer, client: EngineClient) -> None:
        result = await client.generate(GenerateRequest("a", PROMPT, 50))
        assert list(result.token_ids) == expected(50)
        assert result.logprobs == tuple(logprob_of(token) for token in result.token_ids)
        assert result.finish_reason == "length"
        assert result.message_ends[:5] == (1, 17, 33, 49, 50)  # the first token at once, then every 16
        assert result.submitted_at < result.first_token_at < result.ended_at
        assert result.cached_tokens == 0
        again = await client.generate(GenerateRequest("b", PROMPT, 1))
        assert again.cached_tokens == 32  # two blocks; the last token is always computed
        assert (result.queue_s is None) == config.generate

    with_server(test, config)


def test_a_turn_ends_at_a_stop_token():
    async def test(server: FakeServer, client: EngineClient) -> None:
        stop = expected(20)[10]
        result = await client.generate(GenerateRequest("a", PROMPT, 50, stop_token_ids=(stop,)))
        assert (list(result.token_ids), result.finish_reason) == (expected(11), "stop")

    with_server(test)


@pytest.mark.parametrize("config", [FakeConfig(), OLDER], ids=["newer", "older"])
def test_an_abort_ends_the_open_call_with_the_tokens_so_far(config):
    async def test(server: FakeServer, client: EngineClient) -> None:
        await client.prepare()
        server.engine.hold(33)
        generation = client.open(GenerateRequest("a", PROMPT, 500))
        task = asyncio.create_task(generation.run())
        await spin(lambda: generation.num_messages == 3)
        assert list(generation.so_far().token_ids) == expected(33)
        assert generation.so_far().finish_reason == "broken"
        await client.abort("somebody else")
        await client.abort("a")
        result = await task
        assert (list(result.token_ids), result.finish_reason) == (expected(33), "abort")

    with_server(test, config)


def test_a_cancelled_turn_keeps_what_it_had_and_leaves_the_engine():
    async def test(server: FakeServer, client: EngineClient) -> None:
        await client.prepare()
        server.engine.hold(17)
        generation = client.open(GenerateRequest("a", PROMPT, 500))
        task = asyncio.create_task(generation.run())
        await spin(lambda: generation.num_messages == 2)
        assert (await client.metrics()).num_running == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert list(generation.so_far().token_ids) == expected(17)
        await spin(lambda: not server.engine.running)

    with_server(test)


def test_versions_are_told_in_spans_over_a_load_in_mid_generation():
    async def test(server: FakeServer, client: EngineClient) -> None:
        await client.prepare()
        assert await client.version() == -1  # nobody has stamped it
        await client.set_version(3)
        server.engine.hold(17)
        generation = client.open(GenerateRequest("a", PROMPT, 40))
        task = asyncio.create_task(generation.run())
        await spin(lambda: generation.num_messages == 2)
        await client.pause()
        await client.reload_from_disk("somewhere/v4")
        await client.set_version(4)
        await client.reset_prefix_cache()
        server.engine.hold(None)
        await client.resume()
        result = await task
        assert result.version_spans == (VersionSpan(3, 0, 17), VersionSpan(4, 17, 40))
        assert result.versions() == [3] * 17 + [4] * 23
        assert list(result.token_ids) == (
            expected(17) + expected(23, weights=4, prompt=(*PROMPT, *expected(17)))
        )
        assert await client.version() == 4
        assert server.calls[1:] == [
            "/pause",
            "/collective_rpc",
            "/update_weight_version",
            "/reset_prefix_cache",
            "/resume",
        ]

    with_server(test)


def test_weights_are_received_under_their_names_and_stamped():
    async def test(server: FakeServer, client: EngineClient) -> None:
        await client.init_weight_transfer("127.0.0.1", 1234, 1, 3)
        await client.receive_weights(["a", "b"], ["float32", "bfloat16"], [(2, 3), ()], 9)
        assert server.received == [
            {
                "init_info": {
                    "master_address": "127.0.0.1",
                    "master_port": 1234,
                    "rank_offset": 1,
                    "world_size": 3,
                }
            },
            {
                "update_info": {
                    "names": ["a", "b"],
                    "dtype_names": ["float32", "bfloat16"],
                    "shapes": [[2, 3], []],
                }
            },
        ]
        assert await client.version() == 9

    with_server(test)


def test_what_an_engine_is_and_counts():
    async def test(server: FakeServer, client: EngineClient) -> None:
        model = await client.model_info()
        assert (model.name, model.max_model_len, model.kv_capacity_tokens) == ("fake", 4096, 65536)
        server.engine.hold(1)
        tasks = [asyncio.create_task(client.generate(GenerateRequest(str(i), PROMPT, 100))) for i in range(3)]
        await spin(lambda: server.engine.num_generated == 2)
        metrics = await client.metrics()
        assert (metrics.num_running, metrics.num_waiting) == (2, 1)
        assert 0 < metrics.kv_used_fraction < 1
        assert metrics.generation_tokens == 2
        server.engine.hold(None)
        await asyncio.gather(*tasks)

    with_server(test, FakeConfig(max_num_seqs=2))


@pytest.mark.parametrize("config", [FakeConfig(), OLDER], ids=["newer", "older"])
def test_scores_are_the_logprobs_of_a_given_sequence(config):
    async def test(server: FakeServer, client: EngineClient) -> None:
        assert await client.score(PROMPT) == [logprob_of(token) for token in PROMPT[1:]]

    with_server(test, config)


def test_a_prompt_that_fills_the_context_is_too_long():
    async def test(server: FakeServer, client: EngineClient) -> None:
        with pytest.raises(PromptTooLong, match="longer than the maximum model length of 4096"):
            await client.generate(GenerateRequest("a", [1] * 4096, 1))

    with_server(test)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ({"refuse": 422}, RequestRefused, "status 422: made to refuse"),
        ({"break_after_tokens": 17}, EngineUnreachable, "/inference/v1/generate"),
        ({"error_after_tokens": 17}, RequestRefused, "status 500: made to fail"),
        ({"hang": True}, EngineTimeout, "no answer within 0.05 s"),
    ],
)
def test_failures_have_types_and_keep_what_had_arrived(fault, kind, text):
    async def test(server: FakeServer, client: EngineClient) -> None:
        await client.prepare()
        for name, value in fault.items():
            setattr(server.faults, name, value)
        generation = client.open(GenerateRequest("a", PROMPT, 100))
        with pytest.raises(kind, match=text) as caught:
            await generation.run(timeout_s=0.05 if "hang" in fault else None)
        assert not isinstance(caught.value, aiohttp.ClientError)
        assert str(caught.value).startswith(server.base_url)
        kept = 17 if any("after" in name for name in fault) else 0
        result = generation.so_far()
        assert (list(result.token_ids), result.finish_reason) == (expected(kept), "broken")
        assert math.isnan(result.first_token_at) == (kept == 0)

    with_server(test)


def test_nobody_there_is_unreachable():
    async def test(server: FakeServer, client: EngineClient) -> None:
        assert await is_up(client)
        server.faults.unhealthy = True
        assert not await is_up(client)
        await server.stop()
        with pytest.raises(EngineUnreachable, match="/health"):
            await client.health()

    with_server(test)


def test_what_an_engine_lacks_is_named_with_the_mend():
    async def test(server: FakeServer, client: EngineClient) -> None:
        with pytest.raises(FeatureMissing, match=r"no weight versions .* VLLM_SERVER_DEV_MODE=1"):
            await client.set_version(1)

    with_server(test, OLDER)
