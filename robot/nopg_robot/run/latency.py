"""How old samples are: from a push to the counts that it makes."""

from collections import deque

# A push moves the cart within this time; one that was not pushed may creep.
WINDOW_S = 0.15


class PushLatency:
    """
    A cart that is pushed from rest moves as the square of time: when it has gone four times as far, twice the time has passed
    since it began. So two times tell when it began, whatever its mass. What is left since the push is the delay of commands,
    motor and samples.

    :param far_m: a movement within ``WINDOW_S`` that is surely the push's; a quarter of it is the first mark
    """

    def __init__(self, far_m: float):
        self._far_m = far_m
        self._pushed_s: float | None = None
        self._recent: deque[tuple[float, float]] = deque()
        #: from the push to when the cart was seen to begin to move; None as long as it has not gone so far
        self.seconds: float | None = None

    def see(self, time_s: float, travel_m: float) -> None:
        """
        Once a cycle; in the first, the voltage was written.

        :param time_s: on any clock
        :param travel_m: positive the push's way
        """
        if self._pushed_s is None:
            self._pushed_s = time_s
        self._recent.append((time_s, travel_m))
        while self._recent[0][0] < time_s - WINDOW_S:
            self._recent.popleft()
        rest_m = self._recent[0][1]
        if self.seconds is None and travel_m - rest_m >= self._far_m:
            near_s, far_s = self._passed_s(rest_m + self._far_m / 4.0), self._passed_s(rest_m + self._far_m)
            self.seconds = max(0.0, 2.0 * near_s - far_s - self._pushed_s)

    def _passed_s(self, mark_m: float) -> float:
        """When the cart passed a mark, between two samples."""
        before_s, before_m = self._recent[0]
        for time_s, travel_m in self._recent:
            if travel_m >= mark_m:
                return before_s + (mark_m - before_m) / (travel_m - before_m) * (time_s - before_s)
            before_s, before_m = time_s, travel_m
        return before_s
