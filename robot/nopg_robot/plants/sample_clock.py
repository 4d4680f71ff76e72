"""When a sample was taken that does not say so: samples of a steady stream are a clock."""

# The stream is watched for so long before it is believed to be steady.
LEARN_S = 3.0
# A model's clock may go wrong by so much, and what was learnt of it too: samples age more slowly than this unnoticed.
TOLERANCE = 0.005


class SampleClock:
    """
    A model that sends a sample each period has sent as many as periods have passed. If fewer have arrived, the rest is under
    way, and the newest is as old as what is missing is long. The time of receipt would hide that.

    Ages count from the quickest samples so far. How old those were, only the rig itself can tell: the self-test pushes the
    cart and waits for its counts.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []
        self._period_s: float | None = None
        self._last: tuple[int, float] = (0, 0.0)

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
        else:
            self._learn(number, received_s)
        self._last = (number, taken_s)
        return taken_s

    def _learn(self, number: int, received_s: float) -> None:
        self._seen.append((number, received_s))
        first, first_s = self._seen[0]
        if received_s - first_s < LEARN_S or number == first:
            return
        rough_s = (received_s - first_s) / (number - first)

        def quickest(seen: list[tuple[int, float]]) -> tuple[int, float]:
            """Any may have waited to be read; this one did least."""
            return min(seen, key=lambda each: each[1] - each[0] * rough_s)

        third = max(1, len(self._seen) // 3)
        (early, early_s), (late, late_s) = quickest(self._seen[:third]), quickest(self._seen[-third:])
        # Rather too long: then samples seem to be young, and none is blamed for what is not its fault.
        self._period_s = (1.0 + TOLERANCE) * ((late_s - early_s) / (late - early) if late > early else rough_s)
        self._seen.clear()
