"""What every rig looks like from here: something to read from, and a motor that is left without voltage whatever happens."""

import abc
from dataclasses import dataclass
from types import TracebackType

from nopg_robot.guard.lifeline import Lifeline
from nopg_robot.rig.clock import Clock


@dataclass(frozen=True)
class Reading:
    """
    The newest sample of a rig's sensors, in the rig's own units: encoder counts on one, metres on another. The rig file's
    scales and signs turn them into metres and radians.

    :param time_s: when it was taken, by the plant's clock; when it was received, where the rig does not say
    :param cart: cart position
    :param pole: pole angle
    :param velocities: of cart and pole, where the rig sends its own
    :param sequence: number of the sample, where the rig counts them
    """

    time_s: float
    cart: float
    pole: float
    velocities: tuple[float, float] | None = None
    sequence: int | None = None


class Plant(abc.ABC):
    """
    A rig. ``with plant:`` opens it and leaves it at zero volts.

    Methods raise :class:`nopg_robot.rig.errors.PlantError` and nothing else when the rig misbehaves.
    """

    #: as rig files name it
    name: str
    #: whether something real moves
    is_hardware: bool
    #: the time that the control loop keeps
    clock: Clock

    @abc.abstractmethod
    def open(self) -> None:
        """Connect, with the motor at zero volts."""

    @abc.abstractmethod
    def read(self) -> Reading:
        """The newest sample, never one that waited in a queue."""

    @abc.abstractmethod
    def write(self, volt: float) -> float:
        """
        :param volt: asked of the motor; positive drives the cart as the rig sees it, before the rig file's sign
        :return: voltage actually applied, after whatever the rig does to it
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Zero volts, then disconnect. May be called twice, in any state, and does all it can before it raises."""

    def lifeline(self) -> Lifeline | None:
        """
        How a process beside this one takes the voltage away from the open plant; None where it cannot.
        """
        return None

    def test_watchdog(self) -> bool:
        """
        Be silent for as long as the rig's own watchdog waits, with a command that moves nothing, and see that it acts. Ends at
        zero volts, ready to be driven.

        :return: whether it was seen; False where the rig has no way to tell. One that does not act is a PlantError
        """
        return False

    def __enter__(self) -> "Plant":
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
