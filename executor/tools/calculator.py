"""A calculator: `python calculator.py` reads an expression and prints its value, with exit code 0, or what is wrong
with it, with exit code 1.

Guarantees: only numbers, `+ - * / // % **`, signs and parentheses are evaluated, with Python's own meaning; anything
else, and any result that is not a finite number of at most `MAX_DIGITS` digits, is refused; no expression takes long.
Standard library only, and nothing of this project, so that it can be run by its path in a bare interpreter.
`--sleep S` waits first, to try what a slow tool does.
"""

import ast
import math
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

MAX_CHARACTERS = 1000
MAX_DIGITS = 1000
_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_OPERATORS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type[ast.unaryop], Callable[..., Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class CalculatorError(Exception):
    """What is wrong with an expression, in one line."""


def evaluate(text: str) -> int | float:
    """Value of the expression `text`. Raises CalculatorError."""
    if len(text) > MAX_CHARACTERS:
        raise CalculatorError(f"error: the expression is longer than {MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals, which would mingle with the answer
            tree = ast.parse(text.strip(), mode="eval")
        return _value(tree.body)
    except SyntaxError as error:
        raise CalculatorError(f"error: no expression ({error.msg})") from error
    except ValueError as error:  # a null character, or a number with too many digits
        raise CalculatorError(f"error: no expression ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise CalculatorError("error: the expression is nested too deeply") from error
    except ZeroDivisionError as error:
        raise CalculatorError("error: division by zero") from error
    except OverflowError as error:
        raise CalculatorError("error: the result is too large") from error


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(number)
        case ast.UnaryOp() if type(node.op) in _SIGNS:
            return _checked(_SIGNS[type(node.op)](_value(node.operand)))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left), _value(node.right)
            if isinstance(node.op, ast.Pow):
                _check_power(left, right)
            return _checked(_OPERATORS[type(node.op)](left, right))
    raise CalculatorError("error: only numbers, + - * / // % ** and parentheses are known")


def _check_power(base: int | float, exponent: int | float) -> None:
    """Refuse before it is computed what would take long: a power's digits grow with its exponent."""
    if isinstance(base, int) and isinstance(exponent, int):
        if abs(base) > 1 and exponent * (base.bit_length() - 1) > _MAX_BITS:
            raise CalculatorError("error: the result is too large")
    elif base < 0 and isinstance(exponent, float) and not exponent.is_integer():
        raise CalculatorError("error: no real number")


def _checked(number: int | float) -> int | float:
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise CalculatorError("error: the result is too large")
    if isinstance(number, float) and not math.isfinite(number):
        raise CalculatorError("error: the result is too large")
    return number


def main(arguments: list[str], text: str) -> int:
    """Print the value of `text` or what is wrong with it; returns the exit code."""
    if arguments[:1] == ["--sleep"]:
        import time

        time.sleep(float(arguments[1]))
    try:
        sys.stdout.write(f"{evaluate(text)}\n")
    except CalculatorError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    # What a model wrote may be any bytes; reading must not fail where evaluating would refuse.
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read(MAX_CHARACTERS * 4 + 1).decode("utf-8", "replace")))
