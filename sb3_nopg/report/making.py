"""What a policy is predicted to do, before anything moves: a verdict, figures and pictures from a model with its data."""

import csv
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sb3_nopg.bellman.settings import EstimatorSettings
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.progress import phase
from sb3_nopg.data.action_lag import find_action_lag
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import dataset_fingerprint, parameter_fingerprint
from sb3_nopg.data.overlap import shared_rows
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.kernels.bandwidth import Bandwidths, varies
from sb3_nopg.policies.export import DeployedPolicy
from sb3_nopg.policies.told_names import quantities_of, told_by_environment
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judgement import Judgement
from sb3_nopg.report.band import predicted_band
from sb3_nopg.report.bounds import bias_bounds
from sb3_nopg.report.limits import Limit, check_names, find_exits, make_limits, share_leaving
from sb3_nopg.report.portraits import Histogram, Slice, StateMap, dimension_ranges, histograms, slices, visitation_map
from sb3_nopg.report.returns import check_held_out, find_returns
from sb3_nopg.report.stress import StressPicture, StressResult
from sb3_nopg.report.summary import CandidateFigures, DataSummary, ReportSummary
from sb3_nopg.report.support import SupportSummary, predicted_visitation, support_along_the_way, support_figures, visits_of
from sb3_nopg.report.trajectories import TrajectoryPicture, find_trajectories, make_judge
from sb3_nopg.report.verdict import KERNELS, Bandwidth, Returns, reach_verdict

__all__ = ["REPORT_SUFFIXES", "PolicyReport", "SupportSummary", "make_report", "read_curve", "support_along_the_way"]

REPORT_SUFFIXES = (".html", ".png")
# Where the policy goes, models of halves, returns, support and limits, trajectories, maps, slices.
_N_PARTS = 7


@dataclass(frozen=True)
class PolicyReport:
    """
    :param summary: verdict and figures
    :param labels: of the state's dimensions, with their units
    :param action_labels: of the action's dimensions
    :param histograms: of every dimension, in the data and under the policy
    :param visitation: predicted share of time in each cell, whatever the dimensions that are not shown
    :param slices: value and policy over the dimensions that matter most
    :param support: along the predicted way
    :param curve: number of updates and predicted return during training, (k, 2); None if not known
    :param trajectories: predicted step by step; None where there are none
    :param stress: on simulated rigs; None where nobody has tried
    """

    summary: ReportSummary
    labels: list[str]
    action_labels: list[str]
    histograms: list[Histogram]
    visitation: StateMap
    slices: list[Slice]
    support: SupportSummary
    curve: np.ndarray | None
    trajectories: TrajectoryPicture | None = None
    stress: StressPicture | None = None

    @property
    def estimated_return(self) -> float:
        """Predicted from the start states, discounted."""
        return self.summary.returns.plain


class Reported(Protocol):
    """A trained model, as its report sees it."""

    policy: Any
    num_timesteps: int
    keep: str
    candidates: Any
    judgement: Judgement | None

    @property
    def evaluation(self) -> PolicyEvaluation: ...
    @property
    def held_out_data(self) -> TransitionDataset | None: ...
    def get_env(self) -> Any: ...


def make_report(
    model: Reported,
    curve: np.ndarray | None = None,
    *,
    limits: Sequence[str] = (),
    held_out: TransitionDataset | None = None,
    names: Sequence[str] | None = None,
    learned_from: bool = True,
    trajectories: bool = True,
    stress: StressResult | None = None,
    goal: str | None = None,
) -> PolicyReport:
    """
    :param model: with its data attached
    :param curve: number of updates and predicted return during training, (k, 2), see :func:`read_curve`
    :param limits: regions that shall not be left, as formulas that are true inside: ``"abs(x) < 0.35"``, or over ``s[0]``, …
    :param held_out: data that the policy was not optimised on; None for those that the model held out itself, if any
    :param names: of the state's dimensions; None for those that the environment or the data know
    :param learned_from: whether the attached data are what the policy was optimised on; a model's file does not tell
    :param trajectories: whether to predict them, which takes some seconds
    :param stress: what became of the policy on simulated rigs, from `nopg_envs.stress.stress_test`; None to leave it out
    :param goal: where the system is to be in the end, a formula like those of limits; None for the environment's, if it has
        one, or else what the task's ends tell
    """
    evaluation, source = model.evaluation, "given"
    data, on_model = evaluation.data, evaluation.settings.on_model
    told = _told(model, data, names)
    regions = make_limits(limits, told.observation_names, data.observations)
    wanted = make_goal(goal, model.get_env(), told.observation_names, data)
    if held_out is None:
        held_out, source = model.held_out_data, "kept from training" if learned_from else "another part of these data"
    else:
        check_held_out(held_out, data)
    with phase("report", _N_PARTS) as advance:
        visitation = predicted_visitation(evaluation)
        visits = visits_of(evaluation, visitation)
        advance()
        judge = make_judge(evaluation) if trajectories else None
        advance()
        returns = find_returns(
            evaluation,
            held_out,
            source,
            learned_from=learned_from,
            held_out_chose=learned_from and held_out is not None and _has_chosen(model, held_out),
            # One alone is of all episodes.
            halves=judge.models if judge is not None and len(judge.models) > 1 else (),
        )
        advance()
        bandwidths = _bandwidths(evaluation.estimator.bandwidths, data, told)
        support, exits = support_figures(evaluation, visitation, visits), find_exits(evaluation, regions, data, held_out)
        lag = find_action_lag(data)
        advance()
        followed, picture = None, None
        if judge is not None:
            followed, picture = find_trajectories(judge, evaluation, told.observation_names, wanted)
            states = picture.rollouts.states
            exits = tuple(
                replace(found, leaving=share_leaving(region, states)) for found, region in zip(exits, regions, strict=True)
            )
        advance()
        labels, action_labels = told.observation_labels, told.action_labels
        bounds, over_states = bias_bounds(evaluation), visitation_map(evaluation, visits, labels)
        advance()
        through_states = slices(evaluation, visits, labels, regions)
        advance()
    stressed = None if stress is None else StressPicture.of(stress)
    figures = None if stressed is None else stressed.figures
    verdict, reasons = reach_verdict(returns, support, exits, model.num_timesteps, bandwidths, lag, followed, figures)
    starts = data.episode_starts
    summary = ReportSummary(
        verdict=verdict,
        reasons=reasons,
        notes=_notes(evaluation.settings, data, returns),
        policy_digest=parameter_fingerprint(DeployedPolicy(evaluation.policy, None)),
        algorithm=f"NOPG-{'S' if model.policy.is_stochastic else 'D'}, {type(model.policy).__name__}",
        n_updates=model.num_timesteps,
        gamma=float(evaluation.gamma),
        returns=returns,
        limits=exits,
        support=support,
        state_ranges=dimension_ranges(data, visits, labels),
        bandwidths=bandwidths,
        bounds=bounds,
        data=DataSummary(
            transitions=len(data),
            episodes=None if starts is None else len(starts),
            ends=int(data.terminals.sum()),
            held_out=None if held_out is None else len(held_out),
            fingerprint=dataset_fingerprint(data),
        ),
        trajectories=followed,
        transitions=evaluation.settings.transitions,
        system=tuple(evaluation.estimator.dynamics.describe(told.observation_names).splitlines()) if on_model else (),
        candidates=tuple(
            CandidateFigures(
                one.recipe, one.trained_on, one.score, one.lasting, one.n_updates, one.unseen_score, one.unseen_lasting
            )
            for one in model.candidates
        ),
        margin="" if model.judgement is None or not model.candidates else model.judgement.text(),
        band=None if picture is None else predicted_band(picture.rollouts, told.observation_names, told.action_names),
        stress=figures,
    )
    return PolicyReport(
        summary,
        labels,
        action_labels,
        histograms(data, visits, labels),
        over_states,
        through_states,
        visits.support,
        curve,
        picture,
        stressed,
    )


def read_curve(path: pathlib.Path) -> np.ndarray | None:
    """
    :param path: log of a training, CSV
    :return: number of updates and predicted return, (k, 2); None if there is no such file or nothing in it
    """
    if not path.is_file():
        return None
    try:
        with open(path, newline="", encoding="utf-8") as file:
            points = [
                (float(row["train/n_updates"]), float(row["train/estimated_return"]))
                for row in csv.DictReader(file)
                if row["train/estimated_return"]
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), f"no log of a training ({error!r})", "Remove it") from error
    return np.array(points) if points else None


def _has_chosen(model: Reported, held_out: TransitionDataset) -> bool:
    """Whether held-out data had a say in which parameters were kept."""
    if model.held_out_data is None or model.keep != "best_heldout":
        return False
    return shared_rows(held_out, model.held_out_data) > 0


def _bandwidths(chosen: Bandwidths, data: TransitionDataset, told: Quantities) -> tuple[Bandwidth, ...]:
    result = []
    for kernel, widths, names, units, samples in (
        ("state", chosen.state, told.observation_names, told.observation_units, data.observations),
        ("action", chosen.action, told.action_names, told.action_units, data.actions),
        ("next state", chosen.next_state, told.observation_names, told.observation_units, data.next_observations),
    ):
        # A dimension that never changes has a bandwidth only for form's sake.
        deviations = np.where(varies(samples), samples.std(axis=0, dtype=np.float64), 0.0)
        for name, unit, width, deviation in zip(names, units, widths, deviations, strict=True):
            relative = float(width / deviation) if deviation > 0 else None
            result.append(Bandwidth(kernel, name, unit, float(width), relative))
    return tuple(result)


def _notes(settings: EstimatorSettings, data: TransitionDataset, returns: Returns) -> tuple[str, ...]:
    notes = []
    if not returns.learned_from:
        notes.append(
            "These are not the data that the model learned from: they check the policy as far as they share no transitions "
            "with those."
        )
    elif returns.held_out is None:
        notes.append(
            "No data were held out: the policy has seen the episodes that its return and its trajectories are predicted from. "
            "Of episodes not trained on, a policy that began alike and saw one half can tell, where training has tried one. "
            "How often such a verdict is right was measured, see the manual's page of results."
        )
    if returns.held_out_chose:
        notes.append("The held-out data also chose the parameters: what they predict is on the high side.")
    if returns.interval_low is None:
        notes.append(f"There is no interval of the return ({returns.interval_source}).")
    sure = returns.interval_text(KERNELS)
    if sure:
        notes.append(f"The samples' kernels make another estimate than the model, {returns.interval_estimate:.5g} ({sure}).")
    if data.episode_starts is None:
        notes.append("The data knows no episodes: each transition counts as drawn on its own.")
    if not settings.on_model and settings.samples.n_next_state_samples == 1:
        notes.append("The next-state kernel is not used: its mean, the recorded next state, stands for it.")
    if settings.samples.pessimism > 0:
        which = "Figures of the samples' kernels" if settings.on_model else "All predictions"
        notes.append(
            f"{which} are pessimistic ({settings.samples.pessimism:g}): where support is thin, they expect the worst."
        )
    return tuple(notes)


def _told(model: Reported, data: TransitionDataset, names: Sequence[str] | None) -> Quantities:
    """What the caller, the environment or the data call the dimensions, or else their numbers."""
    told = quantities_of(model.get_env(), data.quantities, data.observation_dim, data.action_dim) or data.columns
    return told if names is None else replace(told, observation_names=check_names(names, data.observation_dim))


def make_goal(formula: str | None, env: Any, names: tuple[str, ...], data: TransitionDataset) -> Limit | None:
    """
    :param formula: of the goal; None for the environment's
    :param env: whose metadata may have a ``"goal"``; None without one
    :param names: of the state's dimensions
    :param data: whose states the formula is tried on
    :return: None where nobody has said what is wanted
    """
    if formula is None:
        told = told_by_environment(env)
        formula, names = told.get("goal"), tuple(told.get("observation_names", names))
    return None if formula is None else make_limits([formula], names, data.observations, "goal")[0]
