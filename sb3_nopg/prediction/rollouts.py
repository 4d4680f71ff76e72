"""
Where a policy will take the system, step by step, through a model of it (:mod:`sb3_nopg.dynamics`).

Trajectories go on until the task ends, or until they leave what was recorded: beyond that nobody knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.trajectories import draw_noise, rest_actions

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
        return np.nansum(self.rewards, axis=0) + np.where(left, unknown, 0.0)


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
    model: DynamicsModel, actors: Sequence[Actor], starts: np.ndarray, n_steps: int, noise_seed: int | None = None
) -> list[Rollouts]:
    """
    :param model: of the system, on the processor
    :param actors: policies, followed side by side
    :param starts: observations to start from, of each, (m, d_s)
    :param n_steps: to follow at most, T
    :param noise_seed: of what is added to each step, the same for all policies; None for the mean alone
    """
    n, n_actors = len(starts), len(actors)
    generator = None if noise_seed is None else th.Generator().manual_seed(noise_seed)
    states = model.coordinates.encode(th.from_numpy(np.array(starts, dtype=np.float64))).repeat(n_actors, 1)
    run = _Run(model, states)
    with th.no_grad():
        for _ in range(n_steps):
            noise = None if generator is None else draw_noise(model, 1, n, generator)[0].repeat(n_actors, 1)
            if not bool(run.going.any()):
                break
            run.step(actors, noise)
    everything = run.rollouts(n_steps)
    return [everything.columns(slice(number * n, (number + 1) * n)) for number in range(n_actors)]


class _Run:
    """Trajectories on their way; of those that are over nothing more is computed."""

    def __init__(self, model: DynamicsModel, states: th.Tensor):
        self.model, self.states, self.n = model, states, len(states)
        self.going, self.ended = (th.ones(self.n, dtype=th.bool), th.zeros(self.n, dtype=th.bool))
        self.left_by, self.n_steps = th.full((self.n,), -1), th.zeros(self.n, dtype=th.long)
        self._earlier = rest_actions(model, self.n)
        self._nearest = th.zeros(self.n, dtype=th.long)
        if not model.nodes.single:
            self._nearest = model.nodes.interpolation.locate(states)
        self._columns = _columns_of(model)
        self._tape: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._first = model.coordinates.decode(states).numpy()

    def step(self, actors: Sequence[Actor], noise: th.Tensor | None) -> None:
        model, going = self.model, self.going
        states, d = self.states[going], model.coordinates.dim
        seen = model.coordinates.decode(states).numpy()
        applied = model.clip(th.from_numpy(_actions(actors, seen, going.numpy())))
        change = model.nodes.evaluate(states, model.features(applied, self._earlier[going]), self._nearest[going])
        moved = states + change[:, :d]
        if noise is not None:
            moved = moved + noise[going]
        moved = model.bounds.hold(moved)
        local = model.reward is None
        rewards = change[:, d].clamp(*model.reward_range) if local else model.reward(states, applied, moved)  # type: ignore[misc]
        ended, left = model.bounds.fate(moved)
        self._write(moved, applied, rewards)
        self.states[going] = moved
        self.n_steps[going] += 1
        self.ended[going] = ended
        self.left_by[going] = th.where(left, self._columns[model.bounds.farthest_out(moved)], -1)
        if model.features.n_earlier:
            self._earlier[going] = th.cat([applied, self._earlier[going]], dim=1)[:, : self._earlier.shape[1]]
        if not model.nodes.single:
            self._nearest[going] = model.nodes.interpolation.walk(moved, self._nearest[going])
        self.going = going & ~self.ended & (self.left_by < 0)

    def _write(self, states: th.Tensor, actions: th.Tensor, rewards: th.Tensor) -> None:
        found = (self.model.coordinates.decode(states), actions, rewards)
        row = []
        for values in found:
            full = np.full((self.n, *values.shape[1:]), np.nan)
            full[self.going.numpy()] = values.numpy()
            row.append(full)
        self._tape.append((row[0], row[1], row[2]))

    def rollouts(self, n_steps: int) -> Rollouts:
        shapes = (self._first.shape[1:], (self.model.features.n_actions,), ())
        parts = []
        for number, shape in enumerate(shapes):
            full = np.full((n_steps, self.n, *shape), np.nan)
            for t, row in enumerate(self._tape):
                full[t] = row[number]
            parts.append(full)
        states = np.concatenate([self._first[None], parts[0]])
        return Rollouts(states, parts[1], parts[2], self.n_steps.numpy(), self.ended.numpy(), self.left_by.numpy())


def _actions(actors: Sequence[Actor], seen: np.ndarray, going: np.ndarray) -> np.ndarray:
    """What each actor does where its own trajectories are by now, (how many go on, d_a)."""
    counts = [int(part.sum()) for part in np.split(going, len(actors))]
    chosen = []
    for act, own in zip(actors, np.split(seen, np.cumsum(counts)[:-1]), strict=True):
        if len(own):
            chosen.append(np.asarray(act(own), dtype=np.float64).reshape(len(own), -1))
    return np.concatenate(chosen)


def _columns_of(model: DynamicsModel) -> th.Tensor:
    """A column of the observation that stands for each coordinate, (d,)."""
    coordinates = model.coordinates
    return th.tensor([*coordinates.plain, *(i for i, _ in coordinates.angles)])
