"""Which candidate is kept, whatever the judge found them to be."""

import numpy as np
import pytest

from sb3_nopg.prediction.chatter import Chatter
from sb3_nopg.prediction.judgement import Judged, Judgement
from sb3_nopg.training.candidates import OWN, RICCATI, VALUE_ITERATION, Trained, name_of
from sb3_nopg.training.ranking import Ranking

RECIPES = (VALUE_ITERATION, OWN, RICCATI)


class _Whole:
    dynamics = None


def kept(monkeypatch, *candidates, in_sample=False):
    """
    :param candidates: recipe, half or all, score, share that last, chatter, and number of updates where it is not 100
    :return: names in the order of the ranking
    """
    trained, judged = [], []
    for recipe, trained_on, score, lasting, chatter, *n_updates in candidates:
        trained.append(Trained(recipe, trained_on, {}, *(n_updates or [100]), 1.0))
        judged.append(Judged(name_of(trained[-1]), score, score, score, lasting, Chatter(chatter, 0.0)))
    judged.sort(key=lambda one: -np.nan_to_num(one.score, nan=-np.inf))
    judgement = Judgement(tuple(judged), 10, 1, None, None, None, 0.0)
    ranking = Ranking(_Whole(), None if in_sample else (_Whole(), _Whole()), 10, 0, lambda: None)
    monkeypatch.setattr(ranking, "judged", lambda models, trained: judgement)
    order, found = ranking.rank(trained, RECIPES)
    assert found.ranking[0].name == name_of(trained[order[0]])
    return [name_of(trained[number]) for number in order]


def test_what_has_seen_all_of_the_data_comes_first_where_it_is_nearly_as_good(monkeypatch):
    candidates = (OWN, "half", -100.0, 1.0, 0.0), (OWN, "all", -104.0, 1.0, 0.0), (RICCATI, "half", -200.0, 1.0, 0.0)
    assert kept(monkeypatch, *candidates)[0] == "own (all)"
    worse = candidates[0], (OWN, "all", -120.0, 1.0, 0.0), candidates[2]
    assert kept(monkeypatch, *worse) == ["own (half)", "own (all)", "riccati (half)"]
    falls_more_often = candidates[0], (OWN, "all", -104.0, 0.9, 0.0), candidates[2]
    assert kept(monkeypatch, *falls_more_often)[0] == "own (half)"


def test_candidates_that_all_work_are_not_told_apart_by_crumbs(monkeypatch):
    """All hold the pole: a share of the difference between best and worst is no difference."""
    candidates = (
        (VALUE_ITERATION, "half", 999.99, 1.0, 0.02),
        (OWN, "all", 999.95, 1.0, 0.02),
        (RICCATI, "half", 999.9, 1.0, 0.02),
    )
    assert kept(monkeypatch, *candidates)[0] == "own (all)"


@pytest.mark.parametrize("in_sample", [False, True])
def test_a_trembling_one_gives_way_to_a_calm_one_that_is_as_good(monkeypatch, in_sample):
    trembling, calm = (VALUE_ITERATION, "all", 1000.0, 1.0, 0.28), (OWN, "all", 999.5, 1.0, 0.02)
    assert kept(monkeypatch, trembling, calm, (RICCATI, "all", 100.0, 0.0, 0.01), in_sample=in_sample) == [
        "own (all)",
        "value_iteration (all)",
        "riccati (all)",
    ]


@pytest.mark.parametrize("in_sample", [False, True])
@pytest.mark.parametrize(
    ("trembling", "calm", "worst"),
    [
        pytest.param((1000.0, 1.0), (990.0, 1.0, 100), -1e5, id="earns less"),
        pytest.param((-300.0, 1.0), (-520.0, 1.0, 100), -4900.0, id="far from the worst"),
        pytest.param((1000.0, 1.0), (999.9, 0.9, 100), 100.0, id="falls more often"),
        pytest.param((1000.0, 1.0), (999.9, 1.0, 0), 100.0, id="was never trained"),
        pytest.param((0.0, 1.0), (-1.0, 1.0, 100), -2.0, id="scores about nothing"),
        pytest.param((1000.0, 1.0), (np.nan, 1.0, 100), 100.0, id="no number"),
    ],
)
def test_calm_is_not_enough(monkeypatch, trembling, calm, worst, in_sample):
    candidates = (
        (VALUE_ITERATION, "all", *trembling, 0.28),
        (RICCATI, "all", calm[0], calm[1], 0.02, calm[2]),
        (OWN, "all", worst, 0.5, 0.1),
    )
    assert kept(monkeypatch, *candidates, in_sample=in_sample)[0] == "value_iteration (all)"


def test_a_calm_half_comes_before_what_trembles_and_has_seen_all(monkeypatch):
    """A training on all of the data follows."""
    trembling, calm = (VALUE_ITERATION, "all", 1000.0, 1.0, 0.28), (RICCATI, "half", 999.5, 1.0, 0.02)
    assert kept(monkeypatch, trembling, calm, (OWN, "half", 500.0, 0.5, 0.02))[0] == "riccati (half)"


def test_judged_by_what_they_learned_the_safest_recipe_comes_first(monkeypatch):
    candidates = (OWN, "all", -100.0, 1.0, 0.0), (VALUE_ITERATION, "all", -140.0, 1.0, 0.0), (RICCATI, "all", -200.0, 1.0, 0.0)
    assert kept(monkeypatch, *candidates, in_sample=True)[0] == "value_iteration (all)"
