"""
Where a policy will take the system, step by step, through a model of it (:mod:`sb3_nopg.dynamics`).

Trajectories go on until the task ends, or until they leave what was recorded: beyond that nobody knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.common.progress import Advance, nothing
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.stepping import Stepper
from sb3_nopg.dynamics.trajectories import draw_noise

#: states (m, d_s) to actions (m, d_a)
Actor = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Rollouts:
    """
    Predicted trajectories of m starts over up to T steps. What follows a trajectory's end is NaN.

    :param states: observations, (T + 1, m, d_s)
    :param actions: (T, m, d_a)
    :param rewards: (T, m)
    :param n_steps: that each was followed, (m,)
    :param ended: whether the task ended there, (m,)
    :param left_by: column of the observation by which it left the recorded range, -1 if it did not, (m,)
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    n_steps: np.ndarray
    ended: np.ndarray
    left_by: np.ndarray

    @property
    def last_states(self) -> np.ndarray:
        """Where each ends, (m, d_s)."""
        return self.states[self.n_steps, np.arange(len(self.n_steps))]

    @property
    def lasting(self) -> np.ndarray:
        """Which of them went on to the last step, (m,)."""
        return ~self.ended & (self.left_by < 0)

    def columns(self, chosen: slice) -> "Rollouts":
        """
        :param chosen: trajectories to look at
        """
        return Rollouts(
            self.states[:, chosen],
            self.actions[:, chosen],
            self.rewards[:, chosen],
            self.n_steps[chosen],
            self.ended[chosen],
            self.left_by[chosen],
        )

    def total_rewards(self, unknown_reward: float, worst_end: float = 0.0) -> np.ndarray:
        """
        Undiscounted, over all T steps; an end of the task earns nothing more.

        :param unknown_reward: of each step after a trajectory has left the recorded range
        :param worst_end: that may have come to it there instead, once
        :return: (m,)
        """
        left = self.left_by >= 0
        unknown = np.minimum((len(self.rewards) - self.n_steps) * unknown_reward, worst_end)
        return self.known_rewards + np.where(left, unknown, 0.0)

    @property
    def known_rewards(self) -> np.ndarray:
        """Undiscounted, of the steps that each was followed, (m,)."""
        return np.asarray(np.nansum(self.rewards, axis=0))


def together(parts: Sequence[Rollouts]) -> Rollouts:
    """
    :param parts: trajectories over as many steps
    :return: all of them as if of one
    """
    return Rollouts(
        *(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("states", "actions", "rewards")),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("n_steps", "ended", "left_by")),
    )


def roll_out(
    model: DynamicsModel,
    actors: Sequence[Actor],
    starts: np.ndarray,
    n_steps: int,
    noise_seed: int | None = None,
    *,
    advance: Advance = nothing,
) -> list[Rollouts]:
    """
    :param model: of the system, on the processor
    :param actors: policies, followed side by side
    :param starts: observations to start from, of each, (m, d_s)
    :param n_steps: to follow at most, T
    :param noise_seed: of what is added to each step, the same for all policies; None for the mean alone
    :param advance: called after each step
    """
    n, n_actors = len(starts), len(actors)
    states = model.coordinates.encode(th.from_numpy(np.array(starts, dtype=np.float64))).numpy()
    noise = None
    if noise_seed is not None:
        noise = draw_noise(model, n_steps, n, th.Generator().manual_seed(noise_seed)).numpy()
    run = _Run(model, np.tile(states, (n_actors, 1)), n_steps)
    for t in range(n_steps):
        if not len(run.going):
            break
        run.step(t, actors, None if noise is None else noise[t])
        advance()
    everything = run.rollouts()
    return [everything.columns(slice(number * n, (number + 1) * n)) for number in range(n_actors)]


class _Run:
    """Trajectories on their way; of those that are over nothing more is computed."""

    def __init__(self, model: DynamicsModel, states: np.ndarray, n_steps: int):
        self.model, self._stepper, n = model, Stepper(model), len(states)
        # Numbers of the trajectories that go on, and where these are.
        self.going, self._situation = np.arange(n), self._stepper.begin(states)
        self._states = np.full((n_steps + 1, n, states.shape[1]), np.nan)
        self._states[0] = states
        self._applied = np.full((n_steps, n, model.features.n_actions), np.nan)
        self._local_rewards = np.full((n_steps, n), np.nan)
        self._n_steps, self._ended, self._left_by = np.zeros(n, np.int64), np.zeros(n, bool), np.full(n, -1)

    def step(self, t: int, actors: Sequence[Actor], noise: np.ndarray | None) -> None:
        going, bounds = self.going, self.model.bounds
        asked = _actions(actors, self._stepper.observe(self._situation.states), going, self._states.shape[1])
        applied = self._stepper.applied(asked)
        drawn = None if noise is None else noise[going % len(noise)]
        self._situation, local_rewards = self._stepper.step(self._situation, applied, drawn)
        self._states[t + 1, going], self._applied[t, going] = self._situation.states, applied
        if local_rewards.shape[1]:
            self._local_rewards[t, going] = local_rewards[:, 0]
        self._n_steps[going] += 1
        moved = th.from_numpy(self._situation.states)
        ended, left = (flags.numpy() for flags in bounds.fate(moved))
        over = ended | left
        if over.any():
            self._ended[going[ended]] = True
            self._left_by[going[left]] = _columns_of(self.model)[bounds.farthest_out(moved[left]).numpy()]
            self.going, self._situation = going[~over], self._situation.rows(~over)

    def rollouts(self) -> Rollouts:
        model, states = self.model, th.from_numpy(self._states)
        if model.reward is None:
            rewards = self._local_rewards.clip(*model.reward_range)
        else:
            rewards = np.full(self._local_rewards.shape, np.nan)
            made = th.from_numpy(~np.isnan(self._states[1:]).any(axis=-1))
            of_steps = model.reward(states[:-1][made], th.from_numpy(self._applied)[made], states[1:][made])
            rewards[made.numpy()] = of_steps.numpy()
        observations = model.coordinates.decode(states).numpy()
        observations[np.isnan(self._states).any(axis=-1)] = np.nan
        return Rollouts(observations, self._applied, rewards, self._n_steps, self._ended, self._left_by)


def _actions(actors: Sequence[Actor], seen: np.ndarray, going: np.ndarray, n: int) -> np.ndarray:
    """What each actor does where its own trajectories are by now, (how many go on, d_a)."""
    ends = np.searchsorted(going, np.arange(1, len(actors)) * (n // len(actors)))
    chosen = []
    for act, own in zip(actors, np.split(seen, ends), strict=True):
        if len(own):
            chosen.append(np.asarray(act(own), dtype=np.float64).reshape(len(own), -1))
    return np.concatenate(chosen)


def _columns_of(model: DynamicsModel) -> np.ndarray:
    """A column of the observation that stands for each coordinate, (d,)."""
    coordinates = model.coordinates
    return np.array([*coordinates.plain, *(i for i, _ in coordinates.angles)])
