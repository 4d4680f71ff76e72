"""What can go wrong, by kind: the caller's input, or the numerics."""

_LONGEST_REASON = 200


class InputError(ValueError):
    """
    Bad input, told in the terms of whoever passed it.

    :param field: name of the argument or array at fault
    :param problem: what is wrong with it
    :param fix: what to do about it
    """

    def __init__(self, field: str, problem: str, fix: str):
        super().__init__(f"{field}: {problem}. {fix.rstrip('.')}.")
        self.field = field


class SpaceError(InputError, AssertionError):
    """Spaces that the algorithm cannot work in. Also an AssertionError, which is what Stable-Baselines3 raises there."""


class ExportError(RuntimeError):
    """A policy that cannot be written as a file which does the same."""


class SolverError(RuntimeError):
    """A linear system could not be solved to the tolerance asked for, and no fallback was left."""


def one_line(error: object, longest: int | None = _LONGEST_REASON) -> str:
    """
    :param error: or any text
    :param longest: number of characters, no more than a person reads of a reason; None for all
    :return: on one line
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if longest is None or len(text) <= longest else text[:longest] + " …"
