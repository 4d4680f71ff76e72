"""The Quanser cart-pole as Gymnasium environments."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import NO_NOISE, CartPoleSimulator
from nopg_envs.checks import one_number


class QuanserCartPoleEnv(gym.Env[np.ndarray, np.ndarray]):
    """
    What both tasks share; see `QuanserCartPoleBalanceEnv` and `QuanserCartPoleSwingUpEnv`.

    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :param options: fields of `CartPoleOptions`, all of them keywords
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["human", "rgb_array"],
        "render_fps": 50,
        # What an exported policy tells a rig; "1" is the unit of a bare number.
        "observation_names": ("x", "sin_theta", "cos_theta", "x_dot", "theta_dot"),
        "observation_units": ("m", "1", "1", "m/s", "rad/s"),
        "action_names": ("voltage",),
        "action_units": ("V",),
    }
    task = "balance"

    def __init__(self, render_mode: str | None = None, **options: Any):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode: unknown {render_mode!r}; known are {', '.join(self.metadata['render_modes'])}")
        self.options = CartPoleOptions(**{"task": self.task, **options})
        control_hz = self.options.control_hz
        self.metadata = {**self.metadata, "render_fps": control_hz, "control_period_s": 1.0 / control_hz}
        self.render_mode = render_mode
        self.action_space = self.options.action_space()
        self.observation_space = self.options.observation_space()
        self.state_space = self.options.state_space()
        self.parameters: CartPoleParameters = self.options.nominal
        self._simulator: CartPoleSimulator | None = None
        self._voltage, self._voltage_bound = 0.0, 0.0
        self._renderer: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        # All or nothing: a start that is refused leaves the environment as it was.
        parameters, state = self.options.begin(self.np_random, options)
        noise = self._draw_noise(parameters, 1)
        self._simulator = CartPoleSimulator(self.options, parameters, state, NO_NOISE if noise is None else noise[0])
        self.parameters = parameters
        self._voltage, self._voltage_bound = 0.0, self.options.voltage_bound(parameters)
        if self.render_mode == "human":
            self.render()
        return self._observe(self._simulator), self._info(self._simulator)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        simulator = self._simulator
        if simulator is None:
            raise ResetNeeded("Call reset() before step()")
        asked = one_number("action", action)
        self.options.check_voltage("action", asked)
        bound = self._voltage_bound
        self._voltage = voltage = -bound if asked < -bound else min(asked, bound)
        simulator.hold(voltage, self._draw_noise(self.parameters, self.options.n_physics_steps))
        if self.render_mode == "human":
            self.render()
        terminated = simulator.termination is not None
        offset = self.options.reward_offset
        reward = (math.cos(simulator.state[1]) + offset) / (1.0 + offset)
        return self._observe(simulator), reward, terminated, False, self._info(simulator)

    def render(self) -> Any:
        if self.render_mode is None:
            gym.logger.warn("render() without a render_mode: choose 'rgb_array' or 'human' when the environment is made")
            return None
        simulator = self._simulator
        if simulator is None:
            raise ResetNeeded("Call reset() before render()")
        if self._renderer is None:
            self._renderer = self._make_renderer()
        x, theta, _, _ = simulator.state
        return self._renderer.render(x, theta, self._voltage)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _make_renderer(self) -> Any:
        assert self.render_mode is not None
        # Drawing needs pygame, which simulating does not.
        from nopg_envs.rendering import CartPoleRenderer

        limit = self.options.theta_limit
        return CartPoleRenderer(
            self.parameters.rail_length_m,
            # A uniform rod swings like a simple pendulum of two thirds of its length.
            1.5 / self.parameters.inverse_pole_length,
            self.options.voltage_limit_volt,
            theta_limit_rad=limit if math.isfinite(limit) else None,
            render_mode=self.render_mode,
            fps=self.metadata["render_fps"],
        )

    def _draw_noise(self, parameters: CartPoleParameters, n_samples: int) -> list[list[float]] | None:
        if self.options.sensor_noise == 0.0:
            return None
        return draw_noise(self.options, parameters, n_samples, self.np_random).tolist()

    def _observe(self, simulator: CartPoleSimulator) -> np.ndarray:
        x, theta, x_dot, theta_dot = simulator.measured
        return np.array([x, math.sin(theta), math.cos(theta), x_dot, theta_dot], dtype=np.float32)

    def _info(self, simulator: CartPoleSimulator) -> dict[str, Any]:
        return {
            "state": np.array(simulator.state),
            "voltage_volt": self._voltage,
            "termination": simulator.termination,
        }


class QuanserCartPoleBalanceEnv(QuanserCartPoleEnv):
    """
    Keep the pole of a Quanser IP02 linear cart upright. θ = 0 is upright; +θ tips the bob towards −x, and positive volts drive
    the cart to +x.

    ## Action space

    | index | action | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | motor voltage | -5 | 5 | V |

    ``voltage_limit_volt`` changes the range, up to the amplifier's 24 V. Voltages beyond it are cut.

    ## Observation space

    | index | observation | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | x, 0 at the centre of the rail | -0.607 | 0.607 | m |
    | 1 | sin θ | -1 | 1 | |
    | 2 | cos θ | -1 | 1 | |
    | 3 | ẋ | -10 | 10 | m/s |
    | 4 | θ̇ | -100 | 100 | rad/s |

    It is what the rig's computer sees: x and θ in whole encoder counts, and velocities that a filter makes of them, 20 ms
    late.
    The bounds are out of reach: x ends episodes at ±0.407 m, and is a little farther in the last observation.

    ## Reward and end

    ``cos θ`` of the state reached. Terminal when |θ| passes ``theta_limit_rad`` (0.2; the paper's is ``math.radians(3)``) or
    the cart leaves its rail (|x| > 0.407 m), at any physics step. Truncated after 10,000 steps (200 s) when made by its id.
    ``info`` has the true ``state`` (x, θ, ẋ, θ̇; θ counts whole turns), ``voltage_volt`` as it was passed on to the motor, and
    ``termination``: None, ``"angle"`` or ``"rail"``.

    ## Start

    ``start="paper"``: still, upright, at the centre. ``start="operator"``: as a person starts it, |x| ≤ a quarter of the rail,
    |θ| ≤ 0.03 rad, |ẋ| ≤ 0.15 m/s, |θ̇| ≤ 0.2 rad/s, uniformly. For one episode: ``reset(options={"start": "operator"})``, or
    anywhere: ``reset(options={"state": (x, theta, x_dot, theta_dot)})``. ``state_space`` holds the ranges that a grid of
    queries covers. Before the first command the motor has no voltage.

    ## Physics

    Equations of motion in `CartPoleParameters`, integrated by the Runge-Kutta method of fourth order at ``physics_hz`` (500)
    under voltages that change at ``control_hz`` (50). ``parameters`` is ``"identified"`` (fitted to recordings of a rig, the
    default), ``"datasheet"``, ``"long_pole"``, a YAML file, a dict of fields that differ from the identified ones, or
    `CartPoleParameters`.
    ``randomize={"cart_damping": (5.0, 8.0)}`` draws fields at every reset; ``env.unwrapped.parameters`` are the current ones.

    Dry friction grows in proportion to the speed up to 2 mm/s, and is constant beyond. Below break-away the cart therefore
    creeps where a real one sticks: at 0 V the offset of the voltage moves it by 4 mm in 10 s (0.41 mm/s).

    What a rig adds can be taken away piece by piece, or all at once by ``rig_effects=False``:

    | keyword | what it adds |
    | --- | --- |
    | ``coulomb_friction`` | dry friction of cart and pole, offset of the voltage |
    | ``input_delay`` | the motor gets a voltage 6 ms after it was asked for |
    | ``encoder_counts`` | x and θ in whole counts, 22.7 µm and 2π/4096 rad |
    | ``filtered_velocities`` | ẋ and θ̇ through 50 s/(s + 50), at the physics rate, instead of the true ones |
    | ``voltage_saturation`` | voltages end at the limit; without it those beyond 10,000 V are refused |
    | ``sensor_noise`` | 0 by default: standard deviation of noise on x and θ, in counts |

    ## Version history

    * v0: first version
    """


class QuanserCartPoleSwingUpEnv(QuanserCartPoleEnv):
    """
    Swing the pole of a Quanser IP02 linear cart up from hanging, and keep it there. Cart, keywords, ``info``, physics and rig
    effects are those of `QuanserCartPoleBalanceEnv`.

    ## Action space

    | index | action | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | motor voltage | -5 | 5 | V |

    ## Observation space

    | index | observation | low | high | unit |
    | --- | --- | --- | --- | --- |
    | 0 | x, 0 at the centre of the rail | -0.607 | 0.607 | m |
    | 1 | sin θ, θ = 0 upright | -1 | 1 | |
    | 2 | cos θ | -1 | 1 | |
    | 3 | ẋ | -10 | 10 | m/s |
    | 4 | θ̇ | -100 | 100 | rad/s |

    ## Reward and end

    ``(1 + cos θ) / 2`` of the state reached: 1 upright, 0 hanging, never negative, so that an early end is never better than
    going on. Terminal when the cart leaves its rail (|x| > 0.407 m); the angle is free. Truncated after 500 steps (10 s) when
    made by its id.

    ## Start

    ``start="paper"``: hanging still at the centre. ``start="operator"``: hanging, with the operator's spread about it.
    Anywhere: ``reset(options={"state": (x, theta, x_dot, theta_dot)})``.

    ## Version history

    * v1: reward ``(1 + cos θ) / 2``
    * v0: first version, reward ``cos θ``. Hanging cost 1 a step, which running off the rail ended: removed
    """

    # What is wanted in the end, as reports ask it of predicted trajectories: within 18° of upright.
    metadata = {**QuanserCartPoleEnv.metadata, "goal": "cos_theta > 0.95"}  # noqa: RUF012
    task = "swing_up"


def draw_noise(
    options: CartPoleOptions, parameters: CartPoleParameters, n_samples: int, generator: np.random.Generator
) -> np.ndarray:
    """
    :param options: how strong
    :param parameters: how long a count is
    :param n_samples: number of physics steps
    :param generator: to draw from
    :return: noise on x and θ, m and rad, (n_samples, 2)
    """
    scale = options.sensor_noise * np.array([parameters.cart_count_m, parameters.pole_count_rad])
    return scale * generator.standard_normal((n_samples, 2))
