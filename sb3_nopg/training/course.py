"""
The course of a training on a model: several candidates, each from another start, and a judge that has not seen what they
learned from.

Different starts win on different tasks: doing nothing, what value iteration on the nodes would do, what least squares with a
Riccati equation would do. So each is trained on a model of one half of the episodes, and followed through a model of the other
half. What does best there is then trained further on all of the data. Nothing that was trained on an episode is judged by it,
until the end: then what all of the data have made is held against what half of them had, by models that the former has seen.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.bellman.bundle import follow_policy
from sb3_nopg.bellman.gradient import gradient_along_trajectories, gradient_on_nodes
from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.judgement import Judgement
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.training.candidates import (
    OWN,
    RICCATI,
    Candidate,
    CourseSettings,
    Stage,
    Trained,
    name_of,
)
from sb3_nopg.training.keeping import load_parameters, parameters_of
from sb3_nopg.training.ranking import Ranking
from sb3_nopg.training.teaching import teach

_logger = logging.getLogger(__name__)
# Trajectories of an update, and where the model is not one affine map, in four coordinates or more.
_N_TRAJECTORIES, _N_IN_MANY_DIMENSIONS = 64, 128
# Share of all updates that candidates are tried with, on one half of the data.
_ON_HALVES = 0.3
# A linear controller is good already and changed with more care, and every stage ends with small steps.
_CAREFUL, _LAST_STEPS = 0.3, 0.1
# Updates between two looks at how good a policy has become, and trajectories that tell.
_CHECK_EVERY, _N_COMPARED = 10, 64
# Of one trajectory in the gradient of an update, in medians of all.
_MOST_WEIGHT = 2.0


class Course:
    """
    :param policy: to train
    :param settings: of the course
    :param whole: estimator on all of the data
    :param halves: estimators on one half of the episodes and on the other; None where there are too few for that
    :param n_steps_judged: that policies are followed by the judge
    :param make_policy: makes another one like the policy, with any parameters, on the processor
    """

    def __init__(
        self,
        policy: NOPGPolicy,
        settings: CourseSettings,
        whole: ModelEstimator,
        halves: tuple[ModelEstimator, ModelEstimator] | None,
        n_steps_judged: int,
        make_policy: Callable[[], NOPGPolicy],
    ):
        self.policy, self.settings, self.whole, self.halves = policy, settings, whole, halves
        self.untrained = parameters_of(policy)
        self.trained: list[Trained] = []
        self.judgement: Judgement | None = None
        self._ranking = Ranking(whole, halves, n_steps_judged, settings.seed, make_policy)
        self._warm_start, self._n_made = WarmStart(), 0
        self._returns: list[float] = []
        self._planned = self._plan()
        self.stage: Stage | None = None

    def _plan(self) -> list[Stage]:
        """Stages that are known from the start: all of one candidate, or one half for each and all for the best."""
        names, n = self.settings.recipes, self.settings.n_updates
        if len(names) == 1:
            return [Stage(names[0], "all", n)]
        if self.halves is None:
            shares = _shares(n, len(names))
            return [Stage(name, "all", share) for name, share in zip(names, shares, strict=True) if share]
        shares = _shares(max(round(_ON_HALVES * n), min(n - 1, len(names))), len(names))
        return [Stage(name, "half", share) for name, share in zip(names, shares, strict=True) if share]

    @property
    def is_over(self) -> bool:
        """Whether all updates that were planned are made."""
        return self.stage is None and not self._planned

    def update(self, learning_rate: float) -> dict[str, Any]:
        """
        One policy update.

        :param learning_rate: before the stage's own schedule
        :return: what to log
        """
        if self.stage is None:
            self._begin_stage()
        stage = self.stage
        assert stage is not None
        estimators = self._estimators(stage)
        estimator = estimators[stage.done % len(estimators)]
        careful = _CAREFUL if stage.recipe == RICCATI else 1.0
        decay = 1.0 - (1.0 - _LAST_STEPS) * stage.done / stage.n_updates
        for group in self.policy.optimizer.param_groups:
            group["lr"] = learning_rate * careful * decay
        self.policy.optimizer.zero_grad()
        on_nodes = self.settings.horizon == 0
        record = self._on_nodes(estimator) if on_nodes else self._on_trajectories(estimator, len(estimators))
        record["train/gradient_norm"] = self._clip(estimator, clipped=not on_nodes)
        if np.isfinite(record["train/gradient_norm"]):
            self.policy.optimizer.step()
        else:
            _logger.warning(
                "The gradient is not finite: update %d is left out. Try a smaller learning_rate.", self._n_made + 1
            )
        record["train/candidate"] = f"{stage.recipe} ({stage.trained_on})"
        stage.done += 1
        self._n_made += 1
        if stage.done % _CHECK_EVERY == 0 or stage.done >= stage.n_updates:
            self._look(stage)
        if stage.done >= stage.n_updates:
            self._end_stage()
        return record

    def _look(self, stage: Stage) -> None:
        """Remember the policy if none of the stage was better: a gradient along trajectories that tumble leads anywhere."""
        if self.settings.horizon == 0:
            return
        n_actions = self.policy.n_actions if self.policy.is_stochastic else None
        estimators, found = self._estimators(stage), 0.0
        for estimator in estimators:
            # From where the task starts, the same trajectories every time, and none that training has seen. They go on for
            # longer than training looks ahead: who gets there late, or does not stay, shows after that.
            bundle = estimator.bundle(
                (self.settings.seed, 2**31),
                _N_COMPARED,
                max(estimator.n_steps(self.settings.horizon), estimator.steps_to_the_end),
                n_actions,
                share_elsewhere=0.0,
                node_values=self._end_values(estimator),
                costs_by=estimator.costs,
            )
            found += float(follow_policy(estimator.dynamics, self.policy, bundle).returns.mean()) / len(estimators)
        if found > stage.best_return:
            stage.best, stage.best_return = parameters_of(self.policy), found

    def _estimators(self, stage: Stage) -> Sequence[ModelEstimator]:
        """
        Those that updates take turns with, the main one first. The whole's model differs from the system about as much as the
        halves' models differ from the whole's: what works with all three does not rest on an accident of one.
        """
        if stage.trained_on == "half":
            assert self.halves is not None
            return self.halves[:1]
        return [self.whole, *(self.halves or ())] if self.settings.horizon != 0 else [self.whole]

    def _on_nodes(self, estimator: ModelEstimator) -> dict[str, Any]:
        equation = estimator.equation
        noise = self._node_noise(equation.n_nodes, equation.initial_weights)
        solution = gradient_on_nodes(equation, self.policy, noise, self._warm_start, self.settings.solver_tolerance)
        return {
            "train/estimated_return": solution.estimated_return,
            "solver/q_residual": solution.value_solve.residual,
            "solver/q_iterations": solution.value_solve.n_iterations,
            "solver/visitation_residual": solution.visitation_solve.residual,
            "solver/visitation_iterations": solution.visitation_solve.n_iterations,
        }

    def _on_trajectories(self, estimator: ModelEstimator, n_models: int) -> dict[str, Any]:
        bundle = estimator.bundle(
            (self.settings.seed, self._n_made),
            self._n_trajectories(estimator.dynamics),
            estimator.n_steps(self.settings.horizon),
            self.policy.n_actions if self.policy.is_stochastic else None,
            node_values=self._end_values(estimator),
            costs_by=estimator.costs,
        )
        trajectories = gradient_along_trajectories(estimator.dynamics, self.policy, bundle, _MOST_WEIGHT)
        from_starts = trajectories.returns[len(bundle.starts) // 2 :]
        # Of the models that take turns: what each says by itself would jump from update to update.
        self._returns = [*self._returns, float(from_starts.mean())][-n_models:]
        return {
            "train/estimated_return": float(np.mean(self._returns)),
            "train/survival": float(trajectories.survival[-1].mean()),
        }

    def _end_values(self, estimator: ModelEstimator) -> th.Tensor | None:
        """V at the nodes that trajectories end with; none for an infinite horizon, or where it is as it comes."""
        return None if self.settings.horizon in ("auto", float("inf")) else estimator.greedy.values

    def _n_trajectories(self, dynamics: DynamicsModel) -> int:
        return _N_TRAJECTORIES if dynamics.nodes.single or dynamics.coordinates.dim < 4 else _N_IN_MANY_DIMENSIONS

    def _clip(self, estimator: ModelEstimator, *, clipped: bool) -> float:
        """A trajectory that blows up must not throw the policy away with it."""
        largest = estimator.reward_size if clipped else float("inf")
        return float(th.nn.utils.clip_grad_norm_(self.policy.parameters(), largest))

    def _node_noise(self, n_nodes: int, like: th.Tensor) -> th.Tensor | None:
        if not self.policy.is_stochastic:
            return None
        generator = th.Generator().manual_seed(self.settings.seed)
        shape = (n_nodes, self.settings.n_action_samples, self.policy.n_actions)
        return th.randn(shape, generator=generator, dtype=th.float64).to(like.device)

    def _begin_stage(self) -> None:
        self.stage = stage = self._planned.pop(0)
        stage.began = time.perf_counter()
        self._warm_start, self._returns = WarmStart(), []
        # σ follows the schedule of the whole training, whichever candidate it is at.
        std_scale = float(self.policy.std_scale)
        # A fresh optimizer: what the old one knew of other gradients would hold back these.
        parameters = {} if stage.goes_on_from is None else {"policy": stage.goes_on_from["policy"]}
        load_parameters(self.policy, {**self.untrained, **parameters})
        self.policy.set_std_scale(std_scale)
        if stage.goes_on_from is None:
            teach(self.policy, stage.recipe, self._estimators(stage)[0], self.settings.seed)
            if stage.recipe != OWN:
                taught = Trained(stage.recipe, stage.trained_on, parameters_of(self.policy), 0, _since(stage.began))
                self.trained.append(taught)
        self._look(stage)
        _logger.info("Candidate: from %s, on %s of the data.", stage.recipe, stage.trained_on)

    def _end_stage(self) -> None:
        stage = self.stage
        assert stage is not None
        best = stage.best or parameters_of(self.policy)
        self.trained.append(Trained(stage.recipe, stage.trained_on, best, stage.done, _since(stage.began)))
        self.stage = None
        if not self._planned and self.halves is not None and all(one.trained_on == "half" for one in self.trained):
            self._plan_the_best()

    def _plan_the_best(self) -> None:
        """What does best on episodes that it was not trained on is trained further on all of them."""
        assert self.halves is not None
        judgement = self._ranking.judged([self.halves[1].dynamics], self.trained)
        names = [judged.name for judged in judgement.ranking]
        self.trained.sort(key=lambda one: names.index(name_of(one)))
        for one, judged in zip(self.trained, judgement.ranking, strict=True):
            one.unseen_score, one.unseen_lasting = judged.score, judged.lasting
        told = ", ".join(f"{judged.name} {judged.score:.4g}" for judged in judgement.ranking)
        _logger.info("On episodes that they were not trained on: %s", told)
        best, n_left = self.trained[0], self.settings.n_updates - self._n_made or 1
        self._planned.append(Stage(best.recipe, "all", n_left, goes_on_from=best.parameters))

    def finish(self, again: Callable[[int], Any]) -> tuple[Candidate, ...]:
        """
        Choose, and leave the policy at what was chosen.

        :param again: makes so many further updates, where what was trained on all of the data is not good enough
        :return: all candidates, the chosen one first
        """
        if self.stage is not None and self.stage.done:
            self._end_stage()
        if not self.trained:
            return ()
        order, self.judgement = self._ranking.rank(self.trained, self.settings.recipes)
        best_half = self.trained[order[0]].trained_on == "half"
        of_all = {one.recipe for one in self.trained if one.trained_on == "all"}
        ranked = (self.trained[number] for number in order)
        others = [one for one in ranked if one.trained_on == "half" and one.recipe not in of_all]
        if best_half and others and any(one.trained_on == "all" for one in self.trained):
            _logger.info("What all of the data have made is judged worse than what half of them had: another training.")
            n_updates = max(one.n_updates for one in self.trained if one.trained_on == "all")
            self._planned = [Stage(others[0].recipe, "all", n_updates, goes_on_from=others[0].parameters)]
            again(n_updates)
            order, self.judgement = self._ranking.rank(self.trained, self.settings.recipes)
        load_parameters(self.policy, self.trained[order[0]].parameters)
        assert self.judgement is not None
        found = {judged.name: judged for judged in self.judgement.ranking}
        return tuple(
            Candidate(
                one.recipe,
                one.trained_on,
                found[name_of(one)].score,
                found[name_of(one)].lasting,
                one.n_updates,
                one.seconds,
                one.unseen_score,
                one.unseen_lasting,
            )
            for one in (self.trained[number] for number in order)
        )

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            "untrained": self.untrained,
            "trained": [vars(one) for one in self.trained],
            "planned": [vars(stage) for stage in self._planned],
            "stage": None if self.stage is None else vars(self.stage),
            "n_made": self._n_made,
            "n_updates": self.settings.n_updates,
            "recipes": list(self.settings.recipes),
            "values": self._warm_start.q_history.values,
            "visitations": self._warm_start.visitation_history.values,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """
        :param state: from a checkpoint
        """
        self.untrained, self._n_made = state["untrained"], state["n_made"]
        self.settings = replace(self.settings, n_updates=state["n_updates"], recipes=tuple(state["recipes"]))
        self.trained = [Trained(**one) for one in state["trained"]]
        self._planned = [Stage(**one) for one in state["planned"]]
        self.stage = None if state["stage"] is None else Stage(**{**state["stage"], "began": time.perf_counter()})
        for value in state["values"]:
            self._warm_start.q_history.add(value)
        for value in state["visitations"]:
            self._warm_start.visitation_history.add(value)


def _since(began: float) -> float:
    return time.perf_counter() - began


def _shares(n: int, parts: int) -> list[int]:
    """As even as can be, and never nothing for all."""
    each, rest = divmod(n, parts)
    return [each + (number < rest) for number in range(parts)]
