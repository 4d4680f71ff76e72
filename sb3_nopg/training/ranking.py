"""Which candidate is kept: the judge's ranking, with more trust in what has seen more of the data and holds still."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.step_function import step_function
from sb3_nopg.prediction.judge import Judge
from sb3_nopg.prediction.judgement import Judged, Judgement
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.prediction.rollouts import Actor
from sb3_nopg.training.candidates import Trained, name_of

# A policy of half of the data must be better by this share of what lies between the best and the worst candidate, or last
# more often by this share.
_TELLING, _LASTING_LESS = 0.05, 0.02
# The same where all are judged by what they were trained on, which tells little: the first recipe counts as the safest.
_TELLING_IN_SAMPLE = 0.5
# Where all do what is wanted, even the worst: what is less than this share of the score tells nothing.
_A_TRIFLE = 1e-3
# A policy that changes its action by more than this share of its range a step gives way to one that is as good.
_CALM = 0.05


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
        trifle = _A_TRIFLE * abs(best.score)
        nearly = best.score - max(telling * (best.score - worst.score), trifle)

        def comes_later(number: int) -> tuple[bool, int]:
            # What was made of all of the data has seen more than halves can tell: it comes first where it is nearly as good.
            one = trained[number]
            later = not (one.trained_on == "all" and _is_as_good(found[name_of(one)], nearly, best.lasting))
            safest_first = self._halves is None and not later
            return later, recipes.index(one.recipe) if safest_first else 0

        order.sort(key=comes_later)
        first = found[name_of(trained[order[0]])]
        if first.chatter.change > _CALM:
            # The first of those that are calm, were trained and are as good.
            for number in order:
                judged = found[name_of(trained[number])]
                as_good = _is_as_good(judged, first.score - trifle, first.lasting)
                if as_good and judged.chatter.change <= _CALM and trained[number].n_updates:
                    order.remove(number)
                    order.insert(0, number)
                    break
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


def _is_as_good(judged: Judged, score: float, lasting: float) -> bool:
    """Whether it reaches a score and lasts about as often."""
    return judged.score >= score and judged.lasting >= lasting - _LASTING_LESS


def _with_chosen_first(judgement: Judgement, chosen: str) -> Judgement:
    """The margin is that of the policy that is kept, also where it is not the one that is judged best."""
    first = next(judged for judged in judgement.ranking if judged.name == chosen)
    if judgement.ranking[0] is first:
        return judgement
    others = tuple(judged for judged in judgement.ranking if judged is not first)
    return replace(
        judgement,
        ranking=(first, *others),
        margin=first.score - others[0].score,
        told_apart=False,
        flights=None,
        is_clear=False,
    )
