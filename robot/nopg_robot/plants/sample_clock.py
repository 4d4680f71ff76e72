"""When a sample was taken that does not say so: samples of a steady stream are a clock."""

# The stream is watched for so many windows before it is believed to be steady, and then on, to know its period better.
WINDOW_S, N_WINDOWS = 1.0, 3
LEARN_S, LEARN_ON_S = WINDOW_S * N_WINDOWS, 60.0
# Where samples come sooner than those before them by so much, those before had waited: nothing is learnt across that.
SOONER_S = 0.002
# The quickest samples of a window or more may all have waited for so long, which leaves the period less open the longer the
# stream is watched ...
WAITED_S = 0.004
# ... but two clocks never agree better than this: crystals by some 100 ppm, and a computer that sets its own by up to 500.
TOLERANCE = 5e-4

Arrival = tuple[int, float]


class SampleClock:
    """
    A model that sends a sample each period has sent as many as periods have passed. If fewer have arrived, the rest is under
    way, and the newest is as old as what is missing is long. The time of receipt would hide that.

    A stream that falls behind looks like a clock that is slow. But samples never come before they are taken: where they wait
    as long in the end as in the beginning, or longer, their period is no longer than what was seen of it. So the shortest is
    believed that was seen in the first minute, and what is longer by more than two clocks differ is age.

    Ages count from the quickest samples so far. How old those were, only the rig itself can tell: the self-test pushes the
    cart and waits for its counts.
    """

    def __init__(self) -> None:
        self._window: list[Arrival] = []
        # Of each window since samples last came sooner: its beginning and end may have been read late.
        self._quickest: list[Arrival] = []
        self._period_s: float | None = None
        self._began_s: float | None = None
        self._last: Arrival = (0, 0.0)

    def taken_at(self, number: int, received_s: float) -> float:
        """
        :param number: of the newest sample, counted from any
        :param received_s: when it was read
        :return: when it was taken, at the latest then
        """
        taken_s = received_s
        if self._period_s is not None:
            before, before_s = self._last
            taken_s = min(received_s, before_s + (number - before) * self._period_s)
        self._learn(number, received_s)
        self._last = (number, taken_s)
        return taken_s

    def _learn(self, number: int, received_s: float) -> None:
        self._began_s = received_s if self._began_s is None else self._began_s
        watched_s = received_s - self._began_s
        # A stream that has not been steady for three windows yet is watched on.
        if watched_s > LEARN_ON_S and self._period_s is not None:
            return
        self._window.append((number, received_s))
        first, first_s = self._window[0]
        if received_s - first_s < WINDOW_S or number == first:
            return
        rough_s = (received_s - first_s) / (number - first) if self._period_s is None else self._period_s
        self._add(_quickest(self._window, rough_s))
        self._window = []
        if len(self._quickest) < N_WINDOWS:
            return
        third = len(self._quickest) // 3
        (early, early_s), (late, late_s) = (
            _quickest(part, rough_s) for part in (self._quickest[:third], self._quickest[-third:])
        )
        # Rather too long: then samples seem to be young, and none is blamed for what is not its fault.
        longest_s = (late_s - early_s + max(WAITED_S, TOLERANCE * (late_s - early_s))) / (late - early)
        self._period_s = longest_s if self._period_s is None else min(self._period_s, longest_s)

    def _add(self, arrival: Arrival) -> None:
        seen = self._quickest
        if len(seen) > 1 and _wait_beside(arrival, seen[0], seen[-1]) < -SOONER_S:
            seen.clear()
        seen.append(arrival)
        if len(seen) == N_WINDOWS and _wait_beside(seen[0], seen[1], seen[2]) > SOONER_S:
            del seen[0]


def _wait_beside(arrival: Arrival, one: Arrival, other: Arrival) -> float:
    """How much later it came than the line through two others says."""
    period_s = (other[1] - one[1]) / (other[0] - one[0])
    return arrival[1] - one[1] - (arrival[0] - one[0]) * period_s


def _quickest(arrivals: list[Arrival], period_s: float) -> Arrival:
    """Any may have waited to be read; this one did least."""
    return min(arrivals, key=lambda each: each[1] - each[0] * period_s)
