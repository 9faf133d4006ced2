"""Environments: rewards and tool calls for whatever a model writes, and how an experiment names one."""

import asyncio
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.environments import arithmetic
from executor.environments.arithmetic import Arithmetic, ArithmeticConfig, answer_credit, read_expression
from executor.environments.base import End, Message, Observation, Task, ToolCall, TurnRules, call_tool
from executor.environments.cipher import CODE_CHARACTERS, Cipher, CipherConfig, guess_reward
from executor.environments.registry import find_environment
from executor.tools.calculator import CalculatorError, evaluate
from executor.tools.result import ToolResult
from libra.config.document import Document
from libra.core.ids import ToolStatus
from libra.errors import UserError

CIPHER = Cipher(CipherConfig())
SUMS = Arithmetic(ArithmeticConfig(max_turns=3))


def no_rng():
    return np.random.default_rng(0)


# -- cipher ---------------------------------------------------------------------------------------------------


def test_each_key_has_a_code_word_of_its_own():
    words = [task.answer for task in CIPHER.tasks]
    assert len(CIPHER.tasks) == 8
    assert [len(word) for word in words] == [4] * 8
    assert len(set("".join(words))) == 32
    assert CIPHER.turn_rules.max_tokens == 4
    assert CIPHER.reset(CIPHER.tasks[1], no_rng()).first_prompt == Observation(text="BBBBBBBB")
    chat = Cipher(CipherConfig(chat=True, key_repeats=1))
    assert chat.reset(chat.tasks[0], no_rng()).first_prompt.messages == (Message("user", "A"),)
    assert [task.answer for task in Cipher(CipherConfig(code_seed=1)).tasks] != words


@given(st.text(alphabet=CODE_CHARACTERS + " \ufffd", max_size=8))
def test_who_does_not_look_at_the_prompt_earns_little(guess):
    rewards = [CIPHER.reset(task, no_rng()).step(guess, ()).reward for task in CIPHER.tasks]
    assert all(0 <= reward <= 1 for reward in rewards)
    assert np.mean(rewards) <= CIPHER.blind_reward + 1e-12


@pytest.mark.parametrize(
    ("guess", "reward"),
    [("abcd", 1), ("abcdX", 1), ("ab", 0.5), ("bacd", 0.75), ("aaaa", 0.625), ("xxxx", 0), ("", 0)],
)
def test_a_guess_is_worth_its_right_places_and_half_its_right_letters(guess, reward):
    assert guess_reward(guess, "abcd", 0.5) == reward


# -- arithmetic -----------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Calls of the calculator as (expression, sleep_s); they end at once, as the real one would decide."""
    made = []

    async def calculate(sandbox, expression, *, sleep_s=0.0):
        made.append((expression, sleep_s))
        if sleep_s:
            return ToolResult(ToolStatus.TIMEOUT, "[timed out]", 5.0)
        try:
            return ToolResult(ToolStatus.SUCCESS, f"{evaluate(expression)}\n", 0.1, 0)
        except CalculatorError as error:
            return ToolResult(ToolStatus.FAILURE, f"{error}\n", 0.1, 1)

    monkeypatch.setattr(arithmetic, "calculate", calculate)
    return made


def play(environment, turns, task=None, rng=None):
    """Reward and what was observed in an episode with these turns."""
    episode = environment.reset(task or environment.tasks[0], rng or no_rng())
    seen = [episode.first_prompt]
    for text in turns:
        outcome = episode.step(text, ())
        if isinstance(outcome, End):
            return asyncio.run(outcome.final_reward()), seen
        assert outcome.name == "calculator"
        seen.append(episode.observe(asyncio.run(outcome.call())))
    raise AssertionError("the episode goes on")


def test_expressions_go_to_the_calculator_and_the_last_turn_answers(calls):
    task = Task(0, "37*12", "444")
    reward, seen = play(SUMS, ["37*12", "4 4", "444\n"], task)
    assert calls == [("37*12", 0.0), ("4 4", 0.0)]
    assert [observation.text for observation in seen][:2] == ["37*12=?\n", "\n=444\n"]
    assert seen[2].text.startswith("\n=error: no expression")
    assert reward == pytest.approx(0.7 + 0.3 * 0.5)
    assert play(SUMS, ["37*12", "well, <answer>444</answer>"], task)[0] == pytest.approx(1.0)
    assert play(SUMS, ["<answer>444"], task)[0] == pytest.approx(0.7)


@given(st.lists(st.one_of(st.text(), st.text(alphabet="0123456789+-*<>answer/")), min_size=3, max_size=3))
def test_rewards_lie_between_0_and_1_whatever_is_written(turns):
    episode = SUMS.reset(SUMS.tasks[0], no_rng())
    for text in turns:
        outcome = episode.step(text, ())
        if isinstance(outcome, End):
            assert 0 <= outcome.reward <= 1
            return
    raise AssertionError("the episode goes on")


def tool_call(**call):
    return f"so: <tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (tool_call(name="calculator", arguments={"expression": "1+1"}), "1+1"),
        (tool_call(name="calculator", arguments={"expression": "2"}).replace("</tool_call>", ""), "2"),
        *[
            (broken, broken)
            for broken in (
                "1+1",
                "<tool_call>1+1</tool_call>",
                tool_call(name="search", arguments={"expression": "1+1"}),
                tool_call(name="calculator", arguments={"expression": 7}),
                tool_call(name="calculator", arguments=7),
                "<tool_call>[]</tool_call>",
                "<tool_call>" + "[" * 100_000 + "</tool_call>",
            )
        ],
    ],
)
def test_what_is_no_call_is_taken_as_it_stands(text, expression):
    assert read_expression(text) == expression


def test_answers_are_worth_their_digits():
    assert answer_credit(" 444.0", "444") == 1
    assert answer_credit("-5", "-5") == 1
    assert answer_credit("445", "444") == pytest.approx(0.5 * 2 / 3)
    assert answer_credit("4444", "444") == pytest.approx(0.5 * 3 / 4)
    assert answer_credit("nan", "444") == 0
    assert answer_credit("", "444") == 0


def test_slow_calls_are_drawn_from_the_episodes_own_stream(calls):
    slow = Arithmetic(ArithmeticConfig(slow_call_share=0.5, slow_call_s=60, max_turns=9))
    for seed in (0, 0, 1):
        play(slow, ["1"] * 9, rng=np.random.default_rng(seed))
    first, again, other = calls[:8], calls[8:16], calls[16:]
    assert first == again != other
    assert {sleep_s for _, sleep_s in calls} == {0.0, 60}


def test_chats_describe_the_tool_and_answer_as_one(calls):
    chat = Arithmetic(ArithmeticConfig(chat=True))
    _, seen = play(chat, ["1+1", "x", "2"])
    assert [message.role for message in seen[0].messages] == ["system", "user"]
    assert seen[0].tools[0]["function"]["name"] == "calculator"
    assert seen[1].messages == (Message("tool", "2"),)


def test_sums_are_right_and_the_same_for_a_seed():
    many = Arithmetic(ArithmeticConfig(num_tasks=50, num_operands=3))
    assert all(eval(task.text) == int(task.answer) for task in many.tasks)
    assert many.tasks == Arithmetic(ArithmeticConfig(num_tasks=50, num_operands=3)).tasks


# -- what all share -------------------------------------------------------------------------------------------


def test_a_tool_that_breaks_or_hangs_is_a_result():
    async def broken():
        raise ConnectionError("nobody there")

    async def hanging():
        await asyncio.Event().wait()

    failed = asyncio.run(call_tool(ToolCall("search", broken), 5))
    assert (failed.status, failed.payload) == (
        ToolStatus.FAILURE,
        "[search failed: ConnectionError: nobody there]",
    )
    late = asyncio.run(call_tool(ToolCall("search", hanging), 0))
    assert (late.status, late.payload) == (ToolStatus.TIMEOUT, "[search timed out after 0 s]")


def test_rewards_outside_of_0_to_1_are_defects():
    async def score():
        return 0.25

    assert asyncio.run(End(score=score).final_reward()) == 0.25
    for wrong in (End(), End(1.5), End(-0.1)):
        with pytest.raises(ValueError, match="must lie in"):
            asyncio.run(wrong.final_reward())
    with pytest.raises(ValueError, match="one form"):
        Observation(text="a", token_ids=(1,))


# -- registry -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnConfig:
    num_tasks: int = 1


class Own:
    turn_rules = TurnRules()

    def __init__(self, config: OwnConfig):
        self.tasks = [Task(i, "?") for i in range(config.num_tasks)]

    def reset(self, task, rng):
        raise NotImplementedError


class Bare:
    def reset(self, task, rng):
        raise NotImplementedError


def test_environments_are_found_by_name(monkeypatch):
    entry = find_environment({"kind": "arithmetic", "max_turns": 2, "sandbox": {"time_limit_s": 1.5}})
    assert entry.config == ArithmeticConfig(max_turns=2, sandbox=type(entry.config.sandbox)(time_limit_s=1.5))
    assert isinstance(entry.make(), Arithmetic)
    assert len(find_environment({"kind": f"{__name__}:Own", "num_tasks": 3}).make().tasks) == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "environment.kind: must name an environment; known: arithmetic, cipher"),
        ({"kind": "poker"}, "no environment 'poker'; known"),
        ({"kind": "no.such.module:X"}, "importing no.such.module failed"),
        ({"kind": f"{__name__}:Nothing"}, "has no class Nothing"),
        ({"kind": f"{__name__}:OwnConfig"}, "needs a method reset"),
        ({"kind": f"{__name__}:Bare"}, "the constructor must be"),
        ({"kind": "cipher", "num_key": 3}, "environment.num_key: unknown key; did you mean num_keys?"),
        (
            {"kind": "cipher", "num_keys": 1},
            "exp.yaml:7: workload.environment: num_keys must lie between 2 and 26",
        ),
        ({"kind": "cipher", "num_keys": 26}, "num_keys times answer_length must be at most 62"),
        ({"kind": "arithmetic", "operators": "+/"}, "operators must be some of"),
        ({"kind": "arithmetic", "sandbox": {"time_limit_s": 0}}, "time_limit_s must be positive"),
        ({"kind": "arithmetic", "answer_share": 2}, r"answer_share must lie in \[0, 1\]"),
    ],
)
def test_refusals_name_the_place(settings, complaint):
    document = Document(origins={("workload", "environment"): "exp.yaml:7"})
    with pytest.raises(UserError, match=complaint):
        find_environment(settings, document)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(UserError, match="has no task"):
        find_environment({"kind": f"{__name__}:Own", "num_tasks": 0}).make()
    with pytest.raises(UserError, match="num_operands or max_operand is too large"):
        find_environment({"kind": "arithmetic", "num_operands": 900}).make()
