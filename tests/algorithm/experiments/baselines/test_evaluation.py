"""Evaluations during training, of which the best is kept."""

import numpy as np

from helpers.one_step import one_step_data
from sb3_nopg.experiments.baselines import BestEvaluation, offline_ddpg


def test_what_was_not_learned_is_not_the_best():
    values = iter([9.0, np.nan, 1.0, 3.0, 3.0, 2.0])
    evaluation = BestEvaluation(lambda model: next(values), every=1)
    offline_ddpg(one_step_data(), seed=0).learn(5, evaluation)
    assert (evaluation.best.n_updates, evaluation.best.value) == (3, 3.0)
    assert evaluation.last.value == 2.0
