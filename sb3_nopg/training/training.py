"""The training of a policy on what an estimator knows: its updates, where it has got to, and what it ends with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.logger import Logger

from sb3_nopg.bellman.gradient import gradient_on_samples
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.bellman.query_batches import draw_queries
from sb3_nopg.common.threads import threads_for
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judgement import Judgement
from sb3_nopg.training.candidates import Candidate
from sb3_nopg.training.course import Course
from sb3_nopg.training.keeping import Watch, load_parameters, parameters_of
from sb3_nopg.training.log import announce_thin_support, record_candidates, record_update
from sb3_nopg.training.planning import plan_course


@dataclass(frozen=True)
class TrainingOptions:
    """
    :param horizon: with a model, steps to follow
    :param keeps_best: whether to end with the parameters of the best held-out return
    :param patience: updates without an improvement after which to stop; None to go on
    """

    horizon: str | float = "auto"
    keeps_best: bool = False
    patience: int | None = None


class Training:
    """
    All that belongs neither to the data nor to the policy. Make a new one for other data.

    :param policy: to train
    :param estimator: on the data that it learns from
    :param held_out: on data that it is checked on; None for none
    :param make_policy: makes another one like the policy, on the processor
    """

    def __init__(
        self,
        policy: NOPGPolicy,
        estimator: Estimator,
        held_out: Estimator | None,
        make_policy: Callable[[], NOPGPolicy],
    ):
        self.policy, self.estimator, self.held_out = policy, estimator, held_out
        self.options, self.warm_start, self._make_policy = TrainingOptions(), WarmStart(), make_policy
        self._course: Course | None = None
        self._course_before: dict[str, Any] | None = None
        self._watch: Watch | None = None
        self._goes_on = self._support_announced = False
        #: of the candidates that were chosen among last
        self.judgement: Judgement | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What can be prepared again stays behind when a model is copied: sparse tensors cannot be.
        return {**self.__dict__, "_course": None, "warm_start": WarmStart()}

    @property
    def evaluation(self) -> PolicyEvaluation:
        """Of the policy, at its current parameters, by the data that it learns from."""
        return PolicyEvaluation(self.estimator, self.policy, self.warm_start)

    def score(self) -> float:
        """What policies are compared by: the held-out return, or Ĵ where nothing is held out."""
        evaluation = self.evaluation if self.held_out is None else PolicyEvaluation(self.held_out, self.policy)
        return evaluation.estimated_return()

    def begin(
        self, n_updates: int, n_made: int, step: int, again: Callable[[int], Any], logger: Logger
    ) -> tuple[Candidate, ...]:
        """
        :param n_updates: to make from here on
        :param n_made: updates that the policy has had
        :param step: SB3's count of them
        :param again: makes so many further updates, as for :meth:`finish`
        :param logger: SB3's
        :return: candidates of an earlier run that trained them all and was stopped before it chose
        """
        chosen: tuple[Candidate, ...] = ()
        if self.estimator.settings.on_model:
            if self._course is not None:
                self._course_before = self._course.state()
            self._course = self._new_course(n_updates, n_made)
            if self._course.is_over and n_updates > 0:
                chosen = self._choose(self._course, again, logger)
                self._course = self._new_course(n_updates, n_made)
        elif not self._support_announced:
            announce_thin_support(self.estimator.problem, self.evaluation.policy_actions().detach())
            self._support_announced = True
        if self._watch is None or not self._goes_on:
            self._watch = self._new_watch(step)
            # Where training starts may be the best place of all.
            self._look(self._watch, step, logger)
        self._goes_on = False
        return chosen

    def _new_watch(self, step: int) -> Watch:
        return Watch(self.options.keeps_best, self.options.patience, update=step)

    def update(self, n_left: int, n_made: int, learning_rate: float, logger: Logger) -> None:
        """
        Improve the policy by one step.

        :param n_left: updates to make, this one included
        :param n_made: updates that the policy has had
        :param learning_rate: of this one
        :param logger: SB3's
        """
        if self.estimator.settings.on_model:
            self._update_on_model(n_left, n_made, learning_rate, logger)
        else:
            self._update_on_samples(n_made, logger)

    def _update_on_samples(self, n_made: int, logger: Logger) -> None:
        """The paper's update."""
        samples = self.estimator.settings.samples
        interval = samples.resample_interval
        if interval is not None and n_made > 0 and n_made % interval == 0:
            self.estimator = self.estimator.redrawn()
        estimator, batch = self.estimator, None
        problem = estimator.problem
        if samples.query_batch_size is not None:
            batch = draw_queries(problem, samples.query_batch_size, (estimator.settings.seed, n_made))
        self.policy.optimizer.zero_grad()
        with threads_for(problem.n_entries):
            found = gradient_on_samples(
                problem, self.policy, estimator.action_noise, self.warm_start, samples.solver_tolerance, batch
            )
            self.policy.optimizer.step()
        record_update(logger, found.solution, self.policy.parameters(), [*found.clock, time.perf_counter()])

    def _update_on_model(self, n_left: int, n_made: int, learning_rate: float, logger: Logger) -> None:
        if self._course is None or self._course.is_over:
            self._course = self._new_course(n_left, n_made)
        began = time.perf_counter()
        with threads_for(len(self.estimator.dynamics.nodes)):
            told = self._course.update(learning_rate)
        for name, value in told.items():
            logger.record(name, value, exclude="tensorboard" if isinstance(value, str) else None)
        logger.record("time/update_seconds", time.perf_counter() - began)

    def _new_course(self, n_updates: int, n_made: int) -> Course:
        """From where the policy is, or the rest of one that was broken off."""
        before, self._course_before = self._course_before, None
        return plan_course(
            self.policy,
            self.estimator,
            n_updates,
            self.options.horizon,
            self._make_policy,
            from_the_start=n_made == 0,
            before=before,
        )

    def wants_to_stop(self, step: int, last: bool, logger: Logger) -> bool:
        """
        Look at the score now and then, and remember the best.

        :param step: SB3's count of updates
        :param last: whether none is left
        :param logger: SB3's
        :return: whether patience has run out
        """
        if self._watch is None:
            # A callback has attached other data in the midst of it.
            self._watch = self._new_watch(step)
        return (self._watch.is_time(step) or last) and self._look(self._watch, step, logger)

    def _look(self, watch: Watch, step: int, logger: Logger) -> bool:
        if self.held_out is None and self.options.patience is None:
            return False
        score = self.score()
        if self.held_out is not None:
            logger.record("train/held_out_return", score)
        return watch.look(score, step, self.policy)

    def finish(self, again: Callable[[int], Any], logger: Logger) -> tuple[Candidate, ...]:
        """
        Leave the policy at what is to be kept.

        :param again: makes so many further updates, where the judge finds none of the candidates good enough. They go to the
            log, not to the count of updates
        :param logger: SB3's
        :return: candidates, the chosen one first; none where there was nothing to choose
        """
        if self._watch is not None:
            self._watch.restore(self.policy)
        if not self.estimator.settings.on_model:
            # The last update may have been the one too many.
            self.evaluation.policy_actions()
            return ()
        return () if self._course is None else self._choose(self._course, again, logger)

    def _choose(self, course: Course, again: Callable[[int], Any], logger: Logger) -> tuple[Candidate, ...]:
        kept, std_scale = parameters_of(self.policy), float(self.policy.std_scale)
        candidates = course.finish(again)
        self._course, self.judgement = None, course.judgement
        if not candidates or self.options.keeps_best:
            load_parameters(self.policy, kept)
            return ()
        # The chosen one may be of an earlier time, when σ was larger.
        self.policy.set_std_scale(std_scale)
        record_candidates(logger, candidates, course.judgement)
        return candidates

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            "coarse_models": [problem.coarse_model.state() for problem in self._problems()],
            "q_history": self.warm_start.q_history.values,
            "visitation_history": self.warm_start.visitation_history.values,
            "course": None if self._course is None else self._course.state(),
            "watch": None if self._watch is None else self._watch.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`state`
        """
        for problem, coarse_model in zip(self._problems(), state["coarse_models"], strict=True):
            problem.coarse_model.restore(coarse_model, self.estimator.settings.gamma)
        for value in state["q_history"]:
            self.warm_start.q_history.add(value)
        for value in state["visitation_history"]:
            self.warm_start.visitation_history.add(value)
        self._course_before = state["course"]
        self._watch = None if state["watch"] is None else Watch(**state["watch"])
        self._goes_on = self._support_announced = True

    def _problems(self) -> list[BellmanProblem]:
        """Equations on samples that it solves."""
        if self.estimator.settings.on_model:
            return []
        return [one.problem for one in (self.estimator, self.held_out) if one is not None]
