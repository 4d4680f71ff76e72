"""Recordings of a simulated rig whose parameters are known, in the layout of a real one."""

from pathlib import Path

import numpy as np

from nopg_envs.cartpole.options import SLOWEST_PHYSICS_HZ, CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import CartPoleSimulator

DT_S = 0.004
# Of the simulation; a delay is a multiple of it.
FINE_S = 0.001
# Another rig than the one that a search for its parameters starts from.
OTHER_RIG = CartPoleParameters(
    input_gain=1.6,
    cart_damping=9.0,
    cart_coulomb=0.30,
    pole_coupling=0.025,
    inverse_pole_length=3.8,
    pole_damping=0.12,
    pole_coulomb=0.10,
    voltage_offset=-0.05,
    input_delay_s=0.010,
)


def chirp(duration_s: float, amplitude: float = 3.0, fastest_hz: float = 3.0) -> np.ndarray:
    """Voltage that falls from fast to slow, as on the real rig."""
    t = np.arange(round(duration_s / DT_S)) * DT_S
    return -amplitude * np.sin(2 * np.pi * (fastest_hz * t - 0.45 * fastest_hz * t**2 / duration_s))


def record(
    path: Path,
    parameters: CartPoleParameters,
    voltage: np.ndarray,
    start: tuple[float, float, float, float] = (0.0, np.pi - 0.4, 0.0, 0.0),
    *,
    quantised: bool = True,
    noise_seed: int | None = None,
    angle_zero: float = 0.0,
    fine_s: float = FINE_S,
) -> Path:
    """
    Simulate in small steps, in which the voltage is looked up at its delayed time, and write what the encoders would read.

    The single cart is not integrated by what fits and compares batches of them, and takes a fifth of the time.

    :param fine_s: the steps
    :param noise_seed: also disturb the motor's voltage by 0.05 V from sample to sample, and each reading by a count
    """
    rng = np.random.default_rng(noise_seed)
    n_fine = round(DT_S / fine_s)
    applied = voltage + (0.05 * rng.standard_normal(len(voltage)) if noise_seed is not None else 0.0)
    # The simulator takes no steps that are longer.
    physics_hz = max(1.0 / fine_s, SLOWEST_PHYSICS_HZ)
    options = CartPoleOptions(task="swing_up", rig_effects=False, control_hz=1.0 / fine_s, physics_hz=physics_hz)
    simulator = CartPoleSimulator(options, parameters.replace(input_delay_s=0.0), start)
    states = [start]
    for step in range(len(voltage) * n_fine):
        sample = int(np.floor((step * fine_s + 1e-9 - parameters.input_delay_s) / DT_S))
        simulator.hold(float(applied[max(0, sample)]))
        if (step + 1) % n_fine == 0:
            states.append(simulator.state)
    true = np.array(states)
    x, theta = true[:, 0], true[:, 1] + angle_zero
    if noise_seed is not None:
        x = x + parameters.cart_count_m * rng.standard_normal(len(x))
        theta = theta + parameters.pole_count_rad * rng.standard_normal(len(x))
    if quantised:
        x = np.round(x / parameters.cart_count_m) * parameters.cart_count_m
        theta = np.round(theta / parameters.pole_count_rad) * parameters.pole_count_rad
    arrays = {"x": x, "theta": (theta + np.pi) % (2 * np.pi) - np.pi, "u": voltage, "dt": DT_S}
    if not quantised:
        arrays |= {"x_dot_sg": true[:, 2], "theta_dot_sg": true[:, 3]}
    np.savez(path, **arrays)
    return path


def noisy_recordings(folder: Path, n: int = 4) -> list[Path]:
    """Of ``OTHER_RIG``, four at the most, through encoders, each with its own pole start, amplitude and angle zero."""
    runs = [(4.5, 3.0, 0.4, 0.0), (3.5, 3.5, 1.2, -0.01), (5.0, 2.5, -2.2, 0.008), (4.0, 3.2, 2.0, 0.0)]
    return [
        record(
            folder / f"run{number}.npz",
            OTHER_RIG,
            chirp(4.0, amplitude, fastest),
            start=(-0.05, np.pi + angle, 0.0, 0.0),
            noise_seed=number,
            angle_zero=zero,
        )
        for number, (amplitude, fastest, angle, zero) in enumerate(runs[:n])
    ]
