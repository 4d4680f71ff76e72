"""Limits that a person gives as formulas over the state, and how likely a policy is to leave them."""

import keyword
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.column_heads import identifier
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.files.expression import evaluate
from sb3_nopg.prediction.evaluation import PolicyEvaluation

# What a formula calls the whole state; its columns are s[0], s[1], …
STATE = "s"


@dataclass(frozen=True)
class Limit:
    """
    A region of states that shall not be left.

    :param formula: true inside, like ``"abs(x) < 0.35"``, over the names of the state's dimensions or ``s[0]``, ``s[1]``, …
    :param names: of the dimensions
    :param field: what a message about it is about
    """

    formula: str
    names: tuple[str, ...]
    field: str = "limit"

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: (m, d_s)
        :return: whether they lie inside, (m,)
        """
        columns = {name: states[:, number] for number, name in self._usable.items()}
        try:
            answer = evaluate(self.formula, {STATE: states, **columns}, len(states))
        except InputError as error:
            # Its advice is about rewards, and is of no use here.
            problem = str(error).partition(": ")[2].partition(". Write it like")[0]
            raise InputError(self.field, problem, f"Write it like {self._example()}") from error
        if answer.dtype != np.bool_:
            fix = f"Compare with a bound, like {self._example()}"
            raise InputError(self.field, f"{self.formula!r} is a number, and not true or false", fix)
        return answer

    @property
    def _usable(self) -> dict[int, str]:
        """Names of dimensions as formulas write them, but for those that are numbers."""
        written = {number: identifier(name) for number, name in enumerate(self.names) if name != f"{STATE}[{number}]"}
        return {number: name for number, name in written.items() if _is_usable(name)}

    def _example(self) -> str:
        name = next(iter(self._usable.values()), f"{STATE}[0]")
        return f'"abs({name}) < 0.35"'


@dataclass(frozen=True)
class LimitFinding:
    """
    :param formula: of the limit
    :param probability: predicted discounted probability of leaving it, see ``NOPG.exit_probability``
    :param held_out_probability: the same by data that were held out; None without any
    :param behaviour_probability: at the rate at which the recorded steps leave it; None where none begins inside
    :param steps_inside: how long a run stays inside on average if the risk is the same at every step; None for ever
    :param horizon_steps: 1 / (1 − γ), how far ahead the probability looks
    :param ever_left: whether any recorded step begins inside and ends outside; if none does, nothing is known of how that
        happens
    :param leaving: share of the predicted trajectories that leave it; None without any
    """

    formula: str
    probability: float
    held_out_probability: float | None
    behaviour_probability: float | None
    steps_inside: float | None
    horizon_steps: float
    ever_left: bool
    leaving: float | None = None

    @property
    def worst(self) -> float:
        """The larger of the two predictions."""
        return max(self.probability, self.held_out_probability or 0.0)

    def text(self) -> str:
        if self.leaving is None:
            return self._by_kernels()
        predicted = f"{_percent(self.leaving)} of the predicted trajectories leave it."
        return f"{self._by_kernels()} {predicted}" if self.ever_left else f"No recorded step leaves it. {predicted}"

    def _by_kernels(self) -> str:
        if not self.ever_left:
            step = "begins inside" if self.behaviour_probability is None else "leaves"
            # A probability all the same.
            cause = " What is predicted comes of starts outside, or of pessimism where support is thin."
            return (
                f"No recorded step {step} it: nothing is known of how it is left, whatever the policy."
                f"{'' if self.worst == 0.0 else cause}"
            )
        stays = "never leaves" if self.steps_inside is None else f"stays inside for about {self.steps_inside:,.0f} steps"
        behaviour = ""
        if self.behaviour_probability is not None:
            behaviour = f" At the rate of the recorded steps it would be {_percent(self.behaviour_probability)}."
        return (
            f"Of 100 runs that last {self.horizon_steps:,.0f} steps on average, {100 * self.worst:.3g} leave it; were the "
            f"risk the same at every step, a run {stays}.{behaviour}"
        )


def make_limits(formulas: Sequence[str], names: Sequence[str], states: np.ndarray, field: str = "limit") -> tuple[Limit, ...]:
    """
    :param formulas: one for each limit
    :param names: of the dimensions
    :param states: to try the formulas on, before any work is done, (m, d_s)
    :param field: what messages about them are about
    """
    if isinstance(formulas, str):
        raise InputError("limits", f"{formulas!r} is one text", f"Give a list of formulas, like [{formulas!r}]")
    limits = tuple(Limit(formula, tuple(names), field) for formula in formulas)
    for limit in limits:
        limit(states[:2])
    return limits


def check_names(names: Sequence[str], n_dims: int) -> tuple[str, ...]:
    """
    :param names: given for the dimensions of the state
    :param n_dims: how many there are
    """
    if isinstance(names, str) or len(names) != n_dims:
        raise InputError("names", f"{names!r} for {n_dims} state dimension(s)", "Give one for each, in order")
    for name in names:
        if not _is_usable(name):
            raise InputError("names", f"{name!r} cannot be used in a formula", "Use letters, digits and _, and not s alone")
    if len(set(names)) != n_dims:
        raise InputError("names", f"{list(names)} has a name twice", "Tell them apart")
    return tuple(names)


def find_exits(
    evaluation: PolicyEvaluation, limits: Sequence[Limit], data: TransitionDataset, held_out: TransitionDataset | None
) -> tuple[LimitFinding, ...]:
    """
    :param evaluation: of the policy
    :param limits: to ask about
    :param data: that the model learned from
    :param held_out: that it did not
    """
    return tuple(_find_exit(evaluation, limit, data, held_out) for limit in limits)


def share_leaving(limit: Limit, states: np.ndarray) -> float:
    """
    :param limit: to ask about
    :param states: of predicted trajectories, NaN after their ends, (T + 1, m, d_s)
    :return: share of them that leave it
    """
    flat = states.reshape(-1, states.shape[-1])
    known = np.isfinite(flat).all(axis=1)
    left = np.zeros(len(flat), dtype=bool)
    left[known] = ~limit(flat[known])
    return float(left.reshape(states.shape[:2]).any(axis=0).mean())


def _find_exit(
    evaluation: PolicyEvaluation, limit: Limit, data: TransitionDataset, held_out: TransitionDataset | None
) -> LimitFinding:
    probability = evaluation.exit_probability(limit)
    checked = None if held_out is None else evaluation.on(held_out).exit_probability(limit)
    inside = limit(data.observations)
    leaves = inside & ~limit(data.next_observations)
    behaviour = None
    if inside.any():
        # A rate, because recorded episodes are cut short where runs would go on.
        risk = leaves.sum() / inside.sum()
        behaviour = float(risk / (1.0 - evaluation.gamma + evaluation.gamma * risk))
    worst, gamma = max(probability, checked or 0.0), evaluation.gamma
    risk_a_step = worst * (1.0 - gamma) / (1.0 - gamma * worst)
    return LimitFinding(
        limit.formula,
        probability,
        checked,
        behaviour,
        None if risk_a_step == 0.0 else 1.0 / risk_a_step,
        1.0 / (1.0 - evaluation.gamma),
        bool(leaves.any()),
    )


def _is_usable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name != STATE


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
