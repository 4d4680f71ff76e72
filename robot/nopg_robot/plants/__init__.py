"""Rigs behind one protocol, one file each, and the choice between them."""

from dataclasses import dataclass
from typing import NoReturn

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_robot.plants.base import Plant, Reading
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Sensors, SimulatedConnection, VelocityFilter

__all__ = ["Plant", "Reading", "Rig", "make_plant", "open_rig", "simulated_twin"]


@dataclass(frozen=True)
class Rig:
    """
    :param plant: open
    :param file: that describes it
    :param fallback: why this is a simulation although the rig file names hardware; None if it is what was asked for
    """

    plant: Plant
    file: RigFile
    fallback: str | None = None


def make_plant(rig: RigFile) -> Plant:
    """
    :param rig: names the kind of plant
    :return: not yet open
    """
    connection = rig.connection
    # Imported here: a rig PC needs the packages of its own plant, not of all.
    if connection.plant == "simulated":
        from nopg_robot.plants.simulated import SimulatedPlant

        return SimulatedPlant(connection, rig.sensors)
    if connection.plant == "quarc":
        from nopg_robot.plants.quarc import QuarcPlant

        return QuarcPlant(connection)
    if connection.plant == "hil":
        from nopg_robot.plants.hil import HilPlant

        return HilPlant(connection)
    if connection.plant == "serial":
        from nopg_robot.plants.serial_board import SerialPlant

        return SerialPlant(connection, counter_bits=rig.sensors.counter_bits, voltage_limit_volt=rig.limits.voltage_volt)
    _refuse_forgotten(connection)


def _refuse_forgotten(connection: NoReturn) -> NoReturn:
    """
    Types say that nothing is left: mypy finds a kind of connection that `make_plant` forgot. At run time no other plant may
    stand in for it, a simulation included, so this is no PlantError.

    :param connection: for which there is no plant
    """
    raise NotImplementedError(f"connection.plant: make_plant knows no {connection.plant!r}")


def simulated_twin(rig: RigFile, *, real_time: bool = True, lifts_pole: bool = True) -> RigFile:
    """
    The same limits, rates and phases on a simulated cart, whose rail is as long.

    :param rig: of any kind
    :param real_time: False to run as fast as the computer can
    :param lifts_pole: whether a simulated operator does
    """
    if rig.connection.plant == "simulated":
        return rig.model_copy(
            update={"connection": rig.connection.model_copy(update={"real_time": real_time, "lifts_pole": lifts_pole})}
        )
    cart = CartPoleParameters(rail_length_m=rig.limits.rail_length_m)
    connection = SimulatedConnection(
        plant="simulated",
        parameters={"rail_length_m": cart.rail_length_m},
        real_time=real_time,
        lifts_pole=lifts_pole,
    )
    like_the_rig = {"order", "cutoff_rad_s", "damping"}
    sensors = Sensors(
        cart_scale_m=cart.cart_count_m,
        pole_scale_rad=cart.pole_count_rad,
        counter_bits=16,
        velocity=VelocityFilter(**rig.sensors.velocity.model_dump(include=like_the_rig)),
    )
    return rig.model_copy(update={"connection": connection, "sensors": sensors, "name": f"simulation instead of {rig.name}"})


def open_rig(rig: RigFile, plant: str = "rig", *, require_hardware: bool = False) -> Rig:
    """
    :param rig: as it was read
    :param plant: ``"rig"``: what the rig file names; ``"auto"``: the same, or a simulation if it does not answer;
        ``"simulated"``: a simulation
    :param require_hardware: refuse a simulation however it came about
    """
    if plant not in ("rig", "auto", "simulated"):
        raise ValueError(f"plant: unknown {plant!r}; known are rig, auto and simulated")
    if require_hardware and (plant == "simulated" or rig.connection.plant == "simulated"):
        raise PlantError("hardware is required, and this would be a simulation: name the rig file of a real rig")
    if plant == "simulated" and rig.connection.plant != "simulated":
        rig = simulated_twin(rig)
    try:
        opened = _opened(rig)
    except PlantError as error:
        if plant != "auto" or require_hardware or rig.connection.plant == "simulated":
            raise
        twin = simulated_twin(rig)
        return Rig(_opened(twin), twin, fallback=str(error))
    if require_hardware and not opened.is_hardware:
        opened.close()
        raise PlantError(f"hardware is required, and {rig.name} is a stand-in made of software")
    return Rig(opened, rig)


def _opened(rig: RigFile) -> Plant:
    plant = make_plant(rig)
    try:
        plant.open()
    except BaseException:
        plant.close()
        raise
    return plant
