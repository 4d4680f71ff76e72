"""How much of an experiment a report has, so that nobody takes a part for the whole."""

import dataclasses

_QUICK_NOTE = "--quick: fewer seeds, sizes and updates than the paper's experiment"


@dataclasses.dataclass(frozen=True)
class Extent:
    """
    :param quick: whether it is the small version
    :param n_missing: trials that failed or were not run yet
    :param n_trials: that belong to it
    """

    quick: bool = False
    n_missing: int = 0
    n_trials: int = 0

    def file_name(self, experiment: str) -> str:
        """
        What the names of all files but the trials' begin with. A quick run must not write over a full one.

        :param experiment: its name
        """
        return f"{experiment}-quick" if self.quick else experiment

    @property
    def notes(self) -> list[str]:
        """What a table and a figure must say; nothing where it is the whole experiment."""
        missing = f"{self.n_missing} of {self.n_trials} trials are missing; this is what the others gave"
        return [_QUICK_NOTE] * self.quick + [missing] * bool(self.n_missing)
