"""How well a loop keeps its time."""

from array import array

import numpy as np

PERCENTILES = (50.0, 99.0, 99.9, 100.0)


class LoopTiming:
    """
    :param miss_s: lateness from which a cycle counts as missed
    """

    def __init__(self, miss_s: float):
        self._miss_s = miss_s
        self._late_s, self._busy_s = array("d"), array("d")
        self.misses = 0

    def add_lateness(self, late_s: float) -> None:
        """
        :param late_s: from the deadline to the cycle's begin
        """
        self._late_s.append(late_s)
        self.misses += late_s > self._miss_s

    def add_busy(self, busy_s: float) -> None:
        """
        :param busy_s: from the cycle's begin to the voltage being written
        """
        self._busy_s.append(busy_s)

    def summary(self) -> dict[str, float | int]:
        """Counts, and percentiles in milliseconds."""
        result: dict[str, float | int] = {"cycles": len(self._late_s), "misses": self.misses}
        for name, values in (("late", self._late_s), ("busy", self._busy_s)):
            if values:
                for percentile, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True):
                    label = "max" if percentile == 100.0 else f"p{percentile:g}"
                    result[f"{name}_{label}_ms"] = 1e3 * float(value)
        return result
