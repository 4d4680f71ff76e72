"""A formula that passes the rig's half is one that the learner can compute, and the other way round."""

import numpy as np
import pytest

from nopg_robot.rounds.formula import check_formula
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.files.expression import evaluate

SAMPLES = {name: np.random.default_rng(0).uniform(-1.0, 1.0, (20, size)) for name, size in {"s": 5, "a": 1, "s2": 5}.items()}
FORMULAS = [
    "s2[2]",
    " (1 + s2[2]) / 2",
    "s2[2] - 4 * (s2[0] + 0.1) ** 2 - 1e-3 * a ** 2",
    "a[0] % 2 + -s[1] // 3",
    "where(s2[2] > 0.95 and not s2[0] > 0.1, 1, -abs(a))",
    "1 if -0.1 < s[0] <= 0.1 or s2[2] > 0.9 else cos(pi * s2[0])",
    "(s[0] > 0) - (s[1] > 0) + isfinite(s[2])",
    "True",
    # Of cosines that are negative for some of the states only.
    "sqrt(s2[2])",
    "clip(s[0], -1, 1) + hypot(s[3], s[4]) + round(s[1])",
    "9**9**9",
    "10**400",
    "1/0",
    "sqrt(s2[2] - 10)",
    "foo + s2[2]",
    "s",
    "s2[5]",
    "a[1]",
    "s2[-1]",
    "s2[True]",
    "s2[0:2]",
    "s2[s[0]]",
    "s[0][0]",
    "cos",
    "cos(s[0], s[1])",
    "clip(s[0])",
    "sqrt(x=1)",
    "max(s[0], 1)",
    "np.sqrt(s[0])",
    "s.T",
    "pi(1)",
    "(lambda: 1)()",
    "lambda: 1",
    "[s[0]]",
    "'text'",
    "None",
    "1j",
    "~s[0]",
    "s[0] << 1",
    "s[0] in s2",
    "s[0] is s[1]",
    "(y := s[0])",
    "f'{s[0]}'",
    "__import__('os').getcwd()",
    "s2[2",
    "",
    "1; 2",
    "s2[2] + " * 300 + "1",
]


def learner_takes(formula: str) -> bool:
    try:
        return bool(np.isfinite(evaluate(formula, SAMPLES, 20)).any())
    except InputError:
        return False


def rig_takes(formula: str) -> bool:
    try:
        check_formula(formula, SAMPLES)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_rig_takes_what_the_learner_takes(formula: str):
    assert rig_takes(formula) is learner_takes(formula)


def test_both_know_the_same_functions():
    from nopg_robot.rounds import formula
    from sb3_nopg.data.files import expression

    assert set(formula._FUNCTIONS) == set(expression._FUNCTIONS)


@pytest.mark.parametrize("formula", [None, 3, lambda s, a, s2: s2[:, 2]])
def test_only_text_is_a_formula(formula: object):
    with pytest.raises(ValueError, match="is not a formula: give a text"):
        check_formula(formula, SAMPLES)  # type: ignore[arg-type]
