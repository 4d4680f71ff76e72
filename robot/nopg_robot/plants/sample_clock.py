"""When a sample was taken that does not say so: samples of a steady stream are a clock."""

# The stream is watched for so long before it is believed to be steady.
LEARN_S = 2.0
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
        self._first: tuple[int, float] | None = None
        self._period_s: float | None = None
        self._last: tuple[int, float] = (0, 0.0)

    def taken_at(self, number: int, received_s: float) -> float:
        """
        :param number: of the newest sample, counted from any
        :param received_s: when it was read
        :return: when it was taken, at the latest then
        """
        if self._first is None:
            self._first = (number, received_s)
        if self._period_s is None:
            self._learn(number, received_s)
            taken_s = received_s
        else:
            before, before_s = self._last
            taken_s = min(received_s, before_s + (number - before) * self._period_s)
        self._last = (number, taken_s)
        return taken_s

    def _learn(self, number: int, received_s: float) -> None:
        assert self._first is not None
        first, first_s = self._first
        if received_s - first_s >= LEARN_S and number > first:
            # Rather too long: then samples seem to be young, and none is blamed for what is not its fault.
            self._period_s = (1.0 + TOLERANCE) * (received_s - first_s) / (number - first)
