"""Go, care or no: what speaks against a policy before it moves anything, in plain words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sb3_nopg.data.action_lag import ActionLag
from sb3_nopg.report.limits import LimitFinding
from sb3_nopg.report.stress import StressFigures
from sb3_nopg.report.support import SupportFigures
from sb3_nopg.report.trajectories import TrajectoryFigures

GO, CARE, NO = "go", "care", "no"
#: returns that an interval may be of
PLAIN, HELD_OUT, KERNELS = "plain", "held out", "kernels"
# A verdict is the worst of its objections. Each rule has a value from which on it asks for care, and one that says no.
# How much less data that were held out may say, in standard deviations of the values: of the return itself, a share would
# depend on where the reward has its zero.
DROP_CARE, DROP_NO = 0.5, 2.0
# Width of the bootstrap interval, in the same units.
WIDE_CARE = 1.0
# Share of the policy's time with less than one sample behind the estimates.
THIN_CARE, THIN_NO = 0.1, 0.5
# Predicted discounted probability of leaving a limit.
EXIT_CARE, EXIT_NO = 0.05, 0.5
# Transitions that the estimated return rests on.
FEW_CARE, FEW_NO = 30.0, 5.0
# Share of the weights that the neighbour lists may lack.
TRUNCATION_CARE, TRUNCATION_NO = 0.1, 0.5
# Share of the start states that nothing is known about.
LOST_CARE, LOST_NO = 0.1, 0.5
# Share of the predicted trajectories that do what is wanted, below which it is care, or no. Where the trajectories' model is
# poor (``POOR_MODEL``), it is no more than care.
SUCCESS_CARE, SUCCESS_NO = 0.9, 0.5
# Share of the simulated rigs that hold. No more than care: the real one may differ from all of them.
STRESS_CARE = 0.9
# Bandwidth of a state or action, in standard deviations of the data.
BROAD_CARE = 1.5
# Returns of unlike policies differ by no less than this, in standard deviations of the values.
BLIND_CARE = 0.01
# Values that differ by less than this share of what can be, or of themselves, are compared with that instead.
_SMALL_SPREAD, _ROUNDING = 0.01, 1e-5

MEANINGS = {
    GO: "Nothing in the data speaks against this policy.",
    CARE: "Watch this policy closely, at low power and for a short time first.",
    NO: "Do not run this policy: the data does not carry it, or speaks against it.",
}


@dataclass(frozen=True)
class Bandwidth:
    """
    :param kernel: ``"state"``, ``"action"`` or ``"next state"``
    :param name: of the dimension
    :param unit: ``""`` where unknown
    :param width: standard deviation
    :param in_deviations: the same in standard deviations of the data; None where the data are constant
    """

    kernel: str
    name: str
    unit: str
    width: float
    in_deviations: float | None


@dataclass(frozen=True)
class Returns:
    """
    Predicted returns, discounted, from the start states.

    :param plain: by the data that are attached, as a rule those that the policy was optimised on
    :param learned_from: whether they are; if not, they check the policy as held-out data do
    :param held_out: by data that it was not optimised on; None without any
    :param held_out_source: where those come from
    :param held_out_chose: whether training also chose the parameters by them
    :param interval_low: lower end of an interval; None if there is none
    :param interval_high: upper end
    :param interval_level: how sure it is
    :param interval_source: what the interval rests on, or why there is none
    :param behaviour: mean discounted return of the recorded episodes, which may be cut short; None without episodes
    :param value_range: difference between the largest and the smallest return that rewards like the recorded ones allow
    :param value_spread: standard deviation of the values q over the data
    :param policy_spread: difference between the largest and the smallest return that is predicted for this policy and for
        those that always do the least, the most, or what lies in the middle
    :param interval_of: return that the interval is of: ``"plain"``, ``"held out"``, or, where a model predicts these and the
        interval does not come from it, ``"kernels"``
    :param interval_estimate: that return
    """

    plain: float
    learned_from: bool
    held_out: float | None
    held_out_source: str
    held_out_chose: bool
    interval_low: float | None
    interval_high: float | None
    interval_level: float
    interval_source: str
    behaviour: float | None
    value_range: float
    value_spread: float
    policy_spread: float
    interval_of: str = PLAIN
    interval_estimate: float | None = None

    def interval_text(self, of: str) -> str:
        """
        :param of: return that it is to be of
        :return: the interval with what it rests on; "" where there is none of that return
        """
        if of != self.interval_of or self.interval_low is None or self.interval_high is None:
            return ""
        ends = f"{self.interval_low:.5g} to {self.interval_high:.5g}"
        return f"{100 * self.interval_level:.0f} % interval {ends}, by {self.interval_source}"

    @property
    def size(self) -> float:
        """What differences between returns are compared with, whatever the reward's zero; never zero itself."""
        return max(self.value_spread, _SMALL_SPREAD * self.value_range, _ROUNDING * abs(self.plain)) or 1.0

    @property
    def drop(self) -> float | None:
        """By how much the held-out return falls short, in standard deviations of the values."""
        return None if self.held_out is None else (self.plain - self.held_out) / self.size

    @property
    def known(self) -> bool:
        """Whether all predictions are numbers."""
        found = (self.plain, self.held_out, self.interval_low, self.interval_high, self.value_spread)
        return all(number is None or math.isfinite(number) for number in found)


@dataclass(frozen=True)
class Objection:
    """
    :param level: ``"care"`` or ``"no"``
    :param text: why
    """

    level: str
    text: str


def reach_verdict(
    returns: Returns,
    support: SupportFigures,
    limits: Sequence[LimitFinding],
    n_updates: int,
    bandwidths: Sequence[Bandwidth] = (),
    lag: ActionLag | None = None,
    trajectories: TrajectoryFigures | None = None,
    stress: StressFigures | None = None,
) -> tuple[str, tuple[str, ...]]:
    """
    Trajectories through models of halves of the episodes come first. What the samples' kernels say about their own estimates
    counts only where there are none, or none to rely on.

    :param returns: predicted
    :param support: behind the estimates
    :param limits: that the user gave
    :param n_updates: that the policy was trained for
    :param bandwidths: of the kernels
    :param lag: of actions in the data; None where it is not known
    :param trajectories: predicted step by step; None where there are none
    :param stress: what became of the policy on simulated rigs; None where nobody has tried
    :return: ``"go"``, ``"care"`` or ``"no"``, and every objection, the grave ones first
    """
    reliable = trajectories is not None and not trajectories.poor
    objections = [
        *_about_limits(limits, reliable),
        *_about_starts(support),
        *_about_trajectories(trajectories),
        *_about_stress(stress),
    ]
    if not reliable:
        objections += [*_about_returns(returns), *_about_support(support), *_about_sight(returns, bandwidths)]
    elif returns.held_out is not None:
        objections += _about_held_out(returns)
    # Trajectories through a model that looks at earlier steps have it in them.
    in_the_model = reliable and trajectories is not None and trajectories.n_earlier_steps >= 1
    if lag is not None and lag.lag and not in_the_model:
        objections.append(Objection(CARE, lag.remark))
    if n_updates == 0:
        objections.append(Objection(CARE, "The policy was never trained."))
    grave = [objection.text for objection in objections if objection.level == NO]
    light = [objection.text for objection in objections if objection.level == CARE]
    return NO if grave else CARE if light else GO, (*grave, *light)


def _about_returns(returns: Returns) -> Iterator[Objection]:
    if not returns.known:
        yield Objection(NO, "The predicted return is no number: the data cannot tell what this policy does.")
        return
    yield from _about_held_out(returns)
    low, high = returns.interval_low, returns.interval_high
    if low is None or high is None:
        return
    if high - low > WIDE_CARE * returns.size:
        by = "By the samples' kernels, the" if returns.interval_of == KERNELS else "The"
        yield Objection(
            CARE,
            f"{by} predicted return depends on which episodes happened to be recorded: it lies between {low:.4g} and "
            f"{high:.4g}. Record more of them.",
        )


def _about_held_out(returns: Returns) -> Iterator[Objection]:
    if returns.held_out is None or returns.drop is None:
        if returns.learned_from:
            yield Objection(
                CARE,
                "No data were held out: a policy finds every accident of its data that flatters it, and nothing here would "
                "show it. Give held-out data.",
            )
    elif returns.drop > DROP_CARE:
        yield Objection(
            NO if returns.drop > DROP_NO else CARE,
            f"The held-out prediction is lower, {returns.held_out:.4g} instead of {returns.plain:.4g}: the difference is "
            f"partly smaller data, and partly accidents of its own data that the policy has found.",
        )


def _about_limits(limits: Sequence[LimitFinding], reliable: bool) -> Iterator[Objection]:
    """
    :param limits: that the user gave
    :param reliable: whether trajectories are; these know limits that no recorded step has left, as they go no further than
        what was recorded
    """
    for limit in limits:
        if reliable and limit.leaving is not None:
            if limit.leaving > EXIT_CARE:
                yield Objection(
                    NO if limit.leaving > EXIT_NO else CARE,
                    f"{100 * limit.leaving:.3g} % of the predicted trajectories leave {limit.formula}.",
                )
        elif limit.ever_left and limit.worst > EXIT_CARE:
            yield Objection(
                NO if limit.worst > EXIT_NO else CARE,
                f"It is predicted to leave {limit.formula} with a discounted probability of {100 * limit.worst:.3g} %.",
            )
        elif not limit.ever_left:
            yield Objection(
                NO if limit.worst > EXIT_NO else CARE,
                f"No recorded step leaves {limit.formula}: whether the policy will is not known, although the prediction is "
                f"{100 * limit.worst:.3g} %.",
            )


def _about_support(support: SupportFigures) -> Iterator[Objection]:
    figures = (support.thin_share, support.effective_samples, support.truncation, support.lost_starts)
    if not all(math.isfinite(figure) for figure in figures):
        yield Objection(NO, "How many samples stand behind the prediction is no number: the data does not carry this policy.")
        return
    if support.thin_share > THIN_CARE:
        yield Objection(
            NO if support.thin_share > THIN_NO else CARE,
            f"For {100 * support.thin_share:.0f} % of its time the policy is where less than one sample stands behind the "
            f"estimates: it leaves the data, and the predictions are guesses there.",
        )
    if support.effective_samples < FEW_CARE:
        yield Objection(
            NO if support.effective_samples < FEW_NO else CARE,
            f"The prediction rests on {support.effective_samples:.3g} transitions, were all used alike: it tells their "
            f"accidents.",
        )
    if support.truncation > TRUNCATION_CARE:
        yield Objection(
            NO if support.truncation > TRUNCATION_NO else CARE,
            f"Up to {100 * support.truncation:.0f} % of the weights behind the estimates may be missing from the neighbour "
            f"lists. Raise n_neighbors or widen the action bandwidth.",
        )


def _about_starts(support: SupportFigures) -> Iterator[Objection]:
    if support.lost_starts > LOST_CARE:
        yield Objection(
            NO if support.lost_starts > LOST_NO else CARE,
            f"At {100 * support.lost_starts:.0f} % of the start states there is no data near: nothing is known about what the "
            f"policy does from there.",
        )


def _about_trajectories(figures: TrajectoryFigures | None) -> Iterator[Objection]:
    if figures is None:
        return
    if not figures.wanted_is_known:
        yield Objection(
            CARE,
            "Nobody has said what is wanted: the task never ends in these data, and there is no goal. A policy that only goes "
            'on may do anything. Name a goal, like --goal "s[0] > 0.9".',
        )
    if figures.succeeding >= SUCCESS_CARE:
        return
    told = f"Only {figures.success_text()}. {figures.text()}"
    if figures.poor:
        unexplained = f"{100 * figures.model_error:.0f} %"
        yield Objection(
            CARE,
            f"{told} The model that predicts them is poor and leaves {unexplained} of the changes unexplained: this "
            f"may be its own error.",
        )
    else:
        yield Objection(NO if figures.succeeding < SUCCESS_NO else CARE, told)


def trajectory_verdict(figures: TrajectoryFigures) -> str:
    """
    :param figures: of a policy
    :return: what its trajectories say by themselves, ``"go"``, ``"care"`` or ``"no"``; poor ones never say go
    """
    levels = {objection.level for objection in _about_trajectories(figures)}
    return NO if NO in levels else CARE if levels or figures.poor else GO


def _about_stress(figures: StressFigures | None) -> Iterator[Objection]:
    if figures is not None and figures.share < STRESS_CARE:
        yield Objection(CARE, f"Of simulated rigs that might be yours {figures.text()}.")


def _about_sight(returns: Returns, bandwidths: Sequence[Bandwidth]) -> Iterator[Objection]:
    """Whether the estimator could tell a good policy from a bad one."""
    for kernel in ("state", "action"):
        broad = [
            entry
            for entry in bandwidths
            if entry.kernel == kernel and entry.in_deviations is not None and entry.in_deviations > BROAD_CARE
        ]
        if broad:
            widths = ", ".join(f"{entry.name} {entry.in_deviations:.3g}" for entry in broad)
            yield Objection(
                CARE,
                f"The kernels see no difference between {kernel}s: their bandwidths are wider than the data ({widths} "
                f"standard deviations). Lower {kernel}_bandwidth_factor.",
            )
    if returns.known and returns.policy_spread < BLIND_CARE * returns.size:
        yield Objection(
            CARE,
            "The prediction does not depend on the policy: policies that always do the least, the most, or what lies in the "
            "middle are predicted to earn the same.",
        )
