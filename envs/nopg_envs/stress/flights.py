"""One policy on many rigs at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nopg_envs.cartpole.batch import CartPoleBatch
from nopg_envs.cartpole.options import SLOWEST_PHYSICS_HZ, CartPoleOptions
from nopg_envs.checks import is_count, real_number
from nopg_envs.stress.outcome import ACTION, ANGLE, DOWN, HELD, RAIL, Outcome, StressTest, find_factors
from nopg_envs.stress.rigs import Rig, Sensors, draw_rigs, quantities

#: of observations x, sin θ, cos θ, ẋ, θ̇, (m, 5) in float32; gives volts, (m,) or (m, 1)
Policy = Callable[[np.ndarray], Any]

# A pole counts as upright within 18°, and a swing-up as done if it stays there to the end for this long.
UPRIGHT_COSINE = 0.95
UPRIGHT_S = 5.0


def stress_test(
    policy: Policy,
    *,
    task: str = "balance",
    n_rigs: int = 200,
    seconds: float = 20.0,
    start: str = "operator",
    parameters: Any = None,
    voltage_limit_volt: float = 5.0,
    control_hz: float = 50.0,
    theta_limit_rad: float | None = None,
    seed: int = 0,
) -> StressTest:
    """
    Fly a policy on rigs whose parameters, delay, friction, voltage offset, sensor noise and encoder slips are drawn around
    what was identified. The same arguments give the same result.

    Balancing holds if to the end the pole has not passed ``theta_limit_rad`` and the cart not left its rail; swinging up if
    the cart has not left its rail and the pole is upright (cos θ > 0.95) all through the last 5 s.

    :param policy: from observations x, sin θ, cos θ, ẋ, θ̇, (m, 5), to volts, (m, 1)
    :param task: ``"balance"`` or ``"swing_up"``
    :param n_rigs: how many rigs
    :param seconds: length of each flight
    :param start: ``"operator"`` or ``"paper"``
    :param parameters: what was identified: a set's name, a YAML file of `nopg_envs.identify`, parameters, or fields of them
    :param voltage_limit_volt: larger voltages are cut
    :param control_hz: how often the policy is asked
    :param theta_limit_rad: angle from upright at which a balanced pole counts as fallen, the task's by default
    :param seed: of everything
    """
    if not is_count(n_rigs):
        raise ValueError(f"n_rigs: must be a positive count, got {n_rigs!r}")
    if not is_count(seed, least=0):
        raise ValueError(f"seed: must be a whole number from 0 on, got {seed!r}")
    control_hz = real_number("control_hz", control_hz)
    options = CartPoleOptions(
        task=task,
        parameters=parameters,
        start=start,
        theta_limit_rad=theta_limit_rad,
        control_hz=control_hz,
        physics_hz=_physics_hz(control_hz),
        voltage_limit_volt=voltage_limit_volt,
    )
    seconds = real_number("seconds", seconds)
    shortest_s = UPRIGHT_S if task == "swing_up" else 1.0 / control_hz
    if not shortest_s <= seconds < math.inf:
        raise ValueError(f"seconds: must be at least {shortest_s:g} for this task, got {seconds}")
    rigs = draw_rigs(options, int(n_rigs), seconds, int(seed))
    outcomes = fly(policy, rigs, options, round(seconds * control_hz))
    held = np.array([outcome.fate == HELD for outcome in outcomes])
    drawn = quantities(rigs, options)
    return StressTest(
        task=task,
        start=start,
        seconds=seconds,
        control_hz=control_hz,
        voltage_limit_volt=options.voltage_limit_volt,
        seed=int(seed),
        outcomes=outcomes,
        factors=find_factors(drawn, held, int(seed)),
        values={quantity.name: quantity.values for quantity in drawn},
    )


def fly(policy: Policy, rigs: Sequence[Rig], options: CartPoleOptions, n_steps: int) -> tuple[Outcome, ...]:
    """
    :param policy: asked for all rigs at once that still fly
    :param rigs: to fly on
    :param options: task, rates and limits
    :param n_steps: control steps of a flight
    :return: what became of each
    """
    batch = CartPoleBatch(options, len(rigs), max(rig.parameters.input_delay_s for rig in rigs))
    sensors = Sensors(rigs, options)
    parameters = [rig.parameters for rig in rigs]
    batch.place(range(len(rigs)), parameters, [rig.start for rig in rigs], sensors.at_start())
    rail_ends = np.array([own.rail_length_m / 2.0 for own in parameters])
    bounds = np.array([options.voltage_bound(own) for own in parameters])
    fates, ends_s = np.full(len(rigs), HELD, dtype=object), np.full(len(rigs), n_steps / options.control_hz)
    upright_from = n_steps - round(UPRIGHT_S * options.control_hz) if options.task == "swing_up" else n_steps + 1
    for step in range(n_steps):
        flying = np.flatnonzero(fates == HELD)
        if not len(flying):
            break
        volts = np.zeros(len(rigs))
        volts[flying] = np.asarray(policy(batch.observations()[flying]), dtype=np.float64).reshape(len(flying))
        no_number = ~np.isfinite(volts)
        # What has ended moves on unheeded, without a voltage.
        volts[no_number] = 0.0
        batch.hold(np.clip(volts, -bounds, bounds), sensors.errors(step))
        x_peak, theta_peak = batch.peaks()
        fallen_now = (step + 1 >= upright_from) & ~(np.cos(batch.positions[1]) > UPRIGHT_COSINE)
        # Not within, rather than beyond: a state that is not a number ends a flight too. The gravest comes last.
        for fate, ended in (
            (DOWN, fallen_now),
            (ANGLE, ~(theta_peak <= options.theta_limit)),
            (RAIL, ~(x_peak <= rail_ends)),
            (ACTION, no_number),
        ):
            fates[flying[ended[flying]]] = fate
        ends_s[flying[fates[flying] != HELD]] = (step + 1) / options.control_hz
    return tuple(Outcome(str(fate), float(end_s)) for fate, end_s in zip(fates, ends_s, strict=True))


def _physics_hz(control_hz: float) -> float:
    """The slowest rate that the control rate divides."""
    if not 0 < control_hz < math.inf:
        raise ValueError(f"control_hz: must be positive, got {control_hz}")
    return control_hz * math.ceil(SLOWEST_PHYSICS_HZ / control_hz)
