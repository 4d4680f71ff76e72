"""How a course of training begins: what to try, on which data, and where one that was broken off goes on."""

import logging
from collections.abc import Callable
from typing import Any

from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.judge import halves, steps_ahead
from sb3_nopg.prediction.model_estimator import ModelEstimator
from sb3_nopg.training.candidates import OWN, CourseSettings, recipes_for
from sb3_nopg.training.course import Course

_logger = logging.getLogger(__name__)
# The nodes' equations are solved for one update after another: their values need not be better than the model.
_NODE_TOLERANCE = 1e-4


def plan_course(
    policy: NOPGPolicy,
    estimator: Estimator,
    n_updates: int,
    horizon: str | float,
    make_policy: Callable[[], NOPGPolicy],
    *,
    from_the_start: bool,
    before: dict[str, Any] | None = None,
) -> Course:
    """
    :param policy: to train
    :param estimator: on what it learns from
    :param n_updates: of the course
    :param horizon: steps to follow, 0 for the nodes alone, infinity, or ``"auto"``
    :param make_policy: makes another one like the policy, on the processor
    :param from_the_start: whether the policy is untrained; one that is trained goes on from where it is
    :param before: state of a course that was broken off, to go on with
    """
    whole, settings = estimator.model, estimator.settings
    recipes = recipes_for(whole)
    if not (from_the_start and n_updates >= 2 * len(recipes) and policy.can_be_taught):
        recipes = (OWN,)
    course_settings = CourseSettings(
        n_updates,
        horizon,
        settings.samples.n_actions_at_nodes,
        max(settings.samples.solver_tolerance, _NODE_TOLERANCE),
        settings.seed,
        recipes if before is None else tuple(before["recipes"]),
    )
    parts = _halves(estimator) if len(course_settings.recipes) > 1 else None
    course = Course(policy, course_settings, whole, parts, steps_ahead(settings.gamma), make_policy)
    if before is not None:
        course.restore(_stretched(before, n_updates))
    return course


def _halves(estimator: Estimator) -> tuple[ModelEstimator, ModelEstimator] | None:
    data = estimator.model.dataset
    rows, others = halves(data, estimator.settings.seed % 2**31)
    if rows is None or others is None:
        _logger.warning("There are too few episodes to keep some from training: candidates are judged by what they learned.")
        return None
    one, other = (estimator.on(data.filter(part)).model for part in (rows, others))
    return one, other


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
