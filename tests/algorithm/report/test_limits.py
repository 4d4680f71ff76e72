"""Limits as formulas: what they ask is what a chain with a known risk answers, and what cannot be asked is refused."""

import numpy as np
import pytest
from gymnasium import spaces

from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.report.limits import Limit, check_names, find_exits, make_limits

GAMMA = 0.9
STATES = np.array([[0.2, -3.0], [0.5, 1.0]])


def ring(stays: int, leaves: int) -> TransitionDataset:
    """State 0 leaves for state 100, which is kept forever, with a risk of leaves / (stays + leaves) a step."""
    states = np.array([0.0] * (stays + leaves) + [100.0])[:, None]
    next_states = np.array([0.0] * stays + [100.0] * leaves + [100.0])[:, None]
    n = len(states)
    space = spaces.Box(-1.0, 1.0, (1,))
    return TransitionDataset(states, np.zeros((n, 1)), np.ones(n), next_states, np.zeros(n, dtype=bool), action_space=space)


def model_on(data: TransitionDataset, pessimism: float = 0.0) -> NOPG:
    """States a hundred bandwidths apart, and actions that make no difference."""
    return NOPG(
        "LinearPolicy",
        None,
        dataset=data,
        gamma=GAMMA,
        initial_states=[[0.0]],
        estimator_kwargs={
            "state_bandwidth": 1.0,
            "action_bandwidth": 1e6,
            "next_state_bandwidth": 1.0,
            "n_neighbors": None,
            "weights": "local_constant",
            "pessimism": pessimism,
        },
        transitions="samples",
        device="cpu",
    )


def test_a_known_chain_has_its_probabilities():
    data, other = ring(8, 2), ring(5, 5)
    model = model_on(data)
    (found,) = find_exits(model.evaluation, [Limit("abs(x) < 50", ("x",))], data, other)
    # Σ_t γ^(t−1) (1 − λ)^(t−1) λ
    assert found.probability == pytest.approx(0.2 / (1.0 - GAMMA * 0.8), rel=1e-7)
    assert found.held_out_probability == pytest.approx(0.5 / (1.0 - GAMMA * 0.5), rel=1e-7)
    assert found.worst == found.held_out_probability
    # The chain does not depend on actions: whoever acted leaves as often as the policy.
    assert found.behaviour_probability == pytest.approx(found.probability, rel=1e-7)
    # At a risk of one half, the first departure is after two steps on average.
    assert found.steps_inside == pytest.approx(2.0, rel=1e-6)
    assert found.horizon_steps == pytest.approx(10.0)
    assert found.ever_left
    assert "last 10 steps" in found.text()
    assert "about 2 steps" in found.text()


def test_what_the_data_never_leaves_is_not_known():
    data = ring(8, 2)
    (found,) = find_exits(model_on(data).evaluation, [Limit("s[0] < 1000", ("x",))], data, None)
    assert (found.probability, found.held_out_probability, found.behaviour_probability) == (0.0, None, 0.0)
    assert found.steps_inside is None
    assert not found.ever_left
    assert "nothing is known" in found.text()
    (wary,) = find_exits(model_on(data, pessimism=1.0).evaluation, [Limit("s[0] < 1000", ("x",))], data, None)
    assert wary.probability > 0.0
    assert "pessimism" in wary.text()
    (outside,) = find_exits(model_on(data).evaluation, [Limit("s[0] > 1000", ("x",))], data, None)
    assert outside.probability == 1.0
    assert outside.behaviour_probability is None
    # The data are outside from the beginning: no step leaves.
    assert not outside.ever_left
    assert "No recorded step begins inside" in outside.text()
    assert "starts outside" in outside.text()


def test_only_steps_from_inside_to_outside_leave():
    data = ring(8, 2)
    limit = Limit("abs(x) < 50", ("x",))
    (found,) = find_exits(model_on(data).evaluation, [limit], data, None)
    assert found.ever_left
    outside_only = TransitionDataset(
        np.array([[0.0], [0.0], [100.0]]), np.zeros((3, 1)), np.ones(3), np.array([[0.0], [0.0], [100.0]]),
        np.zeros(3, dtype=bool), action_space=data.action_space,
    )  # fmt: skip
    (found,) = find_exits(model_on(outside_only).evaluation, [limit], outside_only, None)
    assert not found.ever_left


def test_formulas_know_names_and_columns():
    for formula, expected in (
        ("abs(x) < 0.35", [True, False]),
        ("s[1] < 0", [True, False]),
        ("-1 < x < 1 and sin > 0", [False, True]),
        # A dimension may be called like a function.
        ("sin(sin) > 0.5", [False, True]),
        ("x**2 + sin**2 < 2 or x > 9", [False, True]),
    ):
        (limit,) = make_limits([formula], ("x", "sin"), STATES)
        assert limit(STATES).tolist() == expected, formula


def test_a_state_that_is_no_number_lies_outside():
    assert not Limit("abs(x) < 1", ("x",))(np.array([[np.nan]])).any()


@pytest.mark.parametrize(
    ("formula", "word"),
    [
        ("abs(x", "not a formula"),
        ("abs(x)", "not true or false"),
        ("y < 1", "'y' is not one of s, x, z"),
        ("s[2] < 1", "last column is 1"),
        ("s < 1", "2 columns"),
        ("__import__('os').system('true') < 1", "is not one of"),
        ("", "not a formula"),
    ],
)
def test_bad_formulas_are_refused_with_an_example(formula, word):
    with pytest.raises(InputError, match="limit") as caught:
        make_limits([formula], ("x", "z"), STATES)
    assert word in str(caught.value)
    assert '"abs(x) < 0.35"' in str(caught.value)
    assert caught.value.field == "limit"


def test_one_text_is_no_list_of_formulas():
    with pytest.raises(InputError, match="limits"):
        make_limits("abs(x) < 1", ("x", "z"), STATES)


@pytest.mark.parametrize("names", [["x"], ["x", "y", "z"], ["x", "x"], ["x", "s"], ["x", "my y"], ["x", "not"], "xy"])
def test_bad_names_are_refused(names):
    with pytest.raises(InputError, match="names"):
        check_names(names, 2)


def test_without_names_the_example_has_a_column():
    with pytest.raises(InputError, match=r'"abs\(s\[0\]\) < 0.35"'):
        make_limits(["y < 1"], ("s[0]", "s[1]"), STATES)
