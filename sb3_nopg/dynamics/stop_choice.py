"""Which ends of the recorded range are stops: those that explain what one smooth model cannot."""

from collections.abc import Sequence
from dataclasses import replace

import torch as th

from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.cross_validation import share_unexplained, unexplained, widest_good
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import LocalAffineRegression
from sb3_nopg.dynamics.stops import Stop, ends_reached_often, stopped_rows

# A stop leaves at most this share of what is unexplained of its coordinate without it.
_COUNTS = 0.5
# Steps that it stopped would have gone on: so many of them, by the model of the others.
_WOULD_GO_ON = 0.9
# Share of the other coordinates' changes that may be unexplained in steps that were stopped: a wall that takes the speed away
# is more than a stop.
_OTHERS_GO_ON = 0.1


def choose_stops(data: Prepared, widths: tuple[float, ...]) -> tuple[Stop, ...]:
    """
    :param data: recorded transitions
    :param widths: of the kernel
    """
    space = data.dataset.observation_space
    whole = th.from_numpy(data.whole_steps)
    ends = None if space is None else (space.low.ravel(), space.high.ravel())
    stops = ends_reached_often(data.coordinates, data.next_states[whole], ends)
    while stops:
        free = replace(data, stops=tuple(stops))
        if 2 * len(free.rows(0)) < len(data.rows(0)):
            return ()
        kept = _that_count(data, free, stops, widths)
        if len(kept) == len(stops):
            break
        stops = kept
    return tuple(stops)


def _that_count(data: Prepared, free: Prepared, stops: Sequence[Stop], widths: tuple[float, ...]) -> list[Stop]:
    """
    :param data: all steps
    :param free: the same without those that were stopped
    :param stops: that may be some
    :param widths: of the kernel
    """
    inputs = Inputs(ActionFeatures(data.actions.shape[1]))
    with_all, without = (share_unexplained(some, inputs, widths) for some in (data, free))
    samples = free.samples(inputs, free.rows(0))
    regression = LocalAffineRegression(samples, widths[widest_good(without.mean(dim=1), widths)])
    every = data.samples(inputs, data.rows(0))
    next_states, kept = data.next_states[data.rows(0)], []
    for stop in stops:
        number = stop.coordinate
        if float(without[:, number].min()) > _COUNTS * float(with_all[:, number].min()):
            continue
        stopped = stopped_rows(next_states, [stop])
        changes = regression.maps_at(every.states[stopped]).at_own_states(every.inputs[stopped])
        errors = every.targets[stopped] - changes
        # What was recorded is the stop: a model without it goes beyond, or at least as far.
        beyond = errors[:, number] <= 0.0 if stop.above else errors[:, number] >= 0.0
        others = [other for other in range(errors.shape[1]) if other != number]
        missed = unexplained(errors[:, others], samples.targets[:, others]).mean() if others else errors.new_zeros(())
        if float(beyond.double().mean()) >= _WOULD_GO_ON and float(missed) <= _OTHERS_GO_ON:
            kept.append(stop)
    return kept
