"""Request traces: arrivals, prefix links, the recorded files."""

from pathlib import Path

import numpy as np
import pytest

from libra.core.ids import Supply
from libra.errors import UserError
from libra.workloads.check import drain
from libra.workloads.csv_table import read_csv
from libra.workloads.request_trace import RequestTraceSource, RequestTraceWorkload

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the development data in ../shared/data")


def source(tmp_path, text, **options):
    (tmp_path / "r.csv").write_text(text)
    return RequestTraceSource(RequestTraceWorkload(path="r.csv", **options), base_dir=tmp_path)


def test_plain_requests(tmp_path):
    src = source(tmp_path, "t,prompt_tokens,output_tokens\n0,10,1\n3,20,0\n3,5,9\n", rate_scale=2, limit=2)
    (c,) = drain(src)
    assert src.supply is Supply.PUSH
    assert src.notes == ["1 requests with 0 output tokens count as 1"]
    assert c.arrival_s.tolist() == [0, 1.5]
    assert c.output_tokens.tolist() == [1, 1]
    assert c.prefix == ((), ())
    assert c.prefix_tokens.tolist() == [0, 0]
    assert c.group_size.tolist() == [1, 1]
    assert c.first_turn.tolist() == [0, 1, 2]


def test_links_follow_the_stated_heuristic(tmp_path):
    rows = [
        (25, 3, 0),  # 0: opens, three blocks of ten tokens
        (24, 3, 1),  # 1: shares the first block with 0 (the system prompt)
        (45, 5, 2),  # 2: two blocks: latest earlier one with three blocks is 1
        (44, 5, 1),  # 3: one block: no request of two blocks, so the latest of the smallest that suffices, 1
        (65, 7, 4),  # 4: four blocks: latest with five is 3
        (99, 9, 9),  # 5: nobody has nine or ten blocks
        (15, 2, 2),  # 6: two blocks of a prompt shorter than that
    ]
    text = "t,prompt_tokens,output_tokens,blocks,reused_prefix_blocks\n"
    text += "".join(f"{i},{p},6,{b},{r}\n" for i, (p, b, r) in enumerate(rows))
    src = source(tmp_path, text, block_tokens=10)
    (c,) = drain(src)
    assert c.prefix == (
        (),
        ((0, 10),),
        ((0, 10), (1, 10)),
        ((0, 10),),
        ((0, 10), (3, 30)),
        (),
        ((0, 10), (1, 5)),
    )
    assert src.notes == ["1 requests reuse more blocks than any earlier request has: not linked"]
    assert c.prefix_tokens.tolist() == [0, 10, 20, 10, 40, 0, 15]


def check_links(chunks):
    """A prefix names earlier requests only, and takes no more of their own part than there is."""
    prompt = np.concatenate([c.prompt_tokens for c in chunks])
    output = np.concatenate([c.output_tokens for c in chunks])
    prefixes = [p for c in chunks for p in c.prefix]
    shared = np.array([sum(n for _, n in p) for p in prefixes])
    assert (shared <= prompt).all()
    for row, prefix in enumerate(prefixes):
        for chain, tokens in prefix:
            assert 0 <= chain < row
            assert 0 < tokens <= prompt[chain] + output[chain] - shared[chain]
    return shared, prompt


@needs_data
@pytest.mark.data
def test_mooncake_reuse_is_the_recorded_one():
    config = RequestTraceWorkload(path="mooncake_conversation.csv")
    src = RequestTraceSource(config, base_dir=DATA)
    chunks = drain(src)
    assert sum(c.num_turns for c in chunks) == 12031
    shared, prompt = check_links(chunks)
    recorded = np.array(
        read_csv(DATA / "mooncake_conversation.csv").columns["reused_prefix_blocks"], dtype=int
    )
    want = np.minimum(recorded * 512, prompt)
    # The heuristic may name another request than the real one, never another amount.
    assert np.mean(shared == want) > 0.999
    assert src.notes == []


@needs_data
@pytest.mark.data
def test_azure_is_played_whole():
    chunks = drain(RequestTraceSource(RequestTraceWorkload(path="azure2023_code.csv"), base_dir=DATA))
    assert sum(c.num_turns for c in chunks) == 8819
    assert np.concatenate([c.output_tokens for c in chunks]).max() == 1899


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "workload.path: missing"),
        ({"path": "r", "rate_scale": 0}, "workload.rate_scale: must be above 0"),
        ({"path": "r", "limit": 0}, "workload.limit: must be at least 1"),
        ({"path": "r", "block_tokens": 0}, "workload.block_tokens: must be at least 1"),
    ],
)
def test_config_refuses(options, message):
    with pytest.raises(UserError, match=message):
        RequestTraceWorkload(**options)
