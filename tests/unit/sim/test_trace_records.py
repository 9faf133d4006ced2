"""Readers of recorded traces: what they make of a file, and what they refuse."""

import pytest

from libra.cost.points import TRACE_COLUMNS
from libra.errors import UserError
from sim.traces.records import REQUEST_COLUMNS, read_request_log, read_turn_trace

HEADER = ",".join(TRACE_COLUMNS)
LOG_HEADER = "hw,model,tp," + ",".join(REQUEST_COLUMNS)
# Columns: trajectory_id, turn, submit_s, prompt, output, cached, ttft_s, latency_s, tool_latency_s
ROWS = [
    "b,0,0.5,10,5,0,0.1,1.0,0.2",  # ends at 1.5
    "a,0,0.1,20,6,0,0.2,0.9,0.3",  # ends at 1.0
    "b,1,1.8,17,7,8,0.1,0.7,0.25",  # ends at 2.5: waited 0.3, 0.1 of it the client's
    "a,1,1.5,30,8,16,0.1,0.5,0.1",  # ends at 2.0: waited 0.5, 0.2 of it the client's
    "a,2,2.2,40,9,32,0.1,0.4,0.4",  # waited 0.2, 0.1 of it the client's
]


@pytest.fixture
def turns(tmp_path):
    """Write rows and read them as a trace."""

    def read(*rows, header=HEADER):
        path = tmp_path / "trace.csv"
        path.write_text("\n".join((header, *rows)) + "\n")
        return read_turn_trace(path)

    return read


@pytest.fixture
def log(tmp_path):
    """Write rows and read those of one engine."""

    def read(*rows, header=LOG_HEADER, engine=("H200", "Qwen3-4B", 1)):
        path = tmp_path / "log.csv"
        path.write_text("\n".join((header, *rows)) + "\n")
        return read_request_log(path, *engine)

    return read


class TestTurns:
    def test_trajectories_in_the_order_of_their_first_submission(self, turns):
        trace = turns(*ROWS)
        assert trace.num_trajectories == 2
        assert trace.first_turn.tolist() == [0, 3, 5]
        assert trace.submit_s.tolist() == [0.1, 1.5, 2.2, 0.5, 1.8]
        assert trace.prompt_tokens.tolist() == [20, 30, 40, 10, 17]
        assert trace.output_tokens.tolist() == [6, 8, 9, 5, 7]
        assert trace.cached_tokens.tolist() == [0, 16, 32, 0, 8]
        assert trace.ttft_s.tolist() == [0.2, 0.1, 0.1, 0.1, 0.1]
        assert trace.end_s.tolist() == pytest.approx([1.0, 2.0, 2.6, 1.5, 2.5])
        assert not trace.open_loop

    def test_waits_are_what_passed_and_after_the_last_turn_tool_and_usual_client(self, turns):
        # The client's own parts: 0.2, 0.1, 0.1; their median 0.1 comes on top of the last turns' tools.
        assert turns(*ROWS).wait_s.tolist() == pytest.approx([0.5, 0.2, 0.4 + 0.1, 0.3, 0.25 + 0.1])

    def test_single_turns_wait_for_their_tool_only(self, turns):
        trace = turns("a,0,0.1,20,6,0,0.2,0.9,0.3", "b,0,0.1,20,6,0,0.2,0.9,0.5")
        assert trace.wait_s.tolist() == [0.3, 0.5]

    def test_rounded_times_that_run_backwards_by_less_than_a_millisecond_wait_for_nothing(self, turns):
        trace = turns("a,0,0.0,20,6,0,0.2,0.9,0.0", "a,1,0.8995,20,6,0,0.2,0.9,0.0")
        assert trace.wait_s[0] == 0.0

    def test_trajectories_of_the_same_time_are_ordered_by_name(self, turns):
        rows = ["b,0,1,1,1,0,0,1,0", "a,0,1,2,1,0,0,1,0"]
        assert turns(*rows).prompt_tokens.tolist() == [2, 1]
        assert turns(*rows[::-1]).prompt_tokens.tolist() == [2, 1]

    def test_columns_may_come_in_any_order_with_others_between(self, turns):
        header = "note," + ",".join(reversed(TRACE_COLUMNS))
        trace = turns("x,0.2,1.0,0.1,0,5,10,0.5,0,b", header=header)
        assert (trace.submit_s.tolist(), trace.prompt_tokens.tolist()) == ([0.5], [10])

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {2: "b,2,1.8,17,7,8,0.1,0.7,0.25"},
                "line 4, column turn: 2 where turn 1 of 'b' belongs; the trace has",
            ),
            (
                {2: "b,0,1.8,17,7,8,0.1,0.7,0.25"},
                "line 4, column turn: 0 where turn 1 of 'b' belongs; the trace has",
            ),
            ({0: "c,1,0.5,10,5,0,0.1,1.0,0.2"}, "column turn: 1 where turn 0 of 'c' belongs"),
            (
                {2: "b,1,1.2,17,7,8,0.1,0.7,0.25"},
                "line 4, column submit_s: before the end of the trajectory's turn",
            ),
            (
                {1: "a,0,0.1,20,6,0,0.95,0.9,0.3"},
                "line 3, column latency_s: 0.9 is before ttft_s 0.95; correct",
            ),
            ({1: "a,0,0.1,0,6,0,0.2,0.9,0.3"}, "line 3, column prompt_tokens: 0 is below 1"),
            ({1: "a,0,0.1,20,0,0,0.2,0.9,0.3"}, "line 3, column output_tokens: 0 is below 1"),
            ({1: "a,0,-1,20,6,0,0.2,0.9,0.3"}, "line 3, column submit_s: -1 is below 0"),
            ({1: "a,0,0.1,20,6,0,,0.9,0.3"}, "line 3, column ttft_s: is empty"),
            ({1: "a,0,0.1,20,6,0,0.2,0.9,"}, "line 3, column tool_latency_s: is empty"),
            ({1: "a,0,0.1,20,6,-1,0.2,0.9,0.3"}, "line 3, column cached_tokens: -1 is below 0"),
            ({1: ",0,0.1,20,6,0,0.2,0.9,0.3"}, "line 3, column trajectory_id: is empty"),
            ({1: "a,0.5,0.1,20,6,0,0.2,0.9,0.3"}, "line 3, column turn: 0.5 is not a whole number"),
        ],
    )
    def test_holes_doubles_and_times_that_run_backwards_are_refused(self, turns, tmp_path, changed, message):
        rows = [changed.get(row, text) for row, text in enumerate(ROWS)]
        with pytest.raises(UserError) as caught:
            turns(*rows)
        text = str(caught.value)
        assert text.startswith(str(tmp_path / "trace.csv"))
        assert message in text
        assert "\n" not in text

    def test_a_missing_column_is_named_with_the_nearest(self, turns):
        with pytest.raises(UserError, match="line 1: no column 'ttft_s'; rename 'tft_s'"):
            turns(*ROWS, header=HEADER.replace("ttft_s", "tft_s"))


REQUESTS = [
    "H200,Qwen3-4B,1,10,5,0.0,0.5,1.5",
    "H100,Qwen3-4B,1,99,9,9.0,9.5,9.9",
    "H200,Qwen3-4B,1,20,6,0.25,0.5,2.0",
]


class TestRequests:
    def test_the_requests_of_one_engine(self, log):
        trace = log(*REQUESTS)
        assert trace.open_loop
        assert (trace.num_trajectories, trace.first_turn.tolist()) == (2, [0, 1, 2])
        assert trace.submit_s.tolist() == [0.0, 0.25]
        assert trace.prompt_tokens.tolist() == [10, 20]
        assert trace.output_tokens.tolist() == [5, 6]
        assert trace.ttft_s.tolist() == [0.5, 0.25]
        assert trace.latency_s.tolist() == [1.5, 1.75]
        assert trace.wait_s.tolist() == [0.0, 0.0]
        assert trace.cached_tokens.tolist() == [-1, -1]

    def test_a_log_of_one_engine_needs_no_names(self, log):
        trace = log("10,5,0.0,0.5,1.5", header=",".join(REQUEST_COLUMNS))
        assert trace.prompt_tokens.tolist() == [10]

    def test_an_engine_that_is_not_in_it(self, log):
        with pytest.raises(
            UserError,
            match=r"no request of Qwen3-8B on H200 at tp 1; it holds Qwen3-4B on H100 at tp 1, Qwen3-4B on H200 at",
        ):
            log(*REQUESTS, engine=("H200", "Qwen3-8B", 1))
        with pytest.raises(UserError, match="no request of Qwen3-4B on H200 at tp 2"):
            log(*REQUESTS, engine=("H200", "Qwen3-4B", 2))

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (
                "H200,Qwen3-4B,1,10,5,0.1,0.5,1.5",
                "line 5, column queued_s: earlier than the request before it; sort",
            ),
            ("H200,Qwen3-4B,1,10,5,0.3,0.2,1.5", "line 5, column first_token_s: 0.2 is before queued_s 0.3"),
            (
                "H200,Qwen3-4B,1,10,5,0.3,0.4,0.35",
                "line 5, column last_token_s: 0.35 is before first_token_s 0.4",
            ),
            ("H200,Qwen3-4B,1,10,0,0.3,0.4,0.5", "line 5, column output_tokens: 0 is below 1"),
            ("H200,Qwen3-4B,1,10,5,0.3,,0.5", "line 5, column first_token_s: is empty"),
        ],
    )
    def test_broken_rows_are_named(self, log, row, message):
        with pytest.raises(UserError) as caught:
            log(*REQUESTS, row)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_missing_column(self, log):
        with pytest.raises(UserError, match="no column 'last_token_s'; add it"):
            log("1,2,3,4", header="prompt_tokens,output_tokens,queued_s,first_token_s")
