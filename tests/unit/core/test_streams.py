import subprocess
import sys

from libra.core.streams import stream


def test_streams_differ_by_name_index_and_seed_and_repeat():
    draws = {
        key: stream(*key).integers(1 << 62)
        for key in [(0, "a"), (0, "b"), (1, "a"), (0, "a", 0), (0, "a", 1)]
    }
    assert len(set(draws.values())) == len(draws)
    assert stream(0, "a").integers(1 << 62) == draws[(0, "a")]


def test_a_stream_does_not_depend_on_the_hash_seed():
    code = "from libra.core.streams import stream; print(stream(3, 'tools', 2).integers(1 << 62))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("0", "1")
    }
    assert texts == {f"{stream(3, 'tools', 2).integers(1 << 62)}\n"}
