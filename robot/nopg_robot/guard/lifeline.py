"""How somebody outside of the program takes the voltage away."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lifeline:
    """
    A plant's connection, as another process can use it.

    :param descriptor: of the open connection, which both processes share: models and boards that take one client only see one
    :param zero: bytes that mean zero volts, whatever was sent before them
    :param address: host, in numbers since a name may not be found in time, and port: to connect again where the connection has
        broken; None where that is not possible
    """

    descriptor: int
    zero: bytes
    address: tuple[str, int] | None = None
