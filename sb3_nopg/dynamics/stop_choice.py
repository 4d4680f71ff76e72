"""Which ends of the recorded range are stops: those that explain what one smooth model cannot."""

from dataclasses import replace

import torch as th

from sb3_nopg.dynamics.action_features import ActionFeatures
from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.cross_validation import share_unexplained, unexplained, widest_good
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel, Regressions
from sb3_nopg.dynamics.stops import Stop, ends_reached_often

# A stop leaves at most this share of what is unexplained of its coordinate without it, if that is worth a look.
_COUNTS, _NOT_WORTH_A_LOOK = 0.5, 1e-9
# Steps that it stopped would have gone on: so many of them, by the model of the others.
_WOULD_GO_ON = 0.9
# Share of the other coordinates' changes that may be unexplained in steps that were stopped, beside so many times what is
# unexplained in the free ones: a wall that takes the speed away is more than a stop.
_OTHERS_GO_ON, _TIMES_THE_USUAL = 0.1, 2.0
# Fewer free steps than this share are no data to learn from.
_LEAST_FREE = 0.5


def choose_stops(data: Prepared, widths: tuple[float, ...]) -> tuple[Stop, ...]:
    """
    :param data: recorded transitions
    :param widths: of the kernel
    """
    found: list[Stop] = []
    candidates = _candidates(data)
    for number in dict.fromkeys(stop.coordinate for stop in candidates):
        # One coordinate at a time: what another one's would keep out is needed to see what is unexplained.
        found += _of_one_coordinate(data, [stop for stop in candidates if stop.coordinate == number], widths)
    while found and not _leave_enough(data, found):
        # Whichever holds most is the least likely one.
        found.remove(max(found, key=lambda stop: int(stop.reached(data.next_states).sum())))
    return tuple(found)


def _of_one_coordinate(data: Prepared, stops: list[Stop], widths: tuple[float, ...]) -> list[Stop]:
    while stops and _leave_enough(data, stops):
        kept = _that_count(data, replace(data, stops=tuple(stops)), widths)
        if len(kept) == len(stops):
            return stops
        stops = kept
    return []


def _leave_enough(data: Prepared, stops: list[Stop]) -> bool:
    return len(replace(data, stops=tuple(stops)).rows(0)) >= _LEAST_FREE * len(data.rows(0))


def _candidates(data: Prepared) -> list[Stop]:
    space, whole = data.dataset.observation_space, th.from_numpy(data.free_steps)
    ends = None if space is None else (space.low.ravel(), space.high.ravel())
    found = ends_reached_often(data.coordinates, data.next_states[whole], ends)
    # Where the task ends, what lies beyond is known: its end.
    bounds = Bounds.of(data.coordinates, data.states, data.next_states, data.terminals)
    return [stop for stop in found if not bool((bounds.ends_high if stop.above else bounds.ends_low)[stop.coordinate])]


def _that_count(data: Prepared, free: Prepared, widths: tuple[float, ...]) -> list[Stop]:
    """
    :param data: all steps
    :param free: the same without those that may have been stopped
    :param widths: of the kernel
    :return: of the stops that these were kept out for, those that were worth it
    """
    inputs = Inputs(ActionFeatures(data.actions.shape[1]))
    # Each judged on its own rows: with all steps, and with the free ones.
    with_all, without = (share_unexplained(some, inputs, widths) for some in (data, free))
    least_with_all, least_without = with_all.min(dim=0).values, without.min(dim=0).values
    samples = free.samples(inputs, free.rows(0))
    kernels = [Kernel(widths[widest_good(of_one, widths)], Form()) for of_one in without.T]
    of_the_free = Regressions(samples, kernels)

    def explains(stop: Stop) -> bool:
        number = stop.coordinate
        before = float(least_with_all[number])
        return before > _NOT_WORTH_A_LOOK and float(least_without[number]) <= _COUNTS * before

    def stopped_what_went_on(stop: Stop) -> bool:
        number, rows = stop.coordinate, data.rows(0)
        stopped = data.samples(inputs, rows[stop.reached(data.next_states[rows])])
        errors = stopped.targets - of_the_free.maps_at(stopped.states).at_own_states(stopped.inputs)
        # What was recorded is the stop: the model of the others goes beyond.
        beyond = errors[:, number] < 0.0 if stop.above else errors[:, number] > 0.0
        others = [other for other in range(errors.shape[1]) if other != number]
        missed = unexplained(errors[:, others], samples.targets[:, others])
        others_go_on = (missed <= _OTHERS_GO_ON + _TIMES_THE_USUAL * least_without[others]).all()
        return float(beyond.double().mean()) >= _WOULD_GO_ON and bool(others_go_on)

    return [stop for stop in free.stops if explains(stop) and stopped_what_went_on(stop)]
