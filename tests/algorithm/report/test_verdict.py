"""Every rule of the verdict flips it, at the values that its constants name, and says why."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from helpers.repository import REPOSITORY
from helpers.verdict_figures import FOLLOWED, LIMIT, RETURNS, STRESS, SUPPORT
from sb3_nopg.data.action_lag import ActionLag
from sb3_nopg.report import verdict as rules
from sb3_nopg.report.limits import make_limits, share_leaving
from sb3_nopg.report.trajectories import POOR_MODEL
from sb3_nopg.report.verdict import Bandwidth, reach_verdict


def test_a_policy_that_nothing_speaks_against_may_go():
    assert reach_verdict(RETURNS, SUPPORT, [LIMIT], 100) == ("go", ())
    assert reach_verdict(RETURNS, SUPPORT, [], 100) == ("go", ())


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({"held_out": None}, "care", "held out"),
        # Data that it never learned from check it as they are.
        ({"held_out": None, "learned_from": False}, "go", ""),
        ({"held_out": 80.0 - 20.0 * rules.DROP_CARE + 0.1}, "go", ""),
        ({"held_out": 80.0 - 20.0 * rules.DROP_CARE - 0.1}, "care", "partly smaller data"),
        ({"held_out": 80.0 - 20.0 * rules.DROP_NO + 0.1}, "care", "partly smaller data"),
        ({"held_out": 80.0 - 20.0 * rules.DROP_NO - 0.1}, "no", "partly smaller data"),
        # A held-out return above the plain one is no reason for doubt.
        ({"held_out": 200.0}, "go", ""),
        # Values that hardly differ, compared with what returns can be.
        ({"plain": 0.05, "held_out": 0.0, "interval_low": 0.0, "interval_high": 0.1, "value_spread": 1e-9}, "go", ""),
        ({"interval_low": 75.0, "interval_high": 75.0 + 20.0 * rules.WIDE_CARE - 0.1}, "go", ""),
        ({"interval_low": 75.0, "interval_high": 75.0 + 20.0 * rules.WIDE_CARE + 0.1}, "care", "episodes"),
        ({"interval_low": None, "interval_high": None}, "go", ""),
        ({"policy_spread": 20.0 * rules.BLIND_CARE + 0.01}, "go", ""),
        ({"policy_spread": 20.0 * rules.BLIND_CARE - 0.01}, "care", "does not depend on the policy"),
        ({"plain": math.nan}, "no", "no number"),
        ({"held_out": math.nan}, "no", "no number"),
        ({"interval_low": math.nan}, "no", "no number"),
    ],
)
def test_returns(changes, verdict, word):
    said, reasons = reach_verdict(replace(RETURNS, **changes), SUPPORT, [LIMIT], 100)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all(word in reason for reason in reasons)


@pytest.mark.parametrize(
    ("field", "care", "no", "word"),
    [
        ("thin_share", rules.THIN_CARE, rules.THIN_NO, "leaves the data"),
        ("lost_starts", rules.LOST_CARE, rules.LOST_NO, "start states"),
        ("truncation", rules.TRUNCATION_CARE, rules.TRUNCATION_NO, "n_neighbors"),
        ("effective_samples", rules.FEW_CARE, rules.FEW_NO, "rests on"),
    ],
)
def test_support(field, care, no, word):
    # Towards the bad side, which for samples is down.
    worse = 0.99 if no < care else 1.01
    for value, verdict in ((care / worse, "go"), (care * worse, "care"), (no / worse, "care"), (no * worse, "no")):
        said, reasons = reach_verdict(RETURNS, replace(SUPPORT, **{field: value}), [LIMIT], 100)
        assert said == verdict, value
        assert len(reasons) == (verdict != "go")
        assert all(word in reason for reason in reasons)


@pytest.mark.parametrize(("n_held", "verdict"), [(1000, "go"), (901, "go"), (899, "care"), (400, "care"), (0, "care")])
def test_simulated_rigs_that_fail_ask_for_care_and_no_more(n_held, verdict):
    rigs = replace(STRESS, n_rigs=1000, n_held=n_held, fallen=1000 - n_held)
    said, reasons = reach_verdict(RETURNS, SUPPORT, [LIMIT], 100, stress=rigs)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all(f"{n_held} of 1000 held for 20 s" in reason and "input_gain" in reason for reason in reasons)


@pytest.mark.parametrize("field", ["thin_share", "effective_samples", "truncation", "lost_starts"])
def test_support_that_is_no_number_is_a_no(field):
    verdict, reasons = reach_verdict(RETURNS, replace(SUPPORT, **{field: math.nan}), [], 100)
    assert verdict == "no"
    assert len(reasons) == 1
    assert "no number" in reasons[0]


@pytest.mark.parametrize("shift", [1e3, -1e3, 1e5])
@pytest.mark.parametrize("changes", [{"held_out": 60.0}, {"held_out": 30.0}, {"interval_high": 110.0}])
def test_the_rewards_zero_makes_no_difference(shift, changes):
    found = replace(RETURNS, **changes)
    shifted = {name: getattr(found, name) + shift for name in ("plain", "held_out", "interval_low", "interval_high")}
    verdict = reach_verdict(found, SUPPORT, [], 100)[0]
    assert verdict != "go"
    assert reach_verdict(replace(found, **shifted), SUPPORT, [], 100)[0] == verdict


@pytest.mark.parametrize(
    ("kernel", "deviations", "verdict"),
    [
        ("state", rules.BROAD_CARE - 0.1, "go"),
        ("state", rules.BROAD_CARE + 0.1, "care"),
        ("action", rules.BROAD_CARE + 0.1, "care"),
        ("state", None, "go"),
        # Draws of the next state may go anywhere; nothing is compared by this kernel.
        ("next state", rules.BROAD_CARE + 0.1, "go"),
    ],
)
def test_kernels_that_are_wider_than_the_data(kernel, deviations, verdict):
    widths = [Bandwidth("state", "x", "m", 0.1, 0.2), Bandwidth(kernel, "speed", "m/s", 3.0, deviations)]
    said, reasons = reach_verdict(RETURNS, SUPPORT, [], 100, widths)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all(f"no difference between {kernel}s" in reason and "speed" in reason for reason in reasons)
    assert not any("x 0.2" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"probability": rules.EXIT_CARE - 0.01}, "go"),
        ({"probability": rules.EXIT_CARE + 0.01}, "care"),
        ({"probability": rules.EXIT_NO + 0.01}, "no"),
        # The worse one of the two predictions counts.
        ({"held_out_probability": rules.EXIT_CARE + 0.01}, "care"),
        ({"held_out_probability": rules.EXIT_NO + 0.01}, "no"),
        ({"held_out_probability": None}, "go"),
        # Zero, because the data never shows how it is left.
        ({"probability": 0.0, "held_out_probability": 0.0, "ever_left": False}, "care"),
        # Pessimism's doing.
        ({"probability": 0.2, "held_out_probability": 0.0, "ever_left": False}, "care"),
        ({"probability": 0.6, "held_out_probability": 0.0, "ever_left": False}, "no"),
    ],
)
def test_limits(changes, verdict):
    said, reasons = reach_verdict(RETURNS, SUPPORT, [LIMIT, replace(LIMIT, formula="abs(y)<1", **changes)], 100)
    assert said == verdict
    assert len(reasons) == (verdict != "go")
    assert all("abs(y)<1" in reason for reason in reasons)


def test_a_policy_that_never_learned():
    assert reach_verdict(RETURNS, SUPPORT, [], 0) == ("care", ("The policy was never trained.",))


def test_the_worst_objection_decides_and_comes_first():
    verdict, reasons = reach_verdict(replace(RETURNS, held_out=None), replace(SUPPORT, thin_share=0.9), [LIMIT], 100)
    assert verdict == "no"
    assert "leaves the data" in reasons[0]
    assert "held out" in reasons[1]
    assert len(reasons) == 2


def test_the_returns_size_is_never_zero():
    nothing = replace(RETURNS, plain=0.0, held_out=0.0, interval_low=0.0, interval_high=0.0, value_range=0.0, value_spread=0.0)
    assert nothing.drop == 0.0
    assert reach_verdict(nothing, SUPPORT, [], 100)[0] == "go"


def test_trajectories_know_limits_that_no_recorded_step_has_left():
    never = replace(LIMIT, ever_left=False)
    assert reach_verdict(RETURNS, SUPPORT, [never], 100)[0] == "care"
    for share, verdict in ((0.0, "go"), (rules.EXIT_CARE + 0.01, "care"), (rules.EXIT_NO + 0.01, "no")):
        said, reasons = reach_verdict(RETURNS, SUPPORT, [replace(never, leaving=share)], 100, trajectories=FOLLOWED)
        assert said == verdict
        assert all(LIMIT.formula in reason and "trajectories leave" in reason for reason in reasons)
    # Those of a poor model know nothing.
    poor = replace(FOLLOWED, model_error=0.5)
    assert reach_verdict(RETURNS, SUPPORT, [replace(never, leaving=0.0)], 100, trajectories=poor)[0] == "care"
    assert "3 % of the predicted trajectories" in replace(never, leaving=0.03).text()


def test_a_lag_that_the_model_of_the_trajectories_knows_is_no_objection():
    lag = ActionLag(1, (0.4, 0.1))
    assert reach_verdict(RETURNS, SUPPORT, [], 100, lag=lag) == ("care", (lag.remark,))
    assert reach_verdict(RETURNS, SUPPORT, [], 100, lag=lag, trajectories=FOLLOWED) == ("care", (lag.remark,))
    knows = replace(FOLLOWED, n_earlier_steps=1)
    assert reach_verdict(RETURNS, SUPPORT, [], 100, lag=lag, trajectories=knows) == ("go", ())
    assert reach_verdict(RETURNS, SUPPORT, [], 100, lag=lag, trajectories=replace(knows, model_error=0.5))[0] == "care"


def test_who_leaves_a_limit_on_the_way_has_left_it():
    (limit,) = make_limits(["abs(x) < 1"], ("x",), np.zeros((2, 1)))
    states = np.array([[[0.0], [0.0], [0.0]], [[2.0], [0.5], [0.1]], [[0.0], [0.9], [np.nan]]])
    assert share_leaving(limit, states) == pytest.approx(1 / 3)


def test_the_guide_names_the_values_of_the_rules():
    guide = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| ") and re.search(r"(above|below|from) \d", line)]
    constants = [
        (rules.DROP_CARE, rules.DROP_NO),
        (rules.WIDE_CARE,),
        (rules.EXIT_CARE, rules.EXIT_NO),
        (rules.THIN_CARE, rules.THIN_NO),
        (rules.FEW_CARE, rules.FEW_NO),
        (rules.TRUNCATION_CARE, rules.TRUNCATION_NO),
        (rules.LOST_CARE, rules.LOST_NO),
        (rules.SUCCESS_CARE, rules.SUCCESS_NO, POOR_MODEL),
        (rules.STRESS_CARE,),
        (rules.BROAD_CARE,),
        (rules.BLIND_CARE,),
    ]
    assert [tuple(map(float, re.findall(r"(?:above|below|from) ([\d.]+)", row))) for row in rows] == constants
