"""Figures of a policy that nothing speaks against."""

from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.stress import FactorFigures, StressFigures
from sb3_nopg.report.support import SupportFigures
from sb3_nopg.report.trajectories import TrajectoryFigures
from sb3_nopg.report.verdict import Returns

RETURNS = Returns(
    plain=80.0,
    learned_from=True,
    held_out=79.0,
    held_out_source="given",
    held_out_chose=False,
    interval_low=75.0,
    interval_high=85.0,
    interval_level=0.95,
    interval_source="the held-out data",
    behaviour=20.0,
    value_range=100.0,
    value_spread=20.0,
    policy_spread=50.0,
)


SUPPORT = SupportFigures(
    median_samples=10.0,
    lowest_tenth_samples=3.0,
    thin_share=0.01,
    effective_samples=300.0,
    effective_share=0.3,
    truncation=0.01,
    lost_starts=0.0,
    worst_states=(),
)


LIMIT = LimitFinding("abs(x)<0.35", 0.01, 0.02, 0.4, 5000.0, 100.0, True)


STRESS = StressFigures(
    task="balance",
    n_rigs=200,
    n_held=196,
    low=0.95,
    high=0.99,
    seconds=20.0,
    voltage_limit_volt=5.0,
    fallen=4,
    off_rail=0,
    no_number=0,
    factors=(
        FactorFigures("input_gain", "m/s²/V", 0.95, 1.43, (0.94, 1.0, 1.0), True),
        FactorFigures("sensor_noise", "counts", 0.0, 1.0, (1.0, 0.97, 0.97), False),
    ),
)


FOLLOWED = TrajectoryFigures(
    n_steps=1000,
    n_trajectories=64,
    lasting=0.95,
    ended=0.0,
    left=0.05,
    ends_are_bad=True,
    succeeding=0.95,
    succeeding_low=0.87,
    succeeding_high=0.98,
    wanted="last",
    wanted_is_known=True,
    median_steps=240.0,
    ends_by="x",
    change=0.02,
    fast=0.4,
    score=812.5,
    model_error=0.01,
    n_earlier_steps=0,
)
