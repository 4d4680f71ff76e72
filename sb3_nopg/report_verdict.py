"""Go, care or no: what speaks against a policy before it moves anything, in plain words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sb3_nopg.report_limits import LimitFinding
from sb3_nopg.report_support import SupportFigures

GO, CARE, NO = "go", "care", "no"
# A verdict is the worst of its objections. Each rule has a value from which on it asks for care, and one that says no.
# Of the predicted return's size, how much less data that were held out may say.
DROP_CARE, DROP_NO = 0.1, 0.5
# Width of the bootstrap interval, of the return's size.
WIDE_CARE = 0.5
# Share of the policy's time with less than one sample behind the estimates.
THIN_CARE, THIN_NO = 0.1, 0.5
# Predicted discounted probability of leaving a limit.
EXIT_CARE, EXIT_NO = 0.05, 0.5
# Transitions that the estimated return rests on.
FEW_CARE, FEW_NO = 30.0, 5.0
# Share of the weights that the neighbour lists may lack.
TRUNCATION_CARE, TRUNCATION_NO = 0.1, 0.5
# Returns that are smaller than this share of what can be are compared with that share instead.
_SMALL_RETURN = 0.01

MEANINGS = {
    GO: "Nothing in the data speaks against this policy.",
    CARE: "Watch this policy closely, at low power and for a short time first.",
    NO: "Do not run this policy: the data does not carry it, or speaks against it.",
}


@dataclass(frozen=True)
class Returns:
    """
    Predicted returns, discounted, from the start states.

    :param plain: by the data that the policy was optimised on
    :param held_out: by data that it was not; None without any
    :param held_out_source: where those come from
    :param interval_low: lower end of the bootstrap interval; None if there is none
    :param interval_high: upper end
    :param interval_level: share of the resamples between
    :param interval_source: data that the interval is about, or why there is none
    :param behaviour: mean discounted return of the recorded episodes, which may be cut short; None without episodes
    :param value_range: difference between the largest and the smallest return that rewards like the recorded ones allow
    """

    plain: float
    held_out: float | None
    held_out_source: str
    interval_low: float | None
    interval_high: float | None
    interval_level: float
    interval_source: str
    behaviour: float | None
    value_range: float

    @property
    def size(self) -> float:
        """What differences between returns are compared with; never zero."""
        largest = max(abs(self.plain), abs(self.held_out or 0.0), _SMALL_RETURN * self.value_range)
        return largest or 1.0

    @property
    def drop(self) -> float | None:
        """By how much the held-out return falls short, as a share of the return's size."""
        return None if self.held_out is None else (self.plain - self.held_out) / self.size


@dataclass(frozen=True)
class Objection:
    """
    :param level: ``"care"`` or ``"no"``
    :param text: why
    """

    level: str
    text: str


def judge(
    returns: Returns, support: SupportFigures, limits: Sequence[LimitFinding], n_updates: int
) -> tuple[str, tuple[str, ...]]:
    """
    :param returns: predicted
    :param support: behind the estimates
    :param limits: that the user gave
    :param n_updates: that the policy was trained for
    :return: ``"go"``, ``"care"`` or ``"no"``, and every objection, the grave ones first
    """
    objections = [*_about_returns(returns), *_about_limits(limits), *_about_support(support)]
    if n_updates == 0:
        objections.append(Objection(CARE, "The policy was never trained."))
    grave = [objection.text for objection in objections if objection.level == NO]
    light = [objection.text for objection in objections if objection.level == CARE]
    return NO if grave else CARE if light else GO, (*grave, *light)


def _about_returns(returns: Returns) -> Iterator[Objection]:
    if returns.held_out is None or returns.drop is None:
        yield Objection(
            CARE,
            "No data were held out: a policy finds every accident of its data that flatters it, and nothing here would show "
            "it. Give held-out data.",
        )
    elif returns.drop > DROP_CARE:
        yield Objection(
            NO if returns.drop > DROP_NO else CARE,
            f"Data that the policy was not optimised on predict {returns.held_out:.4g} instead of {returns.plain:.4g}: part "
            f"of the prediction is flattery.",
        )
    if returns.interval_low is None or returns.interval_high is None:
        return
    if returns.interval_high - returns.interval_low > WIDE_CARE * returns.size:
        yield Objection(
            CARE,
            f"The predicted return depends on which episodes happened to be recorded: it lies between "
            f"{returns.interval_low:.4g} and {returns.interval_high:.4g}. Record more of them.",
        )


def _about_limits(limits: Sequence[LimitFinding]) -> Iterator[Objection]:
    for limit in limits:
        if limit.ever_left and limit.worst > EXIT_CARE:
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
