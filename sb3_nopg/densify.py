"""
More transitions than were recorded, from a local-linear model of those that were.

Where data are thin, a kernel estimate jumps from sample to sample, and the size of the jumps looks like a strong wind. A
linear regression over many neighbours bridges the gaps: it makes transitions in between, marked as synthetic, and how well it
does so is measured on real transitions that it has not seen. What it leaves out is noise: a synthetic next state is the mean
of what the neighbours saw.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress

from sb3_nopg.datafiles.transform import RewardFunction, episode_labels
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.errors import InputError
from sb3_nopg.local_model import LocalModel, Settings, TerminationFunction, Transitions, ended_by

_logger = logging.getLogger(__name__)
N_NEIGHBORS = 200
# A synthetic transition is no farther from the real ones than this share of the real ones are from each other. The few that
# are farthest apart lie along the edge, where tasks end: with 0.95, half of a cart-pole's falls are missing.
_SUPPORT_QUANTILE = 0.99
# Candidates made at one time, and for how many of them one must be good, lest the search never end.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _WORST_RATE = 1024, 4096, 100
# Judged by cross-validation: at most so many transitions, in at most so many parts.
_MOST_JUDGED, _MOST_FOLDS = 10_000, 20


@dataclass(frozen=True)
class PredictionError:
    """
    How well real transitions are predicted by a model that has not seen them.

    :param n_transitions: predicted
    :param left_out: what is never cut in two when a part is left out: ``"episode"`` or ``"transition"``
    :param n_folds: parts, each left out once; every episode is one where there are few
    :param rmse: of the next state, in the data's units, (d_s,)
    :param r_squared: share of the variance of s' − s that is predicted, (d_s,); NaN where nothing changes
    :param reward_rmse: in the data's units
    :param reward_r_squared: share of the variance of the rewards
    :param n_terminals: of the transitions predicted, those that truly ended the task
    :param missed_terminals: of these, not predicted to
    :param false_terminals: transitions predicted to end the task that did not
    """

    n_transitions: int
    left_out: str
    n_folds: int
    rmse: np.ndarray
    r_squared: np.ndarray
    reward_rmse: float
    reward_r_squared: float
    n_terminals: int
    missed_terminals: int
    false_terminals: int

    @property
    def terminal_accuracy(self) -> float:
        """Share of the transitions of which it was predicted rightly whether they ended the task."""
        return 1.0 - (self.missed_terminals + self.false_terminals) / self.n_transitions

    def __str__(self) -> str:
        rows = [(f"state {number}", *errors) for number, errors in enumerate(zip(self.rmse, self.r_squared, strict=True))]
        rows.append(("reward", self.reward_rmse, self.reward_r_squared))
        return "\n".join(
            [
                f"Error on {self.n_transitions:,} real transitions, left out of the model in {self.n_folds} parts of whole "
                f"{self.left_out}s:",
                f"{'':10}{'RMSE':>12}{'R²':>9}   (R² of the change in a step, or of the reward)",
                *(f"{name:10}{error:12.4g}{'–' if np.isnan(share) else f'{share:.3f}':>9}" for name, error, share in rows),
                f"{'terminal':10}{self.terminal_accuracy:12.2%} right; {self.missed_terminals} of {self.n_terminals} missed, "
                f"{self.false_terminals} false",
            ]
        )


def densify(
    dataset: TransitionDataset,
    n: int,
    *,
    jitter: float = 0.4,
    bandwidth: float = 1.0,
    ridge: float = 1e-3,
    n_neighbors: int = N_NEIGHBORS,
    terminates: TerminationFunction | None = None,
    reward: RewardFunction | None = None,
    seed: int = 0,
    progress: bool = False,
) -> TransitionDataset:
    """
    The real transitions and n synthetic ones. See :meth:`sb3_nopg.TransitionDataset.densify`.

    States are real ones with noise, brought back to the surface that real states lie on where they are bound by linear or
    quadratic relations (sin² + cos² = 1); actions are uniform. A candidate is dropped where the real transitions that a
    regression needs are farther away than they are from most real ones, outside of ``observation_space``, and where the task
    has already ended.

    :param dataset: only its real transitions are used
    :param n: synthetic transitions
    :param jitter: standard deviation of the noise on states, in those of the states along their principal directions
    :param bandwidth: of the regression's weights, in standard deviations of states and actions
    :param ridge: of the regression, in units of the bandwidth squared
    :param n_neighbors: real transitions that each regression looks at
    :param terminates: whether the task ends with next states (n, d_s), (n,); None for a vote of the nearest real ones
    :param reward: of states, actions and next states, (n,); None for a regression, kept within the rewards seen
    :param seed: of states and actions
    :param progress: show a bar
    """
    real, settings = _checked(dataset, bandwidth, ridge, n_neighbors, terminates, reward)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise InputError("n", f"{n!r} synthetic transitions", "Give a positive whole number")
    _check_number("jitter", jitter, zero_allowed=True)
    transitions = _transitions(real)
    if _logger.isEnabledFor(logging.INFO):
        _logger.info("%s", _judge(real, transitions, settings))
    _announce_rules(transitions, settings)
    model = LocalModel(transitions, settings, real.observation_space)
    block = int(np.clip(2 * n, _SMALLEST_BLOCK, _LARGEST_BLOCK))
    found, n_found, n_tried = [], 0, 0
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("Synthetic transitions", total=n)
        for synthetic, sources in _candidates(real, transitions, model, jitter, block, np.random.default_rng(seed)):
            found.append((synthetic, sources))
            n_found, n_tried = n_found + len(sources), n_tried + block
            bar.update(task, completed=min(n_found, n))
            if n_found >= n:
                break
            if n_found * _WORST_RATE < n_tried:
                raise InputError(
                    "jitter",
                    f"{n_found} of {n_tried} states with noise of {jitter} standard deviations lie near the data",
                    "Give less, or data that lie closer",
                )
    _logger.info("%d of %d candidates lay near the data.", n_found, n_tried)
    return _joined(real, found, n)


def prediction_error(
    dataset: TransitionDataset,
    *,
    bandwidth: float = 1.0,
    ridge: float = 1e-3,
    n_neighbors: int = N_NEIGHBORS,
    terminates: TerminationFunction | None = None,
    reward: RewardFunction | None = None,
) -> PredictionError:
    """
    Cross-validated error of the model that :func:`densify` makes synthetic transitions with. Whole episodes are left out where
    there are several: within one, the next row gives the answer away.

    :param dataset: only its real transitions are used
    :param bandwidth: as in :func:`densify`, like the others
    """
    real, settings = _checked(dataset, bandwidth, ridge, n_neighbors, terminates, reward)
    return _judge(real, _transitions(real), settings)


def _judge(real: TransitionDataset, transitions: Transitions, settings: Settings) -> PredictionError:
    groups = episode_labels(real)
    # Of a single episode, single transitions are left out.
    by_episode = groups is not None and bool((groups != groups[0]).any())
    groups = np.unique(groups if groups is not None and by_episode else np.arange(len(real)), return_inverse=True)[1]
    n_folds = min(_MOST_FOLDS, int(groups.max()) + 1)
    rng = np.random.default_rng(0)
    folds = (rng.permutation(groups.max() + 1) % n_folds)[groups]
    judged = np.zeros(len(real), dtype=bool)
    judged[rng.permutation(len(real))[:_MOST_JUDGED]] = True
    errors, reward_errors, missed, false = [], [], 0, 0
    for fold in range(n_folds):
        rows = np.flatnonzero((folds == fold) & judged)
        if len(rows) == 0:
            continue
        truth = transitions.rows(rows)
        model = LocalModel(transitions.rows(np.flatnonzero(folds != fold)), settings, real.observation_space)
        predicted, _ = model.predict(truth.states, truth.actions)
        errors.append(predicted.next_states - truth.next_states)
        reward_errors.append(predicted.rewards - truth.rewards)
        missed += int((truth.terminals & ~predicted.terminals).sum())
        false += int((~truth.terminals & predicted.terminals).sum())
    truth = transitions.rows(np.flatnonzero(judged))
    mse, reward_mse = (np.square(np.concatenate(parts)).mean(axis=0) for parts in (errors, reward_errors))
    return PredictionError(
        n_transitions=len(truth),
        left_out="episode" if by_episode else "transition",
        n_folds=n_folds,
        rmse=np.sqrt(mse),
        r_squared=_share(mse, (truth.next_states - truth.states).var(axis=0)),
        reward_rmse=float(np.sqrt(reward_mse)),
        reward_r_squared=float(_share(reward_mse, truth.rewards.var())),
        n_terminals=int(truth.terminals.sum()),
        missed_terminals=missed,
        false_terminals=false,
    )


def _share(mse: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """R²; of something that never changes there is nothing to explain."""
    changes = variance > 0
    return np.where(changes, 1.0 - mse / np.where(changes, variance, 1.0), np.nan)


def _candidates(
    real: TransitionDataset, transitions: Transitions, model: LocalModel, jitter: float, block: int, rng: np.random.Generator
) -> Iterator[tuple[Transitions, np.ndarray]]:
    """Without end: good ones of a block of candidates, and the real rows that their states come from."""
    action_low, action_high = _action_range(real)
    farthest = model.spacing_of_real(_SUPPORT_QUANTILE)
    box = real.observation_space
    while True:
        sources = rng.integers(len(real), size=block)
        noise = model.surface.spread_out(rng.normal(size=(block, model.surface.n_free)))
        actions = rng.uniform(action_low, action_high, size=(block, real.action_dim))
        states = transitions.states[sources]
        if jitter > 0:
            states = model.surface.project(states + jitter * noise)
        good = ~model.ended(states)
        if box is not None:
            good &= ((states >= box.low) & (states <= box.high)).all(axis=1)
        predicted, spacing = model.predict(states, actions)
        good &= spacing <= farthest
        rows = np.flatnonzero(good)
        yield predicted.rows(rows), sources[rows]


def _action_range(real: TransitionDataset) -> tuple[np.ndarray, np.ndarray]:
    """Of the action space, or of the actions seen where the space has no ends."""
    low, high = (extreme.astype(np.float64) for extreme in (real.actions.min(axis=0), real.actions.max(axis=0)))
    space = real.action_space
    if space is None:
        return low, high
    return np.where(np.isfinite(space.low), space.low, low), np.where(np.isfinite(space.high), space.high, high)


def _joined(real: TransitionDataset, found: list[tuple[Transitions, np.ndarray]], n: int) -> TransitionDataset:
    """Real transitions, then synthetic ones, which belong to the episode that their state comes from and start none."""

    def both(name: str, of_synthetic: str) -> np.ndarray:
        recorded = getattr(real, name)
        made = np.concatenate([getattr(synthetic, of_synthetic) for synthetic, _ in found])[:n]
        return np.concatenate([recorded, made.astype(recorded.dtype)])

    labels = episode_labels(real)
    sources = np.concatenate([rows for _, rows in found])[:n]
    return TransitionDataset(
        observations=both("observations", "states"),
        actions=both("actions", "actions"),
        rewards=both("rewards", "rewards"),
        next_observations=both("next_observations", "next_states"),
        terminals=both("terminals", "terminals"),
        timeouts=None if real.timeouts is None else np.concatenate([real.timeouts, np.zeros(n, dtype=bool)]),
        episode_ids=None if labels is None else np.concatenate([labels, labels[sources]]),
        observation_space=real.observation_space,
        action_space=real.action_space,
        synthetic=np.repeat([False, True], [len(real), n]),
    )


def _transitions(real: TransitionDataset) -> Transitions:
    return Transitions(
        states=real.observations.astype(np.float64),
        actions=real.actions.astype(np.float64),
        rewards=real.rewards.astype(np.float64),
        next_states=real.next_observations.astype(np.float64),
        terminals=real.terminals,
    )


def _announce_rules(real: Transitions, settings: Settings) -> None:
    """Say what nobody told us, and what was told but does not fit."""
    if settings.terminates is None:
        if real.terminals.any():
            _logger.info("Whether a synthetic transition ends the task is voted on by the nearest real next states.")
    else:
        wrong = int((ended_by(settings.terminates, real.next_states) != real.terminals).sum())
        if wrong:
            _logger.warning("`terminates` contradicts `terminals` at %d of %d real transitions.", wrong, len(real))
    if settings.reward is None:
        _logger.info("The reward of a synthetic transition is regressed on state and action.")


def _checked(
    dataset: TransitionDataset,
    bandwidth: float,
    ridge: float,
    n_neighbors: int,
    terminates: TerminationFunction | None,
    reward: RewardFunction | None,
) -> tuple[TransitionDataset, Settings]:
    if not isinstance(dataset, TransitionDataset):
        raise InputError("dataset", f"is a {type(dataset).__name__}", "Give a TransitionDataset")
    _check_number("bandwidth", bandwidth)
    _check_number("ridge", ridge)
    real = dataset.real
    n_needed = 2 * (real.observation_dim + real.action_dim + 1)
    if isinstance(n_neighbors, bool) or not isinstance(n_neighbors, int | np.integer) or n_neighbors < n_needed:
        problem = f"{n_neighbors!r} for {real.observation_dim + real.action_dim} dimensions of state and action"
        raise InputError("n_neighbors", problem, f"Give a whole number of at least {n_needed}")
    if len(real) <= n_needed:
        raise InputError("dataset", f"{len(real)} real transitions", f"The regression needs more than {n_needed} of them")
    for name, function in (("terminates", terminates), ("reward", reward)):
        if function is not None and not callable(function):
            raise InputError(name, f"is a {type(function).__name__}", "Give a function of arrays")
    return real, Settings(bandwidth, ridge, int(n_neighbors), terminates, reward)


def _check_number(name: str, value: float, zero_allowed: bool = False) -> None:
    number = not isinstance(value, bool) and isinstance(value, int | float | np.integer | np.floating)
    if not number or not np.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
        wanted = "not negative" if zero_allowed else "positive"
        raise InputError(name, f"{value!r} is not a number that is {wanted} and finite", "Give one like the default")
