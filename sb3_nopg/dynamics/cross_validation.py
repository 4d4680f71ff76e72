"""How wide the regression's kernel should be, and what should enter it: whatever predicts left-out episodes best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.affine import Samples, spread_of
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel, LocalAffineRegression, targets_of_each

#: in standard deviations of each coordinate
BANDWIDTHS = (0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, math.inf)
#: with fewer, what a coefficient more would bring is not asked
ROWS_A_COEFFICIENT = 5
# The widest one that errs by no more than this factor above the least: over many steps, noise that was learned adds up.
NEARLY_AS_GOOD = 1.25
# The same for one affine model of all states, which goes on beyond the data.
_AFFINE_AS_GOOD = 1.5
#: what is explained to this share is not worth a closer look
NOT_WORTH_A_LOOK = 1e-3
_N_FOLDS, _MOST_JUDGED, _MOST_USED = 5, 500, 20_000
# Of few episodes, stretches of this share of the data are left out instead.
_STRETCH = 0.05
# Standard deviation of a Gaussian whose mean absolute deviation is one.
_GAUSSIAN = math.sqrt(math.pi / 2.0)


@dataclass(frozen=True)
class LeftOut:
    """
    Rows to predict, and what to predict each from.

    :param judged: numbers of the rows, (q,)
    :param fold: of every row, (n,)
    """

    judged: th.Tensor
    fold: th.Tensor

    @classmethod
    def of(cls, labels: np.ndarray | None, n: int, usable: np.ndarray | None = None, seed: int = 0) -> "LeftOut":
        """
        Whole episodes are left out; stretches of time where there are few; rows where the data know no episodes.

        :param labels: episode of each row, (n,)
        :param n: rows
        :param usable: rows that may be judged, (n,)
        :param seed: of the choice
        """
        rng = np.random.default_rng(seed)
        if labels is None:
            groups = np.arange(n)
        else:
            groups = np.unique(labels, return_inverse=True)[1]
            if groups.max() + 1 < _N_FOLDS:
                groups = np.arange(n) // max(1, round(_STRETCH * n))
        fold = rng.permutation(groups.max() + 1)[groups] % _N_FOLDS
        rows = rng.permutation(np.arange(n) if usable is None else np.flatnonzero(usable))
        return cls(th.from_numpy(np.sort(rows[:_MOST_JUDGED])), th.from_numpy(fold))

    def seen_without(self, fold: int) -> th.Tensor:
        """Numbers of the rows that predictions for a fold are made of: others, evenly thinned where they are many."""
        seen = th.nonzero(self.fold != fold)[:, 0]
        return seen[:: len(seen) // _MOST_USED + 1] if len(seen) > _MOST_USED else seen


def errors_of_kernels(samples: Samples, left_out: LeftOut, kernels: Sequence[Kernel]) -> th.Tensor:
    """
    :param samples: the data
    :param left_out: rows
    :param kernels: of each target
    :return: recorded minus predicted where the prediction has not seen the row's episode, (q, t)
    """
    errors = samples.targets.new_empty(len(left_out.judged), len(kernels))
    for kernel, columns in targets_of_each(kernels).items():
        found = left_out_errors(samples.of_targets(columns), left_out, (kernel.bandwidth,), kernel.form)
        errors[:, columns] = found[0]
    return errors


def left_out_errors(
    samples: Samples, left_out: LeftOut, bandwidths: tuple[float, ...] = BANDWIDTHS, form: Form | None = None
) -> th.Tensor:
    """
    Recorded minus predicted where the prediction has not seen the row's episode.

    :param samples: the data
    :param left_out: rows
    :param bandwidths: to try
    :param form: of the regression
    :return: (number of bandwidths, q, t)
    """
    errors = samples.targets.new_empty(len(bandwidths), len(left_out.judged), samples.targets.shape[1])
    fold = left_out.fold[left_out.judged]
    for number in range(_N_FOLDS):
        here = fold == number
        if not bool(here.any()):
            continue
        seen = left_out.seen_without(number)
        rows = left_out.judged[here]
        regression = LocalAffineRegression(samples.rows(seen), form=form)
        for which, maps in enumerate(regression.maps_at_each(samples.states[rows], bandwidths)):
            errors[which, here] = samples.targets[rows] - maps.at_own_states(samples.inputs[rows])
    return errors


def unexplained(errors: th.Tensor, targets: th.Tensor) -> th.Tensor:
    """
    Share of each target's variance that is left.

    :param errors: (..., q, t)
    :param targets: (n, t)
    :return: (..., t)
    """
    # By absolute errors, as a Gaussian's would have them: one bump against a wall must not decide.
    relative = _GAUSSIAN * (errors / spread_of(targets)).abs().mean(dim=-2)
    return relative.square()


def share_unexplained(
    data: Prepared,
    inputs: Inputs,
    widths: tuple[float, ...],
    rows: th.Tensor | None = None,
    form: Form | None = None,
) -> th.Tensor:
    """
    Share of the variance of each coordinate's change that is left at each width, (w, d).

    :param data: recorded transitions
    :param inputs: of the regression
    :param widths: of its kernel
    :param rows: to look at; None for all that know their past
    :param form: of the regression
    """
    rows = data.rows(inputs.n_earlier) if rows is None else rows
    samples = data.samples(inputs, rows)
    left_out = LeftOut.of(data.labels_of(rows), len(samples))
    return unexplained(left_out_errors(samples, left_out, widths, form), samples.targets)


def widest_good(errors: th.Tensor, bandwidths: tuple[float, ...] = BANDWIDTHS, tolerance: float = 1e-14) -> int:
    """
    :param errors: of each bandwidth
    :param bandwidths: these
    :param tolerance: that is not worth a narrower one
    :return: number of the widest bandwidth that errs nearly as little as the best
    """
    factors = errors.new_tensor([_AFFINE_AS_GOOD if math.isinf(width) else NEARLY_AS_GOOD for width in bandwidths])
    good = th.nonzero(errors <= factors * errors.min() + tolerance)[:, 0]
    return int(good.max())
