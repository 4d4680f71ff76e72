"""When a sample was taken that does not say so: samples of a steady stream are a clock."""

# The stream is watched for so long before it is believed to be steady, and then on, to know its period better.
LEARN_S, LEARN_ON_S = 3.0, 60.0
WINDOW_S = 1.0
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

    A stream that falls behind looks like a clock that is slow. But samples never come before they are taken: a period that was
    once seen is never longer than that. So the shortest is believed that was seen in the first minute, and what is longer by
    more than two clocks differ is age.

    Ages count from the quickest samples so far. How old those were, only the rig itself can tell: the self-test pushes the
    cart and waits for its counts.
    """

    def __init__(self) -> None:
        self._window: list[Arrival] = []
        # Of the windows so far, whose beginning and end may have been read late.
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
        if watched_s > LEARN_ON_S:
            return
        self._window.append((number, received_s))
        first, first_s = self._window[0]
        if received_s - first_s < (LEARN_S if self._period_s is None else WINDOW_S) or number == first:
            return
        if self._period_s is None:
            rough_s, n = (received_s - first_s) / (number - first), max(1, len(self._window) // 3)
            parts = [self._window[begin : begin + n] for begin in range(0, len(self._window), n)]
        else:
            rough_s, parts = self._period_s, [self._window]
        self._quickest += [_quickest(part, rough_s) for part in parts]
        self._window = []
        third = max(1, len(self._quickest) // 3)
        (early, early_s), (late, late_s) = (
            _quickest(part, rough_s) for part in (self._quickest[:third], self._quickest[-third:])
        )
        # Rather too long: then samples seem to be young, and none is blamed for what is not its fault.
        longest_s = (late_s - early_s + max(WAITED_S, TOLERANCE * (late_s - early_s))) / (late - early)
        self._period_s = longest_s if self._period_s is None else min(self._period_s, longest_s)


def _quickest(arrivals: list[Arrival], period_s: float) -> Arrival:
    """Any may have waited to be read; this one did least."""
    return min(arrivals, key=lambda each: each[1] - each[0] * period_s)
