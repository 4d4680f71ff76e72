"""The simulated cart as a plant: time, voltages and counters as a control loop meets them."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import PARAMETER_SETS
from nopg_envs.cartpole.simulator import CartPoleSimulator
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.clock import MonotonicClock, SimulatedClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import Sensors, SimulatedConnection
from nopg_robot.virtual.simulated_cart import SimulatedCart

FAST = SimulatedConnection(plant="simulated", real_time=False)
START = (0.05, 0.1, -0.2, 0.3)


def sensors(counter_bits: int | None) -> Sensors:
    return Sensors(cart_scale_m=22.7485e-6, pole_scale_rad=2.0 * math.pi / 4096, counter_bits=counter_bits)


def test_moves_as_the_environment_does():
    options = CartPoleOptions(task="swing_up", encoder_counts=False, filtered_velocities=False)
    simulator = CartPoleSimulator(options, PARAMETER_SETS["identified"], START)
    with SimulatedPlant(FAST, cart=SimulatedCart(start=START)) as plant:
        for period, volt in enumerate(np.random.default_rng(1).uniform(-5.0, 5.0, size=100).tolist()):
            assert plant.write(volt) == volt
            simulator.hold(volt)
            # A loop reads ten times for each action.
            for sample in range(10):
                plant.clock.sleep_until((10 * period + sample + 1) / 500.0)
                reading = plant.read()
            np.testing.assert_allclose(plant.cart.state, simulator.state, rtol=0, atol=1e-9)
            assert (reading.cart, reading.pole) == plant.cart.counts
            assert reading.time_s == plant.clock.now_s()


def test_a_voltage_acts_from_when_it_is_written_and_not_before():
    written, read = (SimulatedPlant(FAST, cart=SimulatedCart(start=START)) for _ in range(2))
    for plant in (written, read):
        plant.open()
        plant.clock.sleep_until(0.2)
    # One of them was not read in the meantime.
    read.read()
    for plant in (written, read):
        plant.write(5.0)
        plant.clock.sleep_until(0.3)
        plant.read()
    assert written.cart.state == read.cart.state


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_counters_wrap_around(bits: int):
    with SimulatedPlant(FAST, sensors(bits)) as plant:
        half = 2 ** (bits - 1)
        seen = []
        for jump in (0, half - 1, half, -half, -half - 1, 2 * half + 5, 7 * half):
            plant.cart.count_jump = jump
            seen.append(plant.read().cart)
        assert seen == [0, half - 1, -half, -half, half - 1, 5, -half]


def test_sixteen_bits_are_fewer_than_the_rail_has_counts():
    cart = SimulatedCart(start=(-0.4, math.pi, 0.0, 0.0))
    with SimulatedPlant(FAST, sensors(16), cart=cart) as plant:
        plant.write(3.0)
        plant.clock.sleep_until(9.0)
        assert plant.read().cart == cart.counts[0] - 65536
        assert cart.counts[0] == pytest.approx(0.807 / 22.7485e-6, abs=1)


def test_counters_without_a_width_do_not_wrap():
    with SimulatedPlant(FAST, sensors(None)) as plant:
        plant.cart.count_jump = 10**9
        assert plant.read().cart == 10**9


def test_the_clock_is_the_computers_only_in_real_time():
    assert isinstance(SimulatedPlant(FAST).clock, SimulatedClock)
    assert isinstance(SimulatedPlant(SimulatedConnection(plant="simulated")).clock, MonotonicClock)


def test_real_time_passes_by_itself():
    with SimulatedPlant(SimulatedConnection(plant="simulated")) as plant:
        begin_s = plant.clock.now_s()
        plant.write(5.0)
        plant.clock.sleep_until(begin_s + 0.1)
        reading = plant.read()
        assert plant.cart.time_s >= 0.1
        assert reading.cart > 100
        assert reading.time_s >= begin_s + 0.1


def test_closing_leaves_zero_volts_and_may_be_repeated():
    plant = SimulatedPlant(FAST)

    def fail() -> None:
        with plant:
            plant.write(4.0)
            plant.write(math.nan)

    with pytest.raises(PlantError):
        fail()
    assert plant.cart.voltage == 0.0
    plant.close()
    for use in (plant.read, lambda: plant.write(1.0)):
        with pytest.raises(PlantError, match="not connected"):
            use()
    assert plant.cart.voltage == 0.0


def test_can_be_opened_again_where_it_was_left():
    plant = SimulatedPlant(FAST)
    with plant:
        plant.write(3.0)
        plant.clock.sleep_until(0.5)
    plant.clock.sleep_until(100.0)
    with plant:
        counts = plant.read()
        assert plant.cart.time_s == pytest.approx(0.5)
        assert counts.cart == plant.cart.counts[0] > 500
        plant.clock.sleep_until(100.3)
        plant.read()
        assert plant.cart.time_s == pytest.approx(0.8)


@pytest.mark.parametrize("volt", [math.nan, math.inf])
def test_refuses_what_is_no_voltage(volt: float):
    with SimulatedPlant(FAST) as plant:
        plant.write(1.5)
        with pytest.raises(PlantError, match=r"not a voltage; the motor keeps 1\.5 V"):
            plant.write(volt)


def test_the_connection_chooses_the_cart():
    connection = SimulatedConnection(plant="simulated", parameters={"amplifier_limit_volt": 2.0}, seed=3, real_time=False)
    with SimulatedPlant(connection) as plant:
        assert plant.write(5.0) == 2.0
        plant.write(0.0)
        plant.clock.sleep_until(4.0)
        plant.read()
        other = SimulatedCart({"amplifier_limit_volt": 2.0}, seed=3)
        other.advance_to(4.0)
        assert plant.cart.state[1] == pytest.approx(other.state[1], abs=1e-9)


@pytest.mark.parametrize("parameters", ["no_such_set", "no_such_file.yaml", {"input_gain": -1.0}])
def test_a_cart_that_cannot_be_is_an_error_of_the_rig_file(parameters):
    # Names are looked up when the rig file is read, files when the cart is made.
    with pytest.raises((PlantError, ValidationError), match="parameters: "):
        SimulatedPlant(SimulatedConnection(plant="simulated", parameters=parameters))


def test_the_shipped_rig_file_describes_the_cart():
    rig = RigFile.load("simulated")
    assert isinstance(rig.connection, SimulatedConnection)
    plant = SimulatedPlant(rig.connection, rig.sensors)
    assert not plant.is_hardware
    assert plant.cart.parameters.cart_count_m == rig.sensors.cart_scale_m
    assert plant.cart.parameters.pole_count_rad == rig.sensors.pole_scale_rad
    assert plant.cart.parameters.rail_length_m == rig.limits.rail_length_m
