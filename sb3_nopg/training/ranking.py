"""Which candidate is kept: of good ones, as the judge sees them, a calm one that has seen all of the data."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import step_function
from sb3_nopg.prediction.judge import Judge, Judgement
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.prediction.rollouts import Actor
from sb3_nopg.training.candidates import Trained, name_of

# A policy of half of the data must be better by this share of what lies between the best and the worst candidate, or last
# more often by this share.
_TELLING, _LASTING_LESS = 0.05, 0.02
# A policy that misses no more than this share of the best one's score is good too.
_NOT_MISSED = 0.01
# Of good policies those come first that change their action by no more than this share of its range a step.
_CALM = 0.05
# What is telling where all are judged by what they were trained on, which tells little: the first recipe is the safest.
_TELLING_IN_SAMPLE = 0.5


class Ranking:
    """
    :param whole: estimator on all of the data
    :param halves: estimators on one half of the episodes and on the other; None where there are too few for that
    :param n_steps: that the judge follows policies
    :param seed: of the judge's noise
    :param make_policy: makes a policy, with any parameters, on the processor
    """

    def __init__(
        self,
        whole: ModelEstimator,
        halves: tuple[ModelEstimator, ModelEstimator] | None,
        n_steps: int,
        seed: int,
        make_policy: Callable[[], NOPGPolicy],
    ):
        self._whole, self._halves, self._n_steps, self._seed = whole, halves, n_steps, seed
        self._make_policy = make_policy

    def rank(self, trained: Sequence[Trained], recipes: Sequence[str]) -> tuple[list[int], Judgement]:
        """
        :param trained: candidates
        :param recipes: that there are, the safest first
        :return: numbers of what was trained, best first, and the judgement by models of both halves, or of the whole where
            there are none
        """
        models = [self._whole.dynamics] if self._halves is None else [half.dynamics for half in self._halves]
        judgement = self.judged(models, trained)
        names = [judged.name for judged in judgement.ranking]
        order = sorted(range(len(trained)), key=lambda number: names.index(name_of(trained[number])))
        found, best, worst = {judged.name: judged for judged in judgement.ranking}, judgement.ranking[0], judgement.ranking[-1]
        telling = _TELLING_IN_SAMPLE if self._halves is None else _TELLING
        enough = best.score - max(telling * (best.score - worst.score), _NOT_MISSED * abs(best.score))

        def comes_later(number: int) -> tuple[bool, bool, bool, int]:
            one = trained[number]
            judged = found[name_of(one)]
            if judged.score < enough or judged.lasting < best.lasting - _LASTING_LESS:
                return True, False, False, 0
            # What was made of all of the data has seen more than halves can tell: it comes first where it is good.
            safest_first = recipes.index(one.recipe) if self._halves is None else 0
            return False, judged.chatter > _CALM, one.trained_on != "all", safest_first

        order.sort(key=comes_later)
        return order, _with_chosen_first(judgement, name_of(trained[order[0]]))

    def judged(self, models: Sequence[DynamicsModel], trained: Sequence[Trained]) -> Judgement:
        """
        :param models: to follow candidates through
        :param trained: these
        """
        judge = Judge([model.to("cpu") for model in models], self._whole.initial_states, self._n_steps, self._seed % 2**31)
        return judge.judge({name_of(one): self._actor(one.parameters) for one in trained})

    def _actor(self, parameters: dict[str, Any]) -> Actor:
        """What a policy does. Step by step a processor is the quicker one, whatever the policy is on."""
        # Made as the policy itself was: one that holds results of autograd cannot be copied.
        policy = self._make_policy()
        policy.load_state_dict({name: value.cpu() for name, value in parameters["policy"].items()})
        policy.set_training_mode(False)
        step = step_function(policy)
        return lambda observations: step(observations, None)


def _with_chosen_first(judgement: Judgement, chosen: str) -> Judgement:
    """The margin is that of the policy that is kept, also where it is not the one that is judged best."""
    first = next(judged for judged in judgement.ranking if judged.name == chosen)
    if judgement.ranking[0] is first:
        return judgement
    others = tuple(judged for judged in judgement.ranking if judged is not first)
    return replace(judgement, ranking=(first, *others), margin=first.score - others[0].score, told_apart=False, flights=None)
