"""Whether dry friction holds a coordinate, and from which speed on it does not: as left-out episodes say."""

from collections.abc import Sequence
from dataclasses import replace

import torch as th

from sb3_nopg.dynamics.affine import Samples, spread_of
from sb3_nopg.dynamics.cross_validation import ROWS_A_COEFFICIENT, share_unexplained, widest_good
from sb3_nopg.dynamics.friction import DryFriction, Held
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel, LocalAffineRegression

# Sizes to try, in standard deviations of what friction holds. Where the first leaves more than this share of what is
# unexplained without friction, the others are not tried.
_SIZES, _HOPELESS = (0.2, 0.05, 0.1, 0.3, 0.5), 0.9
# Friction enters where it leaves at most this share of what is unexplained of its coordinate, if that is worth a look.
_COUNTS, _NOT_WORTH_A_LOOK = 0.7, 1e-4
# It has to slow down: a step takes at least this share of its size away, in the median of some states.
_SLOWS_DOWN, _SOME_STATES = 0.05, 200


def with_friction(data: Prepared, inputs: Inputs, held: Sequence[Held]) -> Inputs:
    """
    :param data: recorded transitions
    :param inputs: of the regression, without friction
    :param held: coordinates that friction holds
    """
    return replace(inputs, friction=DryFriction.fit(data.samples(inputs, data.rows(inputs.n_earlier)), held))


def choose_friction(
    data: Prepared, inputs: Inputs, widths: tuple[float, ...], form: Form, errors: th.Tensor
) -> tuple[Held, ...]:
    """
    :param data: recorded transitions
    :param inputs: of the regression
    :param widths: of the kernel
    :param form: of the regression over all samples
    :param errors: share that is unexplained without friction, at each width, of each coordinate
    """
    samples, found = data.samples(inputs, data.rows(inputs.n_earlier)), []
    if len(samples) < ROWS_A_COEFFICIENT * (2 + data.coordinates.dim + samples.inputs.shape[1]):
        return ()
    spread = spread_of(samples.states)
    for number, bent in enumerate(data.coordinates.bent.tolist()):
        which = widest_good(errors[:, number], widths)
        without = float(errors[which, number])
        if bent or without < _NOT_WORTH_A_LOOK:
            continue
        tried, kernel = {}, Kernel(widths[which], form)
        for share in _SIZES:
            held = Held(number, share * float(spread[number]))
            held_too = with_friction(data, inputs, [held])
            tried[held] = float(share_unexplained(data, held_too, (kernel.bandwidth,), form=kernel.form)[0, number])
            if tried[held] > _HOPELESS * without and len(tried) == 1:
                break
        best = min(tried, key=lambda held: tried[held])
        if tried[best] < _COUNTS * without and _taken_away(samples, best, kernel) > _SLOWS_DOWN:
            found.append(best)
    return tuple(found)


def _taken_away(samples: Samples, held: Held, kernel: Kernel) -> float:
    """
    What friction takes away from a coordinate in a step, in its size: the median over some states.

    :param samples: without friction
    :param held: the coordinate
    :param kernel: of the regression
    """
    friction = DryFriction.fit(samples, [held])
    assert friction is not None
    inputs = friction.beside(samples.states, samples.inputs)
    regression = LocalAffineRegression(
        replace(samples.of_targets([held.coordinate]), inputs=inputs), kernel.bandwidth, kernel.form
    )
    some = samples.states[:: max(1, len(samples) // _SOME_STATES)]
    return -float(regression.maps_at(some).action_slope[:, 0, -1].median()) / held.size
