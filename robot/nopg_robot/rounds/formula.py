"""
Whether the learner will understand a formula over the columns of transitions, found out before anything flies.

The learner's own reader is sb3_nopg/data/files/expression.py, which a rig's computer need not have. Both take the same
formulas; a test holds them against each other.
"""

import ast
import math
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import numpy as np

_LONGEST = 2_000
_FUNCTIONS = (
    "abs", "arccos", "arcsin", "arctan", "arctan2", "ceil", "clip", "cos", "cosh", "deg2rad", "exp", "expm1", "floor",
    "hypot", "isfinite", "log", "log1p", "maximum", "minimum", "rad2deg", "round", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh", "where",
)  # fmt: skip
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.IfExp, ast.Call,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow,
    ast.UnaryOp, ast.UAdd, ast.USub, ast.Not, ast.BoolOp, ast.And, ast.Or,
    ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip
_NAMING = (ast.Subscript, ast.Call)


def check_formula(formula: str, samples: Mapping[str, np.ndarray]) -> int:
    """
    :param formula: over names of matrices, one row for each transition
    :param samples: of each matrix, rows that might be recorded, (n, d)
    :return: for how many of them it is a finite number
    :raises ValueError: if the formula is none, or a finite number for none of them
    """
    if not isinstance(formula, str) or len(formula) > _LONGEST:
        raise ValueError(f"{formula!r:.60} is not a formula: give a text of at most {_LONGEST} characters")
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        _check_nodes(tree, {name: rows.shape[1] for name, rows in samples.items()})
        code = compile(ast.fix_missing_locations(_InFloats(_NAMESPACE).visit(tree)), "a formula", "eval")
    except (SyntaxError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"{formula!r} is not a formula ({error})") from error
    n_rows = len(next(iter(samples.values())))
    rows = ({name: matrix[number].tolist() for name, matrix in samples.items()} for number in range(n_rows))
    n_finite = sum(_is_finite(code, row) for row in rows)
    if not n_finite:
        raise ValueError(f"{formula!r} is not a finite number for any of {n_rows} states that might be recorded")
    return n_finite


def _check_nodes(tree: ast.Expression, n_columns: Mapping[str, int]) -> None:
    """What the formula is made of; nothing else is run."""
    nodes = list(ast.walk(tree))
    # Names of matrices and functions: every other one must be a number.
    named = [part.value if isinstance(part, ast.Subscript) else part.func for part in nodes if isinstance(part, _NAMING)]
    for node in nodes:
        if not isinstance(node, _NODES):
            raise ValueError(f"{_text_of(node)} is not allowed in a formula")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float):
            raise ValueError(f"{node.value!r} is not a number")
        if isinstance(node, ast.Call):
            _check_call(node)
        elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node not in named):
            _check_column(node, n_columns)


def _check_column(node: ast.Subscript | ast.Name, n_columns: Mapping[str, int]) -> None:
    if isinstance(node, ast.Name):
        is_known = node.id == "pi" or n_columns.get(node.id) == 1
    else:
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        size = n_columns.get(node.value.id, 0) if isinstance(node.value, ast.Name) else 0
        # True is a number of Python's, but of no column.
        is_known = type(index) is int and index < size
    if not is_known:
        known = ", ".join(f"{name}[0]{f' to {name}[{size - 1}]' if size > 1 else ''}" for name, size in n_columns.items())
        raise ValueError(f"there is no {ast.unparse(node)}; known are {known}")


def _check_call(node: ast.Call) -> None:
    name = ast.unparse(node.func)
    if name not in _FUNCTIONS or node.keywords:
        raise ValueError(f"{name!r} is not one of {', '.join(_FUNCTIONS)}")
    n_arguments = {"where": 3, "clip": 3}.get(name) or getattr(getattr(np, name), "nin", 1)
    if len(node.args) != n_arguments:
        raise ValueError(f"{name} takes {n_arguments} value(s), not {len(node.args)}")


def _text_of(node: ast.AST) -> str:
    return repr(ast.unparse(node)) if isinstance(node, ast.expr) else type(node).__name__


class _InFloats(ast.NodeTransformer):
    """
    Whole numbers are none of Python's, of which 9**9**9 would not end; a matrix of one column is its number.

    :param namespace: what names stand for that are no matrices
    """

    def __init__(self, namespace: Mapping[str, Any]):
        self._namespace = namespace

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        assert isinstance(node.value, int | float)
        return ast.Constant(float(node.value))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id in self._namespace else ast.Subscript(node, ast.Constant(0), ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        return node


def _in_floats(function: Callable[..., Any]) -> Callable[..., float]:
    return lambda *values: float(function(*values))


_NAMESPACE: dict[str, Any] = {"pi": math.pi, **{name: _in_floats(getattr(np, name)) for name in _FUNCTIONS}}


def _is_finite(code: CodeType, row: Mapping[str, Any]) -> bool:
    """
    :param code: of a formula whose nodes were checked
    :param row: numbers of one transition
    """
    try:
        with np.errstate(all="ignore"):
            return math.isfinite(eval(code, {"__builtins__": {}, **_NAMESPACE, **row}))
    # Where NumPy has an infinity or NaN, Python's numbers raise errors, or become complex.
    except (ArithmeticError, TypeError, ValueError):
        return False
