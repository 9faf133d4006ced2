"""Laws of traces: nothing lost, nothing doubled, exact round trips."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.workloads.check import drain
from libra.workloads.parquet import RunSource, RunWorkload, write_chunks
from libra.workloads.request_trace import RequestTraceSource, RequestTraceWorkload
from libra.workloads.table import Chunk
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload

turns = st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**5)), min_size=1, max_size=6)
traces = st.lists(turns, min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(traces, st.integers(1, 4), st.booleans(), st.integers(0, 99), st.randoms(use_true_random=False))
def test_every_turn_appears_once_per_repetition(trace, repeat, shuffle, seed, random):
    rows = [(f"t{i}", k, p, o) for i, t in enumerate(trace) for k, (p, o) in enumerate(t)]
    random.shuffle(rows)
    text = "trajectory_id,turn,prompt_tokens,output_tokens\n" + "".join(
        f"{a},{b},{c},{d}\n" for a, b, c, d in rows
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.csv").write_text(text)
        config = TurnTableWorkload(path="t.csv", repeat=repeat, order="shuffle" if shuffle else "file")
        chunks = drain(TurnTableSource(config, seed=seed, n_samples=1, base_dir=Path(folder)))
    played = []
    for c in chunks:
        assert (c.prefix_tokens <= c.prompt_tokens).all()
        assert (c.payload_tokens >= 0).all()
        for i, name in enumerate(c.source_id):
            for k, row in enumerate(range(c.first_turn[i], c.first_turn[i + 1])):
                played.append((name, k, int(c.prompt_tokens[row]), int(c.output_tokens[row])))
    want = [(a, b, p, max(1, o)) for a, b, p, o in rows] * repeat
    assert sorted(played) == sorted(want)
    ids = np.concatenate([c.trajectory_id for c in chunks])
    assert np.array_equal(ids, np.arange(len(trace) * repeat))


requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=40
)


@settings(max_examples=100, deadline=None)
@given(requests)
def test_prefix_links_name_earlier_requests_and_take_no_more_than_they_have(rows):
    text = "t,prompt_tokens,output_tokens,reused_prefix_blocks\n"
    text += "".join(f"{i},{p},{o},{r}\n" for i, (p, o, r) in enumerate(rows))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "r.csv").write_text(text)
        config = RequestTraceWorkload(path="r.csv", block_tokens=10)
        (c,) = drain(RequestTraceSource(config, base_dir=Path(folder)))
    context = c.prompt_tokens + c.output_tokens
    for row, (prefix, (_, _, reused)) in enumerate(zip(c.prefix, rows, strict=True)):
        assert c.prefix_tokens[row] == sum(n for _, n in prefix) <= min(c.prompt_tokens[row], reused * 10)
        for chain, tokens in prefix:
            assert 0 <= chain < row
            assert 1 <= tokens <= context[chain] - c.prefix_tokens[chain]


floats = st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.just(float("nan"))
ints = st.integers(-(2**63), 2**63 - 1)


@st.composite
def chunk_lists(draw) -> list[Chunk]:
    names = tuple(draw(st.lists(st.text(), min_size=1, max_size=3)))
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        n, m = len(counts), sum(counts)

        def array(values, size, dtype):
            return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype)

        per_trajectory = ("trajectory_id", "group_id", "prompt_id", "sample_index", "group_size")
        per_turn = (
            "prompt_tokens",
            "output_tokens",
            "prefix_tokens",
            "tool",
            "tool_status",
            "payload_tokens",
        )
        link = st.tuples(ints, ints)
        chunks.append(
            Chunk(
                **{name: array(ints, n, np.int64) for name in per_trajectory},
                **{name: array(floats, n, np.float64) for name in ("arrival_s", "start_latency_s", "reward")},
                source_id=tuple(draw(st.lists(st.text(), min_size=n, max_size=n))),
                prefix=tuple(tuple(draw(st.lists(link, max_size=3))) for _ in range(n)),
                first_turn=np.concatenate([[0], np.cumsum(counts)]),
                **{name: array(ints, m, np.int64) for name in per_turn},
                tool_latency_s=array(floats, m, np.float64),
                tool_names=names,
            )
        )
    return chunks


@settings(max_examples=60, deadline=None)
@given(chunk_lists())
def test_parquet_round_trip_is_exact(chunks):
    with tempfile.TemporaryDirectory() as folder:
        write_chunks(iter(chunks), Path(folder))
        back = drain(RunSource(RunWorkload(path="."), base_dir=Path(folder)))
    assert len(back) == len(chunks)
    for a, b in zip(chunks, back, strict=True):
        for name in Chunk.__dataclass_fields__:
            x, y = getattr(a, name), getattr(b, name)
            if isinstance(x, tuple):
                assert x == y
            else:
                assert x.dtype == y.dtype
                assert x.tobytes() == y.tobytes()
                assert y.flags.writeable
