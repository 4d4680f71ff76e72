"""All that follows from data and settings, and nothing of a policy. Change an input, and make another one."""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.bellman.action_noise import independent_normals, spread_normals
from sb3_nopg.bellman.preparation import build_problem
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.problem_size import available_memory, check_memory, size_of
from sb3_nopg.bellman.settings import EstimatorSettings
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset, check_dataset
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.kernels.bandwidth import Bandwidths, select_bandwidths
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.prediction.starts import Starts

# What a model of other data takes from the user's settings; coordinates and the like it takes from the first model.
_OF_ANY_DATA = ("limits", "reward", "n_nodes", "seed")


@dataclass(frozen=True, eq=False)
class Estimator:
    """
    :param dataset: transitions to estimate from
    :param settings: of the estimate
    :param starts: where the task starts
    :param epoch: how often the draws were made
    :param first: the estimator whose rules are taken over, where this one is on other data
    """

    dataset: TransitionDataset
    settings: EstimatorSettings
    starts: Starts
    epoch: int = 0
    first: "Estimator | None" = None
    _kept_problem: BellmanProblem | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # What can be prepared again stays behind when a model is copied: sparse tensors cannot be.
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, "_kept_problem": None}

    @cached_property
    def bandwidths(self) -> Bandwidths:
        """Of the three kernels."""
        data, samples = self.dataset, self.settings.samples
        return select_bandwidths(
            data.observations,
            data.actions,
            data.next_observations,
            state=samples.state_bandwidth,
            action=samples.action_bandwidth,
            next_state=samples.next_state_bandwidth,
            state_factor=samples.state_bandwidth_factor,
            action_factor=samples.action_bandwidth_factor,
            next_state_factor=samples.next_state_bandwidth_factor,
        )

    @property
    def problem(self) -> BellmanProblem:
        """The Bellman equation on the samples, with its neighbour lists."""
        return self._prepared[0]

    @property
    def action_noise(self) -> th.Tensor | None:
        """Draws for the policy's actions at the queries of the problem, (m, a, d_a); None for a deterministic policy."""
        return self._prepared[1]

    @cached_property
    def _prepared(self) -> tuple[BellmanProblem, th.Tensor | None]:
        if self.first is not None:
            # The same draws at all times, because returns on these data are compared.
            problem = self._build(th.Generator().manual_seed(self.settings.seed))
            return problem, self.noise_for(len(problem.queries))
        generator = self._generator()
        problem = self._build(generator) if self._kept_problem is None else self._kept_problem
        # Each process draws the noise of all, so that it does not matter how many there are.
        noise = self._draw_actions(problem.n_queries, generator)
        return problem, None if noise is None else problem.own_queries(noise)

    def _build(self, generator: th.Generator) -> BellmanProblem:
        dataset, settings, samples = self.dataset, self.settings, self.settings.samples
        size = size_of(settings, dataset, len(self.start_states), self.starts.processes)
        check_memory(size, available_memory(settings.device))
        noise = None
        if samples.n_next_state_samples > 1:
            shape = (len(dataset), samples.n_next_state_samples, dataset.observation_dim)
            noise = th.randn(shape, generator=generator, dtype=samples.dtype).to(settings.device)
        return build_problem(
            dataset,
            self.bandwidths,
            self.start_states,
            settings.gamma,
            noise,
            samples.dtype,
            settings.device,
            self.starts.processes,
            n_neighbors=samples.n_neighbors,
            truncation_tolerance=samples.truncation_tolerance,
            keep_largest=samples.keep_largest,
            kl_bound=samples.kl_bound,
            local_linear=samples.weights == "local_linear",
            pessimism=samples.pessimism,
        )

    def noise_for(self, n_queries: int) -> th.Tensor | None:
        """
        :param n_queries: m
        :return: draws for states that are not the problem's own, the same for every state, (m, a, d_a)
        """
        noise = self._draw_actions(1, self._generator())
        return None if noise is None else noise.expand(n_queries, -1, -1)

    def _generator(self) -> th.Generator:
        # On the CPU, whatever the device: every device gets the same draws.
        return th.Generator().manual_seed(self.settings.seed + self.epoch)

    def _draw_actions(self, n_queries: int, generator: th.Generator) -> th.Tensor | None:
        settings = self.settings
        if not settings.is_stochastic:
            return None
        shape = (n_queries, settings.samples.n_actions_at_queries, settings.action_space.shape[0])
        draws = spread_normals if settings.samples.spread_actions else independent_normals
        return draws(shape, generator, settings.samples.dtype).to(settings.device)

    @property
    def start_states(self) -> np.ndarray:
        """Where the task starts, (n₀, d_s)."""
        return self.starts.states

    @cached_property
    def model(self) -> ModelEstimator:
        """A model of the system, and all that follows from it."""
        settings, dataset = self.settings, self.dataset
        if dataset.action_space is None and not self._actions_are_all_there_is:
            # Other data than the policy's own may hold actions that it cannot take.
            low = np.minimum(settings.action_space.low, dataset.actions.min(axis=0))
            high = np.maximum(settings.action_space.high, dataset.actions.max(axis=0))
            dataset = replace(dataset, action_space=spaces.Box(low, high, dtype=low.dtype.type))
        given = {**settings.model_kwargs, "seed": settings.seed % 2**31}
        like = None
        if self.first is not None:
            # Another model of the same system: its own choices, in the same coordinates.
            like = self.first.model.dynamics
            given = {name: value for name, value in given.items() if name in _OF_ANY_DATA}
        return ModelEstimator.fit(dataset, self.start_states, settings.gamma, settings.device, like, **given)

    @property
    def _actions_are_all_there_is(self) -> bool:
        """Whether the action space was inferred from the data: nobody has said that larger actions do not exist."""
        varied = bool(np.ptp(self.dataset.actions, axis=0).all())
        return self.first is None and varied and spaces_of(self.dataset)[1] == self.settings.action_space

    @property
    def dynamics(self) -> DynamicsModel:
        """The model of the system."""
        return self.model.dynamics

    def on(self, dataset: TransitionDataset) -> "Estimator":
        """
        :param dataset: of as many dimensions; its actions may go beyond what policies can do
        :return: an estimator on these data, from the same start states, by the same rules
        """
        check_dataset(dataset)
        given, own = ((data.observation_dim, data.action_dim) for data in (dataset, self.dataset))
        if given != own:
            found = f"{given} state and action dimensions where the model has {own}"
            raise InputError("dataset", found, "Give data with the same dimensions")
        # Of the first draws, however often training has made others: returns on these data are compared.
        return replace(self, dataset=dataset, first=self, epoch=0, _kept_problem=None)

    def redrawn(self) -> "Estimator":
        """The same with other draws. Only moved next states need new neighbours."""
        moved = self.settings.samples.n_next_state_samples > 1
        prepared = self.__dict__.get("_prepared")
        other = replace(self, epoch=self.epoch + 1, _kept_problem=None if moved or prepared is None else prepared[0])
        # These do not depend on the draws, and are searched for.
        other.__dict__["bandwidths"] = self.bandwidths
        return other
