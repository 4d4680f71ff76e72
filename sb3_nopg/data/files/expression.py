"""Formulas over the columns of a data set, given as text and never run as a program."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError

_LONGEST = 2_000
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "abs", "arccos", "arcsin", "arctan", "arctan2", "ceil", "clip", "cos", "cosh", "deg2rad", "exp", "expm1", "floor",
        "hypot", "isfinite", "log", "log1p", "maximum", "minimum", "rad2deg", "round", "sign", "sin", "sinh", "sqrt",
        "square", "tan", "tanh", "where",
    )
}  # fmt: skip
_CONSTANTS = {"pi": np.pi}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: np.logical_not,
}
_COMPARISON: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(expression: str, variables: Mapping[str, np.ndarray], n: int) -> np.ndarray:
    """
    :param expression: like ``"cos(s2[1]) - 0.1 * a[0]**2"``: arithmetic, comparisons, ``and``, ``or``, ``not``,
        ``x if c else y`` and NumPy's functions, all of them for each row
    :param variables: columns (n,), or matrices (n, d) of which ``name[i]`` is a column
    :param n: rows
    :return: one value for each row, (n,)
    """
    if len(expression) > _LONGEST:
        raise _refuse(expression[:40] + " …", f"longer than {_LONGEST} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        # Numbers out of range are found by whoever uses the result, with the row they are in.
        with np.errstate(all="ignore"):
            result = np.asarray(_Evaluator(expression, variables).value(tree.body))
        return np.broadcast_to(result, (n,)).copy()
    except InputError:
        raise
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise _refuse(expression, f"not a formula ({getattr(error, 'msg', None) or type(error).__name__})") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise _refuse(expression, f"cannot be computed ({error})") from error


def _refuse(expression: str, problem: str) -> InputError:
    return InputError("expression", f"{expression!r}: {problem}", "Write it like cos(s2[1]) - 0.1 * a[0]**2")


class _Evaluator:
    """Walks the few kinds of nodes that a formula has; anything else is refused, whatever it would do."""

    def __init__(self, expression: str, variables: Mapping[str, np.ndarray]):
        self.expression, self.variables = expression, variables

    def value(self, node: ast.expr) -> Any:
        kinds: dict[type[ast.expr], Callable[[Any], Any]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Subscript: self._column,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._comparison,
            ast.IfExp: lambda choice: np.where(*map(self.value, (choice.test, choice.body, choice.orelse))),
            ast.Call: self._call,
        }
        if type(node) not in kinds:
            raise _refuse(self.expression, f"{ast.unparse(node)!r} is not allowed in a formula")
        return kinds[type(node)](node)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, int | float):
            raise _refuse(self.expression, f"{node.value!r} is not a number")
        # Not Python's whole numbers: 9**9**9 of those would not end.
        return np.bool_(node.value) if isinstance(node.value, bool) else np.float64(node.value)

    def _name(self, node: ast.Name) -> Any:
        if node.id in _CONSTANTS and node.id not in self.variables:
            return np.float64(_CONSTANTS[node.id])
        array = self._variable(node)
        if array.ndim == 2 and array.shape[1] != 1:
            raise _refuse(self.expression, f"{node.id} has {array.shape[1]} columns; write {node.id}[0] for the first")
        return array if array.ndim == 1 else array[:, 0]

    def _variable(self, node: ast.expr) -> np.ndarray:
        if not isinstance(node, ast.Name) or node.id not in self.variables:
            raise _refuse(self.expression, f"{ast.unparse(node)!r} is not one of {', '.join(self.variables)}")
        return self.variables[node.id]

    def _column(self, node: ast.Subscript) -> Any:
        array, index = self._variable(node.value), node.slice
        if not isinstance(index, ast.Constant) or type(index.value) is not int or array.ndim != 2:
            raise _refuse(self.expression, f"{ast.unparse(node)!r} is not a column")
        if index.value >= array.shape[1]:
            raise _refuse(self.expression, f"{ast.unparse(node)!r} where the last column is {array.shape[1] - 1}")
        return array[:, index.value]

    def _binary(self, node: ast.BinOp) -> Any:
        if type(node.op) not in _BINARY:
            raise _refuse(self.expression, "of the operators, only + - * / // % ** are known")
        return _BINARY[type(node.op)](_number(self.value(node.left)), _number(self.value(node.right)))

    def _unary(self, node: ast.UnaryOp) -> Any:
        if type(node.op) not in _UNARY:
            raise _refuse(self.expression, "of the operators with one side, only + - not are known")
        operand = self.value(node.operand)
        return _UNARY[type(node.op)](operand if isinstance(node.op, ast.Not) else _number(operand))

    def _boolean(self, node: ast.BoolOp) -> Any:
        combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        result = self.value(node.values[0])
        for operand in node.values[1:]:
            result = combine(result, self.value(operand))
        return result

    def _comparison(self, node: ast.Compare) -> Any:
        result: Any = np.bool_(True)
        left = self.value(node.left)
        for kind, operand in zip(node.ops, node.comparators, strict=True):
            if type(kind) not in _COMPARISON:
                raise _refuse(self.expression, "of the comparisons, only < <= > >= == != are known")
            right = self.value(operand)
            result = np.logical_and(result, _COMPARISON[type(kind)](left, right))
            left = right
        return result

    def _call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
            raise _refuse(self.expression, f"{ast.unparse(node.func)!r} is not one of {', '.join(_FUNCTIONS)}")
        # The last argument of most of them would be an array to write to.
        function = _FUNCTIONS[node.func.id]
        n_arguments = {"where": 3, "clip": 3}.get(node.func.id) or getattr(function, "nin", 1)
        if len(node.args) != n_arguments:
            raise _refuse(self.expression, f"{node.func.id} takes {n_arguments} value(s), not {len(node.args)}")
        return function(*map(self.value, node.args))


def _number(value: Any) -> Any:
    """True and false count as one and zero."""
    return value.astype(np.float64) if value.dtype == bool else value
