"""What can go wrong between a policy and a rig; each class is one thing that a caller may want to handle."""

#: what an operator must read first: the motor may still have a voltage
SWITCH_OFF = "SWITCH THE AMPLIFIER OFF"


class RobotError(RuntimeError):
    """Anything that ends a run for a reason that has a name."""


class PlantError(RobotError):
    """The rig cannot be read or driven: not there, silent, or talking nonsense. Nothing it says can be trusted any more."""


class PolicyError(RobotError):
    """A policy file that cannot be used, or a policy that fails while it runs."""


class PhaseError(RobotError):
    """
    A phase of the run that did not reach its goal.

    :param phase: its name
    :param problem: what happened, and what to do about it
    """

    def __init__(self, phase: str, problem: str):
        super().__init__(f"{phase}: {problem}")
        self.phase, self.problem = phase, problem


class RecorderError(RobotError):
    """The flight log cannot be written."""


class DefectError(RobotError):
    """Something went wrong in this program itself. It says whether the motor was cut; the cause is attached."""
