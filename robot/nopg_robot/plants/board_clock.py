"""When a sample was taken: a board's clock, read on the computer's."""

WRAPS_AT_US = 2**32


class BoardClock:
    """
    A sample was taken after it was asked for and before its answer was read, and as long after the last one as the board's
    clock says. The time on which all three agree is the sample's own.

    The computer's time at the answer is not: whoever is held up while an answer waits in a buffer stamps it late, and then
    sees the cart make up for it in a period that is too short, at a speed that is not there.

    The board's clock may go wrong by a little (it drifts), or altogether (it restarts): times stay within the two that the
    computer saw, and never run backwards.
    """

    def __init__(self) -> None:
        self._last_us: int | None = None
        self._board_s = self._offset_s = 0.0

    def taken_at(self, time_us: int, asked_s: float, answered_s: float) -> float:
        """
        :param time_us: of the board, which wraps
        :param asked_s: on the computer's clock
        :param answered_s: on the computer's clock
        :return: between the two
        """
        passed_us = 0 if self._last_us is None else (time_us - self._last_us) % WRAPS_AT_US
        self._board_s += 1e-6 * passed_us
        earliest_s, latest_s = asked_s - self._board_s, answered_s - self._board_s
        # Answers that were quick say most: they leave little room between the two. The first may have waited.
        self._offset_s = earliest_s if self._last_us is None else min(max(self._offset_s, earliest_s), latest_s)
        self._last_us = time_us
        # The sum may leave the two by a rounding error.
        return min(max(self._board_s + self._offset_s, asked_s), answered_s)
