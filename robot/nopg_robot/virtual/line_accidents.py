"""Accidents on a serial line, to be caused from another thread."""

# Byte of an answer; what is shorter has nothing to corrupt.
_CORRUPTED = 4


class LineAccidents:
    """
    What happens to the next answers of a board, which a class derived from this one carries to the computer.

    Counts are attributes of the class until an object sets its own: no constructor has to be called.
    """

    _n_corrupt = _n_truncate = _n_duplicate = _n_reorder = 0
    _held_back = b""

    def corrupt_next(self, n: int = 1) -> None:
        """Flip a bit in each of the next answers."""
        self._n_corrupt = n

    def truncate_next(self, n: int = 1) -> None:
        """Lose the second half of each of the next answers."""
        self._n_truncate = n

    def duplicate_next(self, n: int = 1) -> None:
        """Deliver each of the next answers twice."""
        self._n_duplicate = n

    def reorder_next(self, n: int = 1) -> None:
        """Deliver each of the next answers after the one that follows it."""
        self._n_reorder = n

    def after_accidents(self, data: bytes) -> bytes:
        """
        :param data: an answer, in one frame
        :return: what of it arrives, and of those before it that were held back; nothing where it is held back itself
        """
        if self._n_corrupt and len(data) > _CORRUPTED:
            self._n_corrupt -= 1
            # Not the delimiters, and not a bit whose change makes one.
            corrupt = bytes((data[_CORRUPTED] ^ 0x80 or 0x40,))
            data = data[:_CORRUPTED] + corrupt + data[_CORRUPTED + 1 :]
        if self._n_truncate:
            self._n_truncate -= 1
            data = data[: len(data) // 2]
        if self._n_duplicate:
            self._n_duplicate -= 1
            data += data
        if self._n_reorder:
            self._n_reorder -= 1
            self._held_back += data
            return b""
        data, self._held_back = data + self._held_back, b""
        return data
