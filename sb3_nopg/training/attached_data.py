"""The data that a model learns from: attached, held out in part, and turned into a Bellman equation when it is needed."""

import logging
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.preparation import build_problem, find_initial_states, split_off
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.problem_size import available_memory, check_memory, size_of
from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.buffer import FixedReplayBuffer, check_fits_spaces, spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.model import DynamicsModel, check_model_settings
from sb3_nopg.kernels.bandwidth import Bandwidths, select_bandwidths
from sb3_nopg.kernels.neighbors import NeighborCount
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import ModelEstimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judge import halves, steps_ahead
from sb3_nopg.training.checkpoint import ResumableAlgorithm
from sb3_nopg.training.course import OWN, Course, CourseSettings, recipes_for
from sb3_nopg.training.distributed import check_same_everywhere
from sb3_nopg.training.log import announce_tempting_ends, announce_thin_support
from sb3_nopg.training.offline_env import OfflineVecEnv, offline_vec_env

_logger = logging.getLogger(__name__)
# Share of its size that an observation must vary by for a policy on a model to see it at full size.
_LEAST_SPREAD = 0.01
# The nodes' equations are solved for one update after another: their values need not be better than the model.
_NODE_TOLERANCE = 1e-4
BandwidthChoice = str | float | list[float] | np.ndarray


class LearnsFromData(ResumableAlgorithm):
    """An algorithm with a fixed data set, and all that follows from the data alone."""

    if TYPE_CHECKING:
        policy: NOPGPolicy
        observation_space: spaces.Box
        action_space: spaces.Box
        variant: str
        state_bandwidth: BandwidthChoice
        action_bandwidth: BandwidthChoice
        next_state_bandwidth: BandwidthChoice
        state_bandwidth_factor: float | list[float] | np.ndarray
        action_bandwidth_factor: float | list[float] | np.ndarray
        next_state_bandwidth_factor: float | list[float] | np.ndarray
        n_neighbors: NeighborCount
        truncation_tolerance: float
        keep_largest: int | None
        kl_bound: float | None
        weights: str
        pessimism: float
        gamma: float
        precision: str
        n_action_samples: int
        n_next_state_samples: int
        normalize_observations: bool
        held_out: float | TransitionDataset | None
        keep: str
        bandwidths: Bandwidths | None
        held_out_data: TransitionDataset | None
        _training_data: TransitionDataset | None
        _problem: BellmanProblem | None
        _held_out_problem: BellmanProblem | None
        _noise: th.Tensor | None
        _noise_seed: int
        transitions: str
        horizon: str | float
        model_kwargs: dict[str, Any] | None
        solver_tolerance: float
        _estimator: ModelEstimator | None
        _held_out_evaluation: PolicyEvaluation | None
        _course: Course | None
        _course_before: dict[str, Any] | None
        _noise_epoch: int

        def _policy_actions(self, problem: BellmanProblem) -> th.Tensor: ...
        def return_on(self, problem: BellmanProblem) -> float: ...
        def new_policy(self) -> NOPGPolicy: ...
        def evaluation(self, dataset: TransitionDataset | None = None) -> PolicyEvaluation: ...

    def set_dataset(self, dataset: TransitionDataset) -> None:
        """
        Attach data to learn from, in place of any attached before. The policy keeps its parameters and its normalisation.

        :param dataset: must fit the model's spaces; if it does not, the model stays as it was
        """
        check_dataset(dataset)
        check_fits_spaces(dataset, self.observation_space, self.action_space)
        if self.initial_states is not None:
            check_states("initial_states", self.initial_states, dataset.observation_dim)
        elif dataset.episode_starts is None and (self.env is None or isinstance(self.env, OfflineVecEnv)):
            raise InputError(
                "initial_states",
                "neither given nor told by the data",
                "Pass initial_states=..., or a data set with episode_ids",
            )
        training_data, held_out_data = split_off(dataset, self.held_out)
        if self.transitions == "model":
            # What cannot be right is told here, and not in the midst of learn(); a model of all rows is made when needed.
            check_model_settings(training_data, self.model_kwargs or {})
            announce_tempting_ends(training_data, self.gamma, (self.model_kwargs or {}).get("reward"))
        bandwidths = self._bandwidths_for(training_data)
        if isinstance(self.n_neighbors, int | np.integer) and self.n_neighbors > len(training_data):
            warnings.warn(
                f"n_neighbors={self.n_neighbors} exceeds the {len(training_data)} samples: all are used", stacklevel=2
            )
        replay_buffer = FixedReplayBuffer(dataset, self.observation_space, self.action_space, self.device)
        if self.normalize_observations:
            self.policy.fit_normalization(dataset.observations, self._least_spread)
        self.dataset, self.bandwidths, self.replay_buffer = dataset, bandwidths, replay_buffer
        self._training_data, self.held_out_data = training_data, held_out_data
        self._problem, self._held_out_problem, self._start_states = None, None, None
        self._course_before, self._best_before = None, None
        self._estimator, self._course, self._held_out_evaluation, self._warm_start = None, None, None, WarmStart()
        if self.env is None:
            self.env = offline_vec_env(self.observation_space, self.action_space, dataset.observations[0], self.n_envs)

    def _bandwidths_for(self, dataset: TransitionDataset) -> Bandwidths:
        return select_bandwidths(
            dataset.observations,
            dataset.actions,
            dataset.next_observations,
            state=self.state_bandwidth,
            action=self.action_bandwidth,
            next_state=self.next_state_bandwidth,
            state_factor=self.state_bandwidth_factor,
            action_factor=self.action_bandwidth_factor,
            next_state_factor=self.next_state_bandwidth_factor,
        )

    def prepared_problem(self) -> BellmanProblem:
        """The Bellman equation on the data, with its neighbour lists; prepared at the first call."""
        if self._problem is None:
            first = self._start_states is None
            self._problem = self._prepare()
            if first:
                # Once for each data set.
                announce_thin_support(self._problem, self._policy_actions(self._problem).detach())
        return self._problem

    def _find_start_states(self) -> np.ndarray:
        if self._start_states is None:
            dataset = self.dataset
            assert dataset is not None
            self._start_states = self.processes.from_main(
                lambda: find_initial_states(self.initial_states, dataset, self.env, self.seed)
            )
        return self._start_states

    @property
    def _least_spread(self) -> float:
        """Share of its size that an observation must vary by for the policy to see it at full size."""
        return _LEAST_SPREAD if self.transitions == "model" else 1e-8

    @property
    def estimator(self) -> ModelEstimator:
        """A model of the data, and all that follows from it without a policy; fitted at the first call."""
        if self._estimator is None:
            if self._training_data is None:
                raise InputError(
                    "dataset", "there is no data to learn from", "Call set_dataset() or load_replay_buffer() first"
                )
            self._estimator = self._estimator_on(self._training_data)
        return self._estimator

    @property
    def dynamics(self) -> DynamicsModel:
        """The model of the system that the data make."""
        return self.estimator.dynamics

    def _estimator_on(self, dataset: TransitionDataset, like: DynamicsModel | None = None) -> ModelEstimator:
        # Where the space is what the data show, nobody has said that there is no more.
        seen_only = like is None and bool(np.ptp(dataset.actions, axis=0).all()) and spaces_of(dataset)[1] == self.action_space
        if dataset.action_space is None and not seen_only:
            # Other data than the model's own may hold actions that its policy cannot take.
            low = np.minimum(self.action_space.low, dataset.actions.min(axis=0))
            high = np.maximum(self.action_space.high, dataset.actions.max(axis=0))
            dataset = replace(dataset, action_space=spaces.Box(low, high, dtype=low.dtype.type))
        starts = self._find_start_states()
        settings = {**(self.model_kwargs or {}), "seed": self._noise_seed % 2**31}
        if like is not None:
            settings = {name: value for name, value in settings.items() if name in ("limits", "reward", "n_nodes", "seed")}
        return ModelEstimator.fit(dataset, starts, self.gamma, self.device, like, **settings)

    def course(self, n_updates: int) -> Course:
        """
        What training goes through: the one that is under way, or one from where the policy is.

        :param n_updates: of a new one
        """
        if self._course is None:
            self._course = self._new_course(n_updates)
        return self._course

    def _new_course(self, n_updates: int) -> Course:
        whole, before = self.estimator, self._course_before
        recipes = recipes_for(whole)
        fresh = self._n_updates == 0 and n_updates >= 2 * len(recipes)
        if not (fresh and self.policy.can_be_taught):
            recipes = (OWN,)
        settings = CourseSettings(
            n_updates,
            self.horizon,
            self.n_action_samples,
            max(self.solver_tolerance, _NODE_TOLERANCE),
            self._noise_seed,
            recipes if before is None else tuple(before["recipes"]),
        )
        parts = self._halves(whole) if len(settings.recipes) > 1 else None
        course = Course(self.policy, settings, whole, parts, steps_ahead(self.gamma), self.new_policy)
        if before is not None:
            course.restore(_stretched(before, n_updates))
            self._course_before = None
        return course

    def _halves(self, whole: ModelEstimator) -> tuple[ModelEstimator, ModelEstimator] | None:
        rows, others = halves(whole.dataset, self._noise_seed % 2**31)
        if rows is None or others is None:
            _logger.warning(
                "There are too few episodes to keep some from training: candidates are judged by what they learned."
            )
            return None
        one, other = (self._estimator_on(whole.dataset.filter(part), whole.dynamics) for part in (rows, others))
        return one, other

    def _prepare(self) -> BellmanProblem:
        if self.dataset is None or self.bandwidths is None:
            raise InputError("dataset", "there is no data to learn from", "Call set_dataset() or load_replay_buffer() first")
        check_same_everywhere(self)
        start_states = self._find_start_states()
        generator = self._noise_generator()
        assert self._training_data is not None
        problem = self._problem_on(self._training_data, self.bandwidths, start_states, generator)
        self._noise = self._training_noise_for(problem, generator)
        return problem

    def _problem_on(
        self, dataset: TransitionDataset, bandwidths: Bandwidths, start_states: np.ndarray, generator: th.Generator
    ) -> BellmanProblem:
        check_memory(size_of(self, dataset, len(start_states)), available_memory(self.device))
        dtype, next_state_noise = getattr(th, self.precision), None
        if self.n_next_state_samples > 1:
            shape = (len(dataset), self.n_next_state_samples, dataset.observation_dim)
            next_state_noise = th.randn(shape, generator=generator, dtype=dtype).to(self.device)
        return build_problem(
            dataset,
            bandwidths,
            start_states,
            self.gamma,
            next_state_noise,
            dtype,
            self.device,
            self.processes,
            n_neighbors=self.n_neighbors,
            truncation_tolerance=self.truncation_tolerance,
            keep_largest=self.keep_largest,
            kl_bound=self.kl_bound,
            local_linear=self.weights == "local_linear",
            pessimism=self.pessimism,
        )

    def problem_on(self, dataset: TransitionDataset) -> BellmanProblem:
        """
        The Bellman equation on other data, from the same start states, with bandwidths by the same rules.

        :param dataset: of as many dimensions; its actions may go beyond what the policy can do
        """
        check_dataset(dataset)
        dims = (dataset.observation_dim, dataset.action_dim)
        own = (self.observation_space.shape[0], self.action_space.shape[0])
        if dims != own:
            raise InputError("dataset", f"{dims} state and action dimensions where the model has {own}", "Give fitting data")
        self.prepared_problem()
        assert self._start_states is not None
        # The same draws at all times, because returns on these data are compared.
        generator = th.Generator().manual_seed(self._noise_seed)
        return self._problem_on(dataset, self._bandwidths_for(dataset), self._start_states, generator)

    def held_out_return(self) -> float:
        """Ĵ on the held-out data: what the policy is worth by transitions that it was not optimised on."""
        if self.held_out_data is None:
            raise InputError("held_out", "no data were held out", "Build the model with held_out=0.2 or other data")
        if self.transitions == "model":
            if self._held_out_evaluation is None:
                self._held_out_evaluation = self.evaluation(self.held_out_data)
            return self._held_out_evaluation.estimated_return()
        problem = self.held_out_problem()
        assert problem is not None
        return self.return_on(problem)

    def held_out_problem(self) -> BellmanProblem | None:
        """The Bellman equation on the held-out data; prepared at the first call."""
        if self._held_out_problem is None and self.held_out_data is not None:
            self._held_out_problem = self.problem_on(self.held_out_data)
        return self._held_out_problem

    @property
    def start_states(self) -> np.ndarray:
        """Where the task starts, (n₀, d_s)."""
        return self._find_start_states()

    def _noise_generator(self) -> th.Generator:
        # On the CPU, whatever the device: every device gets the same draws.
        return th.Generator().manual_seed(self._noise_seed + self._noise_epoch)

    def _draw_action_noise(self, n_queries: int, generator: th.Generator) -> th.Tensor | None:
        if self.variant == "D":
            return None
        shape = (n_queries, self.n_action_samples, self.action_space.shape[0])
        return th.randn(shape, generator=generator, dtype=getattr(th, self.precision)).to(self.device)

    def _training_noise_for(self, problem: BellmanProblem, generator: th.Generator) -> th.Tensor | None:
        # Each process draws the noise of all, so that it does not matter how many there are.
        noise = self._draw_action_noise(problem.n_queries, generator)
        return None if noise is None else problem.own_queries(noise)

    def action_noise_for(self, n_queries: int) -> th.Tensor | None:
        """Draws for states that are not training's own, the same for every state; None for a deterministic policy."""
        noise = self._draw_action_noise(1, self._noise_generator())
        return None if noise is None else noise.expand(n_queries, -1, -1)

    @property
    def training_noise(self) -> th.Tensor | None:
        """Draws for the policy's actions at the queries of :meth:`prepared_problem`, (m, a, d_a)."""
        return self._noise


def _stretched(course: dict[str, Any], n_updates: int) -> dict[str, Any]:
    """
    The state of a course in its midst, long enough for so many further updates: what comes last gets more of them.

    :param course: from :meth:`sb3_nopg.training.course.Course.state`
    :param n_updates: that are asked for
    """
    more = n_updates - (course["n_updates"] - course["n_made"])
    if more <= 0 or (course["stage"] is None and not course["planned"]):
        return course
    stretched = {**course, "n_updates": course["n_updates"] + more, "planned": list(course["planned"])}
    last = stretched["planned"].pop() if course["planned"] else stretched.pop("stage")
    # After the halves comes a stage that is not planned yet, and takes all that is left.
    last = {**last, "n_updates": last["n_updates"] + (more if last["trained_on"] == "all" else 0)}
    if course["planned"]:
        stretched["planned"].append(last)
    else:
        stretched["stage"] = last
    return stretched


def check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, TransitionDataset):
        raise InputError("dataset", f"a {type(dataset).__name__} is given", "Build a sb3_nopg.TransitionDataset from it")
