"""NOPG: learn a policy from a fixed data set by the nonparametric off-policy policy gradient."""

import inspect
import io
import os
import pathlib
import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule, TensorDict

from sb3_nopg.bellman.on_samples import WarmStart, return_derivative, solve_bellman
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.query_batches import draw_queries
from sb3_nopg.common.arrays import regular_array
from sb3_nopg.common.checks import check_not_normalized, check_settings, check_spaces, restored_model_settings
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.common.processes import Processes
from sb3_nopg.common.threads import threads_for
from sb3_nopg.data.buffer import (
    dataset_from_replay_buffer,
    read_replay_buffer,
    spaces_of,
)
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import settings_of
from sb3_nopg.kernels.bandwidth import Bandwidths
from sb3_nopg.kernels.neighbors import NeighborCount
from sb3_nopg.policies.export import export
from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
    NOPGPolicy,
)
from sb3_nopg.prediction.estimator import ModelEstimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judge import Judgement
from sb3_nopg.prediction.queries import PolicyQueries
from sb3_nopg.training.attached_data import BandwidthChoice, check_dataset
from sb3_nopg.training.course import Candidate, Course
from sb3_nopg.training.distributed import join_processes
from sb3_nopg.training.keeping import BestSoFar
from sb3_nopg.training.log import record_update
from sb3_nopg.training.loop import TrainingLoop

_SMOOTH_NETWORK: dict[str, Any] = {"net_arch": [64, 64], "activation_fn": th.nn.Tanh}
# What belongs to the data, or can be prepared again from it.
_UNSAVED = (
    "dataset",
    "held_out_data",
    "_training_data",
    "_problem",
    "_held_out_problem",
    "_start_states",
    "_noise",
    "_warm_start",
    "_best",
    "_best_before",
    "_estimator",
    "_course",
    "_course_before",
    "_held_out_evaluation",
    "distributed",
    "processes",
)


class NOPG(PolicyQueries, TrainingLoop):
    """
    Nonparametric off-policy policy gradient (Tosatto, Carvalho, Abdulsamad and Peters, AISTATS 2020).

    Kernel regression on the data gives the policy's value in closed form, and with it the full policy gradient. By default the
    regression is of the system itself, and several candidates compete, compared on episodes that they were not trained on. The
    settings of bandwidths, weights and neighbours belong to the paper's estimator, ``transitions="samples"``. Nothing is ever
    tried out: ``learn`` neither steps nor resets an environment, except to draw start states where neither
    ``initial_states`` nor the data tell them.

    :param policy: ``"MlpPolicy"``, ``"LinearPolicy"`` or a subclass of :class:`NOPGPolicy`
    :param env: environment, its id or a VecEnv, for its spaces and for evaluation; None to take the spaces from the data
    :param learning_rate: for Adam, a number or a function of the progress remaining (from 1 to 0)
    :param gamma: discount, in [0, 1)
    :param tensorboard_log: where to log for tensorboard
    :param policy_kwargs: additional arguments of the policy, for instance ``net_arch`` and ``activation_fn``
    :param verbose: 0 for no output, 1 for tables of progress
    :param seed: the same seed gives the same bits on the CPU, for a given number of torch threads
    :param device: "cpu", "cuda" or "auto"
    :param _init_setup_model: whether to build the networks on construction
    :param dataset: the data; can be given later with :meth:`set_dataset` or :meth:`load_replay_buffer`
    :param initial_states: where the task starts, (n₀, d_s); if None the starts of the data's episodes, or else 16 resets of
        the environment
    :param transitions: ``"model"``: next states come from a local affine model of the system (:mod:`sb3_nopg.dynamics`), at
        nodes and along trajectories; ``"samples"``, the paper's: they are the recorded ones
    :param horizon: with a model, steps that a policy is followed before the nodes' value takes over: 0 for the nodes alone,
        infinity for as long as anything counts, ``"auto"`` for 3 / (1 − γ) steps, 120 at most, and nothing after them
    :param model_kwargs: of the model: ``angles``, ``limits``, ``reward``, ``bandwidth``, ``n_earlier_steps``, ``n_nodes``,
        see :meth:`sb3_nopg.DynamicsModel.fit`
    :param variant: ``"D"`` for a deterministic, ``"S"`` for a stochastic policy
    :param state_bandwidth: of the state kernel, in the data's units: a number, one for each dimension, or the name of a rule
    :param action_bandwidth: of the action kernel, likewise
    :param next_state_bandwidth: of the next-state kernel, likewise; used with several ``n_next_state_samples``
    :param state_bandwidth_factor: multiplies the bandwidth; a number or one for each dimension
    :param action_bandwidth_factor: likewise
    :param next_state_bandwidth_factor: likewise
    :param n_action_samples: draws of the action at each state for the integral over a stochastic policy
    :param n_next_state_samples: draws of the next state for the integral over its kernel; with one, the kernel's mean
    :param resample_interval: updates after which all draws are made anew; None to keep them, which makes the objective a
        fixed function
    :param query_batch_size: estimate each gradient from so many states, drawn anew at every update, instead of all: the values
        are still computed in full, the policy network's backward pass and the derivative are not; None for all
    :param weights: ``"local_constant"``, the paper's kernel weights, or ``"local_linear"``: corrected to first order, so that
        the samples' mean lies where the state and the action are (:mod:`sb3_nopg.kernels.local_linear`)
    :param n_neighbors: samples considered at each state: a count, ``"auto"`` for as many as ``truncation_tolerance`` asks for,
        None for all (exact, and quadratic in memory)
    :param truncation_tolerance: share of any state's kernel mass that ``"auto"`` may leave out. It concerns the state kernel;
        what may be missing under the policy's actions is logged as ``train/truncation_error``
    :param keep_largest: the paper's sparsification: keep so many entries of each row of the transition matrix
    :param kl_bound: the paper's other one: keep as few entries as stay within this divergence; for a stochastic policy, of
        the row averaged over its actions
    :param pessimism: weight, in samples, of an imaginary sample of the worst value at every state and action: where fewer
        real ones stand behind an estimate (see :meth:`support`), it counts for more; 0 for none. It is a risk at every step,
        so that (1 − gamma) times the usual support is a lot already
    :param solver_tolerance: relative residual of the linear systems
    :param precision: ``"float64"`` or ``"float32"`` for everything but the policy network
    :param normalize_observations: let the policy see observations normalised by the data's mean and standard deviation
    :param final_std_scale: shrink the stochastic policy's σ linearly to this share over training; None to leave it
    :param held_out: share of the data (of its episodes, where it has some) to keep from training, or other data: what the
        policy's return is checked on; None for no check
    :param keep: ``"last"``, the parameters that training ends with; ``"best_heldout"``, those with the best held-out return
    :param patience: stop when the held-out return, or Ĵ where nothing is held out, has not improved for so many updates
    :param distributed: share the work among the processes of :func:`sb3_nopg.training.distributed.process_group`
    """

    policy: NOPGPolicy
    observation_space: spaces.Box
    action_space: spaces.Box
    # The first is the default.
    variants: ClassVar[tuple[str, ...]] = ("D", "S")
    policies_by_variant: ClassVar[dict[str, dict[str, type[BasePolicy]]]] = {
        "D": {"MlpPolicy": DeterministicMlpPolicy, "LinearPolicy": DeterministicLinearPolicy},
        "S": {"MlpPolicy": GaussianMlpPolicy, "LinearPolicy": GaussianLinearPolicy},
    }

    def __init__(
        self,
        policy: str | type[NOPGPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-2,
        gamma: float = 0.99,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        dataset: TransitionDataset | None = None,
        initial_states: ArrayLike | None = None,
        transitions: str = "model",
        horizon: str | float = "auto",
        model_kwargs: dict[str, Any] | None = None,
        variant: str | None = None,
        state_bandwidth: BandwidthChoice = "effective_neighbors",
        action_bandwidth: BandwidthChoice = "effective_neighbors",
        next_state_bandwidth: BandwidthChoice = "effective_neighbors",
        state_bandwidth_factor: float | list[float] | np.ndarray = 1.0,
        action_bandwidth_factor: float | list[float] | np.ndarray = 1.0,
        next_state_bandwidth_factor: float | list[float] | np.ndarray = 1.0,
        n_action_samples: int = 15,
        n_next_state_samples: int = 1,
        resample_interval: int | None = None,
        query_batch_size: int | None = None,
        weights: str = "local_linear",
        n_neighbors: NeighborCount = "auto",
        truncation_tolerance: float = 1e-3,
        keep_largest: int | None = None,
        kl_bound: float | None = None,
        pessimism: float = 0.0,
        solver_tolerance: float = 1e-6,
        precision: str = "float64",
        normalize_observations: bool = True,
        final_std_scale: float | None = None,
        held_out: float | TransitionDataset | None = None,
        keep: str = "last",
        patience: int | None = None,
        distributed: bool = False,
    ):
        self.variant = self.variants[0] if variant is None else variant
        self.transitions, self.horizon, self.model_kwargs = transitions, horizon, model_kwargs
        self.dataset = dataset
        self.initial_states = None if initial_states is None else regular_array("initial_states", initial_states).copy()
        self.state_bandwidth = state_bandwidth
        self.action_bandwidth = action_bandwidth
        self.next_state_bandwidth = next_state_bandwidth
        self.state_bandwidth_factor = state_bandwidth_factor
        self.action_bandwidth_factor = action_bandwidth_factor
        self.next_state_bandwidth_factor = next_state_bandwidth_factor
        self.n_action_samples = n_action_samples
        self.n_next_state_samples = n_next_state_samples
        self.resample_interval = resample_interval
        self.query_batch_size = query_batch_size
        self.weights = weights
        self.n_neighbors = n_neighbors
        self.truncation_tolerance = truncation_tolerance
        self.keep_largest = keep_largest
        self.kl_bound = kl_bound
        self.pessimism = pessimism
        self.solver_tolerance = solver_tolerance
        self.precision = precision
        self.normalize_observations = normalize_observations
        self.final_std_scale = final_std_scale
        self.held_out = held_out
        self.keep = keep
        self.patience = patience
        self.distributed = distributed
        self.learning_rate, self.gamma = learning_rate, gamma
        check_settings(self)
        if keep == "best_heldout" and held_out is None:
            raise InputError("keep", '"best_heldout" without data held out', "Give held_out=0.2, or data to check on")
        if not isinstance(policy, str) and not (isinstance(policy, type) and issubclass(policy, NOPGPolicy)):
            raise InputError("policy", f"{policy!r} is no NOPGPolicy", "Give a name or a subclass of sb3_nopg.NOPGPolicy")
        if env is not None:
            # Before SB3 looks at it, which would advise policies that we do not have.
            env = maybe_make_env(env, verbose)
            check_spaces(env.observation_space, env.action_space)

        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,
            buffer_size=1,
            learning_starts=0,
            gamma=gamma,
            policy_kwargs=policy_kwargs,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            support_multi_env=True,
        )
        #: what training has tried, the chosen one first
        self.candidates: tuple[Candidate, ...] = ()
        #: how the candidates compare; None before training
        self.judgement: Judgement | None = None
        #: fingerprint of the data that the policy was trained on
        self.learned_from: str | None = None
        self._estimator: ModelEstimator | None = None
        self._course: Course | None = None
        self._course_before: dict[str, Any] | None = None
        self._held_out_evaluation: PolicyEvaluation | None = None
        self.bandwidths: Bandwidths | None = None
        self.held_out_data: TransitionDataset | None = None
        self._training_data: TransitionDataset | None = None
        self._best: BestSoFar | None = None
        self._best_before: BestSoFar | None = None
        self._problem: BellmanProblem | None = None
        self._held_out_problem: BellmanProblem | None = None
        self._start_states: np.ndarray | None = None
        self._noise: th.Tensor | None = None
        self._warm_start = WarmStart()
        if _init_setup_model:
            self._setup_model()

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        policies = self.policies_by_variant[self.variant]
        if policy_name not in policies:
            raise InputError("policy", f"{policy_name!r} is unknown", f"Use one of {', '.join(policies)}, or a policy class")
        return policies[policy_name]

    def _setup_model(self) -> None:
        # Again, because load() sets what was saved, and what its caller wants otherwise, after the constructor.
        self.model_kwargs, self.candidates = restored_model_settings(self.model_kwargs), tuple(self.candidates)
        check_settings(self)
        self._join_processes()
        self._setup_spaces()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        # Draws of actions and next states follow from these two, so a loaded model repeats those it was trained with.
        if not hasattr(self, "_noise_seed"):
            self._noise_seed = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
            self._noise_epoch = 0
        self.policy = self.new_policy()
        if self.policy.is_stochastic != (self.variant == "S"):
            kind = "stochastic" if self.policy.is_stochastic else "deterministic"
            raise InputError(
                "policy", f"{self.policy_class.__name__} is {kind}", f"It does not go with variant {self.variant!r}"
            )
        if self.transitions == "model":
            self.policy.begin_calmly()
        self.policy = self.policy.to(self.device)
        if self.dataset is not None:
            self.set_dataset(self.dataset)

    def new_policy(self) -> NOPGPolicy:
        """A policy like the model's own, with parameters of its own, on the processor."""
        arguments = {**self._default_network(), **self.policy_kwargs}
        policy = self.policy_class(self.observation_space, self.action_space, self.lr_schedule, **arguments)
        assert isinstance(policy, NOPGPolicy)
        return policy

    def _default_network(self) -> dict[str, Any]:
        """The policies' default is the paper's network. One that trajectories are differentiated through is to be smooth."""
        is_network = self.policy_class in (DeterministicMlpPolicy, GaussianMlpPolicy)
        return _SMOOTH_NETWORK if self.transitions == "model" and is_network else {}

    def _join_processes(self) -> None:
        self.processes = join_processes() if self.distributed else Processes()
        if not self.processes.is_main:
            self.verbose, self.tensorboard_log = 0, None
        if self.processes.several and self.seed is None:
            self.seed = self.processes.from_main(lambda: int(np.random.SeedSequence().generate_state(1)[0]))

    def settings(self) -> dict[str, str]:
        """The arguments that have a say in what is computed, described."""
        return settings_of(self, ["policy_class", *inspect.signature(NOPG.__init__).parameters])

    def _setup_spaces(self) -> None:
        """Spaces come from the environment, from a loaded model, or from the data."""
        if self.env is None and not hasattr(self, "observation_space"):
            if self.dataset is None:
                raise InputError("env", "neither an environment nor a data set is given", "Pass env=... or dataset=...")
            check_dataset(self.dataset)
            self.observation_space, self.action_space = spaces_of(self.dataset)
            self.n_envs = 1
        check_spaces(self.observation_space, self.action_space)
        if self.env is not None:
            check_not_normalized(self.env)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        check_not_normalized(env)
        super().set_env(env, force_reset)
        # Start states may have come from the environment before.
        self._problem, self._held_out_problem, self._start_states = None, None, None
        self._estimator, self._course, self._held_out_evaluation = None, None, None
        self._course_before, self._best_before = None, None

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        super().set_parameters(load_path_or_dict, exact_match, device)
        # Parameters of a model that never learned know no normalisation yet; for any other, it is settled.
        if self.dataset is not None and self.normalize_observations:
            self.policy.fit_normalization(self.dataset.observations, self._least_spread)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """
        Learn from what a replay buffer holds, ours or that of any SB3 off-policy algorithm. It is a pickle: trust its source.

        :param path: file that ``save_replay_buffer`` wrote
        :param truncate_last_traj: accepted for SB3's sake; a fixed buffer has no trajectory in progress
        """
        self.set_dataset(dataset_from_replay_buffer(read_replay_buffer(path, self.verbose)))

    def train(self, gradient_steps: int = 1, batch_size: int = 0) -> None:
        """
        Make policy updates with the full gradient on all of the data.

        :param gradient_steps: how many
        :param batch_size: accepted for SB3's sake; the gradient is never that of a batch
        """
        self.policy.set_training_mode(True)
        # From now on the parameters belong to the normalisation they were learned with, be it none.
        self.policy.normalization_fitted.fill_(True)
        self._update_learning_rate(self.policy.optimizer)
        if self.transitions == "model":
            self._follow_course(gradient_steps)
            return
        for _ in range(gradient_steps):
            if self.resample_interval is not None and self._n_updates % self.resample_interval == 0 and self._n_updates > 0:
                self._resample()
            with threads_for(self.prepared_problem().n_entries):
                self._update_policy()
            self._n_updates += 1

    def _follow_course(self, n_updates: int) -> None:
        for number in range(n_updates):
            if self._course is not None and self._course.is_over:
                self._course = None
            course, began = self.course(n_updates - number), time.perf_counter()
            with threads_for(len(self.estimator.dynamics.nodes)):
                told = course.update(self.lr_schedule(self._current_progress_remaining))
            self._n_updates += 1
            for name, value in told.items():
                self.logger.record(name, value, exclude="tensorboard" if isinstance(value, str) else None)
            self.logger.record("time/update_seconds", time.perf_counter() - began)

    def _resample(self) -> None:
        """Draw actions and next states anew; only moved next states need new neighbours."""
        self._noise_epoch += 1
        if self.n_next_state_samples > 1:
            self._problem = None
        elif self._problem is not None:
            self._noise = self._training_noise_for(self._problem, self._noise_generator())

    def _update_policy(self) -> None:
        problem = self.prepared_problem()
        clock = [time.perf_counter()]
        batch = None
        if self.query_batch_size is not None:
            batch = draw_queries(problem, self.query_batch_size, (self._noise_seed, self._n_updates))
        with th.set_grad_enabled(batch is None):
            actions = self._policy_actions(problem)
        clock.append(time.perf_counter())
        with th.no_grad():
            weights = problem.support.kernel_weights(problem.queries, actions)
            clock.append(time.perf_counter())
            # q and μ are solutions, not graph nodes: no derivative is taken through the solve.
            solution = solve_bellman(problem, weights, self._warm_start, self.solver_tolerance)
            clock.append(time.perf_counter())
            derivative = return_derivative(problem, solution, None if batch is None else batch.chosen)
        if batch is not None:
            noise = None if self._noise is None else self._noise[batch.chosen]
            actions = self.policy.sample_actions(problem.queries.states[batch.chosen], noise).to(derivative.dtype)
            derivative *= batch.factor
        clock.append(time.perf_counter())
        # The chain rule's last factor, ∂a/∂θ, is the only backward pass. Minus, because optimisers descend.
        self.policy.optimizer.zero_grad()
        actions.backward(-derivative)
        self.processes.sum_gradients(list(self.policy.parameters()))
        self.policy.optimizer.step()
        clock.append(time.perf_counter())
        self._warm_start.remember(solution)
        problem.coarse_model.grow_older()
        record_update(self.logger, solution, self.policy.parameters(), clock)

    def _policy_actions(self, problem: BellmanProblem) -> th.Tensor:
        actions = self.policy.sample_actions(problem.queries.states, self._noise).to(problem.rewards.dtype)
        if not bool(actions.isfinite().all()):
            raise SolverError("The policy's actions are not finite any more. Try a smaller learning_rate.")
        return actions

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Write the model to a file, without the data. In a distributed run the main process does it.

        :param path: of the file
        :param exclude: attributes to leave out
        :param include: attributes to write although they would be left out
        """
        if self.processes.is_main:
            super().save(path, exclude, include)

    def export(self, path: str | os.PathLike[str], **description: Any) -> pathlib.Path:
        """
        Write the policy as an ONNX file for a rig: raw observation in, mean action in the environment's units out.

        :param path: of the file, for instance ``policy.onnx``
        :param description: names, units and control period, see :func:`sb3_nopg.export`
        :return: the path
        """
        return export(self, path, **description)

    def _excluded_save_params(self) -> list[str]:
        given_data = ["held_out"] if isinstance(self.held_out, TransitionDataset) else []
        return [*super()._excluded_save_params(), *_UNSAVED, *given_data]

    def __getstate__(self) -> dict[str, Any]:
        # What can be prepared again stays behind when a model is copied: sparse tensors cannot be.
        prepared = ("_problem", "_held_out_problem", "_noise", "_estimator", "_course", "_held_out_evaluation")
        return {**self.__dict__, **dict.fromkeys(prepared), "_warm_start": WarmStart()}

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []


class NOPGD(NOPG):
    """NOPG with a deterministic policy."""

    variants = ("D",)


class NOPGS(NOPG):
    """NOPG with a stochastic policy."""

    variants = ("S",)
