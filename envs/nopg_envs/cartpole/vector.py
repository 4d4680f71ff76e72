"""Many Quanser cart-poles at once, as Gymnasium's vector environments."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from nopg_envs.cartpole.batch import CartPoleBatch
from nopg_envs.cartpole.env import draw_noise
from nopg_envs.cartpole.options import CartPoleOptions, check_reset_options
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.starts import State
from nopg_envs.checks import is_count, real_array


class CartPoleVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """
    The carts of `QuanserCartPoleBalanceEnv` or `QuanserCartPoleSwingUpEnv`, computed together on arrays. Spaces, options,
    starts and numbers are theirs: the same as ``gymnasium.vector.SyncVectorEnv`` over as many of them, each cart with a
    generator of its own, but faster.

    A cart whose episode ended starts over with the next step, which ignores its action and gives it no reward
    (``AutoresetMode.NEXT_STEP``).

    ``reset(seed=7)`` seeds the carts with 7, 8, …; a list gives each its own. ``reset(options={"state": ...})`` takes one
    state for all carts, (4,), or one for each, (num_envs, 4).

    :param num_envs: number of carts
    :param max_episode_steps: after how many steps an episode is truncated, None for never
    :param options: fields of `CartPoleOptions`, all of them keywords; ``task="balance"`` or ``"swing_up"`` among them
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, max_episode_steps: int | None = None, **options: Any):
        if not is_count(num_envs):
            raise ValueError(f"num_envs: must be a positive count, got {num_envs!r}")
        check_episode_length(max_episode_steps)
        self.options = CartPoleOptions(**options)
        self.num_envs = int(num_envs)
        self.max_episode_steps = max_episode_steps
        self.single_action_space = self.options.action_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = self.options.observation_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.state_space = self.options.state_space()
        self.parameters: list[CartPoleParameters] = [self.options.nominal] * num_envs

        assert self.options.randomize is not None
        longest_delay = max((self.options.nominal.input_delay_s, *self.options.randomize.get("input_delay_s", ())))
        self._batch = CartPoleBatch(self.options, num_envs, longest_delay)
        self._generators: list[np.random.Generator] = []
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._n_steps = np.zeros(num_envs, dtype=np.int64)
        self._voltages, self._rail_ends, self._voltage_bounds = np.zeros((3, num_envs))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._seed(seed)
        begun = [
            self.options.begin(generator, asked)
            for generator, asked in zip(self._generators, self._asked_of_each(options), strict=True)
        ]
        self._place(list(range(self.num_envs)), begun)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        return self._batch.observations(), self._infos(np.full(self.num_envs, None, dtype=object))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self._generators:
            raise ResetNeeded("Call reset() before step()")
        asked = self._volts(actions)
        starting = self._ended
        np.clip(asked, -self._voltage_bounds, self._voltage_bounds, out=self._voltages)
        self._batch.hold(self._voltages, self._draw_noise(starting))
        self._n_steps += 1
        terminated, reasons = self._terminations(starting)
        truncated = np.zeros_like(terminated)
        if self.max_episode_steps is not None:
            truncated = (self._n_steps >= self.max_episode_steps) & ~starting
        carts = np.flatnonzero(starting).tolist()
        if carts:
            self._place(carts, [self.options.begin(self._generators[cart]) for cart in carts])
        offset = self.options.reward_offset
        rewards = np.where(starting, 0.0, (np.cos(self._batch.positions[1]) + offset) / (1.0 + offset))
        self._ended = terminated | truncated
        return self._batch.observations(), rewards, terminated, truncated, self._infos(reasons)

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seed = [int(seed) + cart for cart in range(self.num_envs)]
        if seed is None and self._generators:
            return
        seeds = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: one for each of {self.num_envs} carts, got {len(seeds)}")
        before = self._generators or [seeding.np_random(None)[0] for _ in seeds]
        # No seed leaves a generator as it is.
        self._generators = [old if own is None else seeding.np_random(own)[0] for own, old in zip(seeds, before, strict=True)]

    def _asked_of_each(self, options: dict[str, Any] | None) -> list[dict[str, Any] | None]:
        check_reset_options(options)
        states = real_array("options['state']", options["state"]) if options and "state" in options else np.zeros(4)
        if states.ndim < 2:
            return [options] * self.num_envs
        if states.shape != (self.num_envs, 4):
            raise ValueError(f"options['state'] must have shape (4,) or ({self.num_envs}, 4), got {states.shape}")
        return [{**(options or {}), "state": state} for state in states]

    def _place(self, carts: Sequence[int], begun: Sequence[tuple[CartPoleParameters, State]]) -> None:
        parameters, states = [own for own, _ in begun], [state for _, state in begun]
        noise = np.zeros((len(carts), 2))
        if self.options.sensor_noise > 0.0:
            for row, cart in enumerate(carts):
                noise[row] = draw_noise(self.options, parameters[row], 1, self._generators[cart])[0]
        self._batch.place(carts, parameters, states, noise)
        for cart, own in zip(carts, parameters, strict=True):
            self.parameters[cart] = own
            self._rail_ends[cart], self._voltage_bounds[cart] = own.rail_length_m / 2.0, self.options.voltage_bound(own)
        self._voltages[carts], self._n_steps[carts] = 0.0, 0

    def _volts(self, actions: Any) -> np.ndarray:
        array = real_array("actions", actions)
        if array.shape != (self.num_envs, 1):
            raise ValueError(f"actions: must have shape ({self.num_envs}, 1), got {array.shape}")
        volts = array[:, 0]
        if not np.isfinite(volts).all():
            raise ValueError(f"actions: must be finite, not so for carts {np.flatnonzero(~np.isfinite(volts)).tolist()}")
        self.options.check_voltage("actions", float(np.abs(volts).max()))
        return volts

    def _draw_noise(self, starting: np.ndarray) -> np.ndarray | None:
        if self.options.sensor_noise == 0.0:
            return None
        noise = np.zeros((self.num_envs, self.options.n_physics_steps, 2))
        for cart in np.flatnonzero(~starting).tolist():
            noise[cart] = draw_noise(self.options, self.parameters[cart], self.options.n_physics_steps, self._generators[cart])
        return noise.transpose(1, 2, 0)

    def _terminations(self, starting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Not within, rather than beyond: a state that is not a number ends the episode too.
        x_peak, theta_peak = self._batch.peaks()
        left = ~((x_peak <= self._rail_ends) | starting)
        ended = ~((theta_peak <= self.options.theta_limit) | starting) | left
        # Empty memory for objects holds None.
        reasons = np.empty(self.num_envs, dtype=object)
        if ended.any():
            reasons[ended] = "angle"
            reasons[left] = "rail"
        return ended, reasons

    def _infos(self, reasons: np.ndarray) -> dict[str, Any]:
        columns = {"state": self._batch.states(), "voltage_volt": self._voltages.copy(), "termination": reasons}
        everyone = {f"_{name}": np.ones(self.num_envs, dtype=np.bool_) for name in columns}
        return {**columns, **everyone}


def check_episode_length(max_episode_steps: Any) -> None:
    """
    :param max_episode_steps: a positive count of steps, or None
    """
    if max_episode_steps is not None and not is_count(max_episode_steps):
        raise ValueError(f"max_episode_steps: must be a positive count, or None for no limit, got {max_episode_steps!r}")


BalanceVectorEnv = partial(CartPoleVectorEnv, task="balance")
SwingUpVectorEnv = partial(CartPoleVectorEnv, task="swing_up")
