"""Calculator and capped output: what they accept, keep and refuse, for any input."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.tools import calculator
from executor.tools.calculator import MAX_CHARACTERS, MAX_DIGITS, CalculatorError, evaluate
from executor.tools.output import CappedOutput

_NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6).map(repr),
    st.sampled_from(["0", "1", "0.5", "1e300", "2"]),
)


def _grow(inner):
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner)
    return st.one_of(
        binary.map(lambda parts: f"({parts[0]}){parts[1]}({parts[2]})"),
        st.tuples(st.sampled_from("+-"), inner).map("".join),
        inner.map(lambda text: f"({text})"),
    )


EXPRESSIONS = st.recursive(_NUMBERS, _grow, max_leaves=8).filter(lambda text: len(text) <= MAX_CHARACTERS)


def outcome(text):
    """Value of `text`, or what is wrong with it."""
    try:
        return evaluate(text), ""
    except CalculatorError as error:
        return None, str(error)


@given(EXPRESSIONS)
def test_the_calculator_means_what_python_means(text):
    value, complaint = outcome(text)
    if value is None:
        # Only what has no finite real value of a sane size is refused; the rest Python can show.
        assert any(what in complaint for what in ("too large", "zero", "no real number"))
        if "zero" in complaint:
            with pytest.raises(ZeroDivisionError):
                eval(text)
        return
    expected = eval(text)
    assert type(value) is type(expected)
    assert value == expected


@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*/%(). \n\0x_jeE,:#'", max_size=40)))
def test_any_text_is_a_finite_number_or_refused(text):
    value, complaint = outcome(text)
    if value is None:
        assert complaint.startswith("error: ")
        assert "\n" not in complaint
    else:
        assert type(value) in (int, float)
        assert math.isfinite(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no expression"),
        ("2**3322000", "too large"),
        ("9**9**9**9", "too large"),
        ("10**600*10**600", "too large"),
        ("1e308*10", "too large"),
        ("2.5**1e9", "too large"),
        ("(-8)**0.5", "no real number"),
        ("1//0", "division by zero"),
        ("0**-1", "division by zero"),
        ("(" * 500 + "1" + ")" * 499, "no expression"),
        ("-" * 999 + "1", "too deeply"),
        ("9" * (MAX_CHARACTERS + 1), "longer than"),
        ("True", "only numbers"),
        ("'a'*3", "only numbers"),
        ("__import__('os').getpid()", "only numbers"),
        ("1if 1else 2", "only numbers"),
        ("2j", "only numbers"),
        ("07", "no expression"),
    ],
)
def test_refusals_say_why(text, complaint):
    with pytest.raises(CalculatorError, match=complaint):
        evaluate(text)


def test_the_largest_results_can_be_shown():
    assert len(str(evaluate(f"10**{MAX_DIGITS - 1}"))) == MAX_DIGITS
    assert evaluate("2**-3000") == 2.0**-3000


def test_the_exit_code_says_whether_there_is_a_value(capsys):
    assert calculator.main([], " 12*(3+4) ") == 0
    assert calculator.main(["--sleep", "0"], "6/2") == 0
    assert calculator.main([], "nonsense") == 1
    assert capsys.readouterr().out == (
        "84\n3.0\nerror: only numbers, + - * / // % ** and parentheses are known\n"
    )


@given(st.integers(1, 50), st.lists(st.binary(max_size=40), max_size=8))
def test_output_keeps_both_ends_and_shows_what_is_missing(limit_bytes, chunks):
    output, whole = CappedOutput(limit_bytes), b"".join(chunks)
    for chunk in chunks:
        output.add(chunk)
    assert output.num_bytes == len(whole)
    assert output.truncated_bytes == max(0, len(whole) - limit_bytes)
    if len(whole) <= limit_bytes:
        assert output.text() == whole.decode("utf-8", "replace")
        return
    cut = f"\n[... {len(whole) - limit_bytes} bytes left out ...]\n"
    tail = limit_bytes // 2
    head = whole[: limit_bytes - tail].decode("utf-8", "replace")
    assert output.text() == head + cut + (whole[-tail:] if tail else b"").decode("utf-8", "replace")
