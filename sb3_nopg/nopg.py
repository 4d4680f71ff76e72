"""NOPG: learn a policy from a fixed data set by the nonparametric off-policy policy gradient."""

import inspect
import io
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule, TensorDict

from sb3_nopg.bellman.settings import EstimatorSettings, SampleSettings
from sb3_nopg.common.arrays import flat_box, regular_array
from sb3_nopg.common.checks import check_not_normalized, check_spaces
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes
from sb3_nopg.common.progress import phase, shown
from sb3_nopg.data.buffer import FixedReplayBuffer, read_replay_buffer, spaces_of
from sb3_nopg.data.dataset import TransitionDataset, check_dataset
from sb3_nopg.data.fingerprint import array_fingerprint, dataset_fingerprint, parameter_fingerprint
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.kernels.bandwidth import Bandwidths
from sb3_nopg.policies.export import export
from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
    NOPGPolicy,
)
from sb3_nopg.prediction.chatter import Chatter
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judgement import Judged, Judgement, Leaving
from sb3_nopg.prediction.questions import Questions
from sb3_nopg.prediction.starts import Starts
from sb3_nopg.training.attaching import attach, check_data
from sb3_nopg.training.candidates import Candidate
from sb3_nopg.training.distributed import AgreedCallback, check_same_everywhere, join_processes
from sb3_nopg.training.log import record_now_and_then
from sb3_nopg.training.offline_env import OfflineVecEnv, offline_vec_env
from sb3_nopg.training.resumable import ResumableAlgorithm
from sb3_nopg.training.settings import check_no_old_names, check_settings, full_policy_kwargs, restored_model_settings
from sb3_nopg.training.training import Training, TrainingOptions

if TYPE_CHECKING:
    from sb3_nopg.report.stress import StressResult
    from sb3_nopg.report.summary import ReportSummary

SelfNOPG = TypeVar("SelfNOPG", bound="NOPG")

# What belongs to the data, or can be prepared again from it.
_UNSAVED = ("dataset", "_training", "distributed", "processes")
# Share of its size that an observation must vary by for the policy to see it at full size: with a model, and without.
_LEAST_SPREAD = {"model": 0.01, "samples": 1e-8}


class NOPG(Questions, ResumableAlgorithm):
    """
    Nonparametric off-policy policy gradient (Tosatto, Carvalho, Abdulsamad and Peters, AISTATS 2020), with a deterministic
    policy; :class:`NOPGS` has a stochastic one.

    Kernel regression on the data gives the policy's value in closed form, and with it the full policy gradient. By default the
    regression is of the system itself, and several candidates compete, compared on episodes that they were not trained on.
    Nothing is ever tried out: ``learn`` neither steps nor resets an environment, except to draw start states where neither
    ``initial_states`` nor the data tell them.

    :param policy: ``"MlpPolicy"``, ``"LinearPolicy"`` or a subclass of :class:`NOPGPolicy`
    :param env: environment, its id or a VecEnv, for its spaces and for evaluation; None to take the spaces from the data
    :param learning_rate: for Adam, a number or a function of the progress remaining (from 1 to 0)
    :param gamma: discount, in [0, 1)
    :param stats_window_size: episodes that SB3's callbacks average their rewards over; training has none of its own
    :param tensorboard_log: where to log for tensorboard
    :param policy_kwargs: additional arguments of the policy, for instance ``net_arch`` (None for our own default, not SB3's),
        ``activation_fn`` and ``features_extractor_class``
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
    :param estimator_kwargs: of the paper's estimator: bandwidths, weights, neighbours, pessimism and the like, see
        :class:`sb3_nopg.SampleSettings`
    :param normalize_observations: let the policy see observations normalised by the data's mean and standard deviation
    :param held_out: share of the data (of its episodes, where it has some) to keep from training, or other data: what the
        policy's return is checked on; None for no check
    :param keep: ``"last"``, the parameters that training ends with; ``"best_heldout"``, those with the best held-out return
    :param patience: stop when the held-out return, or Ĵ where nothing is held out, has not improved for so many updates
    :param distributed: share the work among the processes of :func:`sb3_nopg.training.distributed.process_group`
    """

    policy: NOPGPolicy
    observation_space: spaces.Box
    action_space: spaces.Box
    # Of the policies that the class takes; None for either.
    is_stochastic: ClassVar[bool | None] = None
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": DeterministicMlpPolicy,
        "LinearPolicy": DeterministicLinearPolicy,
    }
    _saved_records = (Candidate, Chatter, Judged, Judgement, Leaving, Quantities)

    def __init__(
        self,
        policy: str | type[NOPGPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-2,
        gamma: float = 0.99,
        stats_window_size: int = 100,
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
        estimator_kwargs: dict[str, Any] | None = None,
        normalize_observations: bool = True,
        held_out: float | TransitionDataset | None = None,
        keep: str = "last",
        patience: int | None = None,
        distributed: bool = False,
        **old_names: Any,
    ):
        check_no_old_names(old_names)
        self.transitions, self.horizon, self.model_kwargs = transitions, horizon, model_kwargs
        self.estimator_kwargs, self.dataset = estimator_kwargs, dataset
        self.initial_states = None if initial_states is None else regular_array("initial_states", initial_states).copy()
        self.normalize_observations = normalize_observations
        self.held_out, self.keep, self.patience, self.distributed = held_out, keep, patience, distributed
        self.learning_rate, self.gamma, self.stats_window_size = learning_rate, gamma, stats_window_size
        self._check_settings()
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
            stats_window_size=stats_window_size,
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
        #: names and units of the columns of states and actions, as the data had them; None where nobody has named them
        self.quantities: Quantities | None = None
        #: fingerprint of the data that the policy was trained on
        self.learned_from: str | None = None
        self._training: Training | None = None
        if _init_setup_model:
            self._setup_model()

    _argument_names = tuple(inspect.signature(__init__).parameters)

    def _check_settings(self) -> None:
        check_settings(self)
        SampleSettings.of(self.estimator_kwargs)

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        known = self.policy_aliases
        if policy_name not in known:
            raise InputError("policy", f"{policy_name!r} is unknown", f"Use one of {', '.join(known)}, or a policy class")
        return known[policy_name]

    def _setup_model(self) -> None:
        # Again, because load() sets what was saved, and what its caller wants otherwise, after the constructor.
        self.model_kwargs, self.candidates = restored_model_settings(self.model_kwargs), tuple(self.candidates)
        self._check_settings()
        self._stats_window_size = self.stats_window_size
        self._join_processes()
        self._setup_spaces()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        # Draws of actions and next states follow from these two, so a loaded model repeats those it was trained with.
        if not hasattr(self, "_noise_seed"):
            self._noise_seed = int(np.random.SeedSequence(self.seed).generate_state(1)[0])
            self._noise_epoch = 0
        #: with the defaults that the settings imply: all that it takes to build the policy
        self.full_policy_kwargs = full_policy_kwargs(self.policy_class, self.policy_kwargs, self.transitions)
        self.policy = self.new_policy()
        if self.is_stochastic is not None and self.policy.is_stochastic != self.is_stochastic:
            kind, other = ("stochastic", "NOPGS") if self.policy.is_stochastic else ("deterministic", "NOPGD")
            raise InputError("policy", f"{self.policy_class.__name__} is {kind}", f"It goes with {other}")
        if self.transitions == "model":
            self.policy.begin_calmly()
        self.policy = self.policy.to(self.device)
        if self.dataset is not None:
            self.set_dataset(self.dataset)

    def new_policy(self) -> NOPGPolicy:
        """A policy like the model's own, with parameters of its own, on the processor."""
        policy = self.policy_class(self.observation_space, self.action_space, self.lr_schedule, **self.full_policy_kwargs)
        assert isinstance(policy, NOPGPolicy)
        return policy

    def _join_processes(self) -> None:
        self.processes = join_processes() if self.distributed else Processes()
        if not self.processes.is_main:
            self.verbose, self.tensorboard_log = 0, None
        if self.processes.several and self.seed is None:
            self.seed = self.processes.from_main(lambda: int(np.random.SeedSequence().generate_state(1)[0]))

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
        if self.dataset is not None:
            # Start states may have come from the environment before.
            self._attach(self.dataset)

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        super().set_parameters(load_path_or_dict, exact_match, device)
        # Parameters of a model that never learned know no normalisation yet; for any other, it is settled.
        self._fit_normalization()

    def _fit_normalization(self) -> None:
        if self.dataset is not None and self.normalize_observations:
            self.policy.fit_normalization(self.dataset.observations, _LEAST_SPREAD[self.transitions])

    def set_dataset(self, dataset: TransitionDataset) -> None:
        """
        Attach data to learn from, in place of any attached before. The policy keeps its parameters and its normalisation.

        :param dataset: must fit the model's spaces; if it does not, the model stays as it was
        """
        dataset = check_data(dataset, self.observation_space, self.action_space, self.env, self.quantities)
        replay_buffer = FixedReplayBuffer(dataset, self.observation_space, self.action_space, self.device)
        self._attach(dataset)
        self.dataset, self.replay_buffer = dataset, replay_buffer
        self.quantities = dataset.quantities or self.quantities
        self._fit_normalization()
        if self.env is None:
            self.env = offline_vec_env(self.observation_space, self.action_space, dataset.observations[0], self.n_envs)

    def _attach(self, dataset: TransitionDataset) -> None:
        """Make what follows from data and settings; training begins again from where the policy is."""
        env = None if isinstance(self.env, OfflineVecEnv) else self.env
        starts, settings = Starts(self.initial_states, dataset, env, self.seed, self.processes), self._estimator_settings()
        self._training = attach(starts, self.held_out, settings, self._noise_epoch, self.policy, self.new_policy)

    def _estimator_settings(self) -> EstimatorSettings:
        return EstimatorSettings(
            gamma=self.gamma,
            transitions=self.transitions,
            samples=SampleSettings.of(self.estimator_kwargs),
            model_kwargs=self.model_kwargs or {},
            action_space=flat_box("action_space", self.action_space),
            is_stochastic=self.policy.is_stochastic,
            n_units=sum(len(parameter) for parameter in self.policy.parameters() if parameter.ndim == 2),
            seed=self._noise_seed,
            device=self.device,
        )

    @property
    def _attached(self) -> Training:
        if self._training is None:
            raise InputError(
                "dataset",
                "there is no data to learn from, and a model's file holds none",
                "Pass dataset=… to NOPG() or load(), or call set_dataset() or load_replay_buffer()",
            )
        check_same_everywhere(self.processes, self.dataset, self._what_must_be_the_same)
        return self._training

    def _what_must_be_the_same(self) -> dict[str, Any]:
        """In all processes that train the model together."""
        assert self.dataset is not None
        assert self.bandwidths is not None
        return {
            "dataset": dataset_fingerprint(self.dataset),
            "policy": parameter_fingerprint(self.policy),
            "bandwidths": array_fingerprint([self.bandwidths.state, self.bandwidths.action, self.bandwidths.next_state]),
            "num_timesteps": self.num_timesteps,
            **self.settings(),
        }

    def _up_to_date(self) -> Training:
        """With policy and options as they are now: a user may have changed them."""
        training = self._attached
        training.policy = self.policy
        training.options = TrainingOptions(self.horizon, self.keep == "best_heldout", self.patience)
        return training

    @property
    def estimator(self) -> Estimator:
        """All that follows from data and settings, and nothing of the policy."""
        return self._attached.estimator

    @property
    def held_out_data(self) -> TransitionDataset | None:
        """The data that the policy is checked on."""
        held_out = None if self._training is None else self._training.held_out
        return None if held_out is None else held_out.dataset

    @property
    def bandwidths(self) -> Bandwidths | None:
        """Of the paper's kernels; None without data."""
        return None if self._training is None else self._training.estimator.bandwidths

    def _fixed_data(self) -> TransitionDataset | None:
        return self.estimator.starts.data

    def _begin(self, total_timesteps: int) -> None:
        self.learned_from = dataset_fingerprint(self.training_data)
        n_left = total_timesteps - self.num_timesteps
        self._remember(self._up_to_date().begin(n_left, self._n_updates, self.num_timesteps, self.train, self.logger))

    def _make_update(self, total_timesteps: int) -> None:
        self.policy.shrink_std((self.num_timesteps + 1) / total_timesteps)
        super()._make_update(total_timesteps)

    def train(self, gradient_steps: int = 1, batch_size: int = 0) -> None:
        """
        Make policy updates with the full gradient on all of the data.

        :param gradient_steps: how many
        :param batch_size: accepted for SB3's sake; the gradient is never that of a batch
        """
        self.policy.set_training_mode(True)
        # From now on the parameters belong to the normalisation they were learned with, be it none.
        self.policy.normalization_fitted.fill_(1.0)
        self._update_learning_rate(self.policy.optimizer)
        for number in range(gradient_steps):
            rate = self.lr_schedule(self._current_progress_remaining)
            self._up_to_date().update(gradient_steps - number, self._n_updates, rate, self.logger)
            self._noise_epoch = self._attached.estimator.epoch
            self._n_updates += 1
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _wants_to_stop(self, *, last: bool) -> bool:
        return self._up_to_date().wants_to_stop(self.num_timesteps, last, self.logger)

    def _finish(self, *, logs: bool) -> None:
        candidates = self._up_to_date().finish(self.train, self.logger)
        self._remember(candidates)
        if logs and candidates:
            self.dump_logs()
        # A log that was written is empty: SB3's has this number after training too.
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _remember(self, candidates: tuple[Candidate, ...]) -> None:
        if candidates:
            self.candidates, self.judgement = candidates, self._attached.judgement

    def dump_logs(self) -> None:
        """Write the log, with what is worth computing only now and then."""
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        n_updates = self.num_timesteps - self._num_timesteps_at_start
        record_now_and_then(self.logger, self.evaluation, n_updates, elapsed)
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        own = super()._init_callback(callback, progress_bar)
        if not self.processes.several:
            return own
        agreed = AgreedCallback(own, self.processes)
        agreed.init_callback(self)
        return agreed

    @property
    def evaluation(self) -> PolicyEvaluation:
        """Answers every question about the policy, at its current parameters."""
        return self._up_to_date().evaluation

    def held_out_return(self) -> float:
        """Ĵ on the held-out data: what the policy is worth by transitions that it was not optimised on."""
        if self._attached.held_out is None:
            raise InputError("held_out", "no data were held out", "Build the model with held_out=0.2 or other data")
        return self._up_to_date().score()

    def score(self) -> float:
        """What policies are compared by: the held-out return, or Ĵ where nothing is held out."""
        return self._up_to_date().score()

    def run_state(self) -> dict[str, Any]:
        """What :meth:`save` leaves out, for a checkpoint."""
        return {"start_states": th.tensor(self.start_states), **self._attached.state()}

    def restore_run(self, dataset: TransitionDataset, state: dict[str, Any]) -> None:
        """
        :param dataset: that the run learned from
        :param state: of :meth:`run_state`
        """
        given = self.initial_states
        if given is None and dataset.episode_starts is None:
            # They came from an environment, which may not be at hand any more.
            self.initial_states = state["start_states"].cpu().numpy()
        try:
            self.set_dataset(dataset)
        finally:
            self.initial_states = given
        self._attached.restore(state)

    def _excluded_save_params(self) -> list[str]:
        given_data = ["held_out"] if isinstance(self.held_out, TransitionDataset) else []
        return [*super()._excluded_save_params(), *_UNSAVED, *given_data]

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """
        Learn from what a replay buffer holds, ours or that of any SB3 off-policy algorithm. It is a pickle: trust its source.

        :param path: file that ``save_replay_buffer`` wrote, or the open file, which stays open
        :param truncate_last_traj: accepted for SB3's sake; a fixed buffer has no trajectory in progress
        """
        self.set_dataset(TransitionDataset.from_replay_buffer(read_replay_buffer(path, self.verbose)))

    def learn(
        self: SelfNOPG,
        total_timesteps: int = 500,
        callback: MaybeCallback = None,
        log_interval: int = 10,
        tb_log_name: str = "NOPG",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfNOPG:
        """
        Improve the policy on the data.

        :param total_timesteps: number of policy updates
        :param callback: called after every update
        :param log_interval: updates between two entries of the log
        :param tb_log_name: name of the run for tensorboard
        :param reset_num_timesteps: False to continue counting where training stopped
        :param progress_bar: show the phases of it (fit, nodes, candidates, judge) and the time that is left
        :return: the model
        """
        if self.keep == "best_heldout" and self._attached.held_out is None:
            # A model's file does not hold the data that it was checked on.
            raise InputError(
                "held_out", "the loaded model has no data to check on", "Set model.held_out and call set_dataset()"
            )
        progress_bar = progress_bar and self.processes.is_main
        with shown(progress_bar):
            # All that can be prepared is, before a run begins in the log.
            if self.transitions == "model":
                _ = self.estimator.model
            else:
                with phase("fit", 2) as advance:
                    _ = self.estimator.bandwidths
                    advance()
                    _ = self.estimator.problem
            return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        limits: Sequence[str] = (),
        held_out: TransitionDataset | None = None,
        names: Sequence[str] | None = None,
        trajectories: bool = True,
        stress: "StressResult | None" = None,
        goal: str | None = None,
    ) -> "ReportSummary":
        """
        Write a page that a person can judge the policy by before it moves anything, and its figures (JSON) beside it.

        :param path: of the page, ``.html``, which needs no other file, or ``.png`` for one picture
        :param limits: regions that shall not be left, as formulas that are true inside: ``"abs(x) < 0.35"``, or over ``s[0]``,
            ``s[1]``, …
        :param held_out: data that the policy was not optimised on; None for those that the model held out itself, if any
        :param names: of the state's dimensions; None for those that the environment or the data know
        :param trajectories: whether to predict where the policy goes step by step, which takes some seconds
        :param stress: what became of the policy on simulated rigs, from `nopg_envs.stress.stress_test`; None to leave it out
        :param goal: where the system is to be in the end, a formula like those of limits; None for the environment's, if it
            has one, or else what the task's ends tell
        :return: verdict and figures
        """
        # Only now: drawing takes long to import.
        from sb3_nopg.report.making import make_report
        from sb3_nopg.report.page import write_report
        from sb3_nopg.report.policy_files import bind_reports

        asked: dict[str, Any] = {"limits": limits, "held_out": held_out, "names": names, "goal": goal}
        report = make_report(self, **asked, trajectories=trajectories, stress=stress)
        bind_reports(self, write_report(report, path).parent)
        return report.summary

    def export(self, path: str | os.PathLike[str], **description: Any) -> pathlib.Path:
        """
        Write the policy as an ONNX file for a rig: raw observation in, mean action in the environment's units out. Reports on
        it that lie beside the file are told its SHA-256.

        :param path: of the file, for instance ``policy.onnx``
        :param description: names, units and control period, see :func:`sb3_nopg.export`
        :return: the path
        """
        from sb3_nopg.report.policy_files import bind_reports

        written = export(self, path, **description)
        bind_reports(self, written.parent)
        return written


class NOPGD(NOPG):
    """NOPG with a deterministic policy."""

    is_stochastic = False


class NOPGS(NOPG):
    """NOPG with a stochastic policy."""

    is_stochastic = True
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": GaussianMlpPolicy,
        "LinearPolicy": GaussianLinearPolicy,
    }
