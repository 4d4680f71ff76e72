"""A run begins with a pole that hangs: what is said where it does not, and virtual rigs that leave it hanging."""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.rigs import balance, metadata, quick_rig
from nopg_robot.plants import Plant, Rig
from nopg_robot.plants.quarc import QuarcPlant
from nopg_robot.plants.serial_board import SerialPlant
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import QuarcConnection, SerialConnection
from nopg_robot.run import deployment
from nopg_robot.run.deployment import RunOptions, deploy
from nopg_robot.run.display import Snapshot
from nopg_robot.run.session import RunSummary
from nopg_robot.virtual.serial_board import VirtualSerialBoard
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer


class HeldUpright(SimulatedCart):
    """Somebody holds the tip of the pole where it is, whatever the cart does below it."""

    LENGTH_M = 0.3

    @property
    def counts(self) -> tuple[int, int]:
        # The pivot goes to one side, so that the bob leans to the other.
        lean_rad = math.atan2(self.state[0] - self._start[0], self.LENGTH_M)
        return super().counts[0], round(lean_rad / self.parameters.pole_count_rad)


class HeldByAHandThatMoves(HeldUpright):
    """And moves it to and fro once the cart was pushed, as far as a hanging pole swings."""

    _moves_from_s = math.inf

    def set_voltage(self, volt: float) -> float:
        if volt == 0.0 and self.voltage != 0.0:
            self._moves_from_s = min(self._moves_from_s, self.time_s)
        return super().set_voltage(volt)

    @property
    def counts(self) -> tuple[int, int]:
        cart, pole = super().counts
        moved_rad = 0.1 * math.sin(4.0 * (self.time_s - self._moves_from_s)) if self.time_s > self._moves_from_s else 0.0
        return cart, pole + round(moved_rad / self.parameters.pole_count_rad)


def deploy_on(cart: SimulatedCart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> RunSummary:
    rig = quick_rig(**sections)

    def opened(file: RigFile, *args: Any, **options: Any) -> Rig:
        assert file.connection.plant == "simulated"
        plant = SimulatedPlant(file.connection, file.sensors, cart)
        plant.open()
        return Rig(plant, file)

    monkeypatch.setattr(deployment, "open_rig", opened)
    return deploy(balance, metadata(), rig, tmp_path / "log.npz", RunOptions(1.0))


@pytest.mark.parametrize("x", [0.05, -0.3, 0.39])
@pytest.mark.parametrize("held", [HeldUpright, HeldByAHandThatMoves])
def test_a_pole_that_is_held_upright_at_the_start_is_asked_about(
    x: float, held: type[SimulatedCart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cart = held(start=(x, math.pi, 0.0, 0.0), operator=False)
    # The encoder counts as it should: only the pole is not where it was taken to be.
    summary = deploy_on(cart, tmp_path, monkeypatch)
    assert (summary.outcome, summary.phase) == ("failed", "self-test")
    assert summary.reason.startswith("self-test: does the pole hang?")
    assert cart.voltage == 0.0


@pytest.mark.parametrize("x", [0.05, -0.3, 0.39])
@pytest.mark.parametrize("operator", [True, False])
def test_an_encoder_that_counts_the_wrong_way_is_still_told(
    x: float, operator: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cart = SimulatedCart(start=(x, math.pi, 0.0, 0.0), operator=operator)
    summary = deploy_on(cart, tmp_path, monkeypatch, sensors={"pole_sign": -1})
    assert "encoder counts the wrong way: change sensors.pole_sign" in summary.reason
    # A hand may move as this pole does.
    assert "does the pole hang?" in summary.reason


@pytest.mark.slow
def test_the_operator_is_asked_to_look_at_the_pole(tmp_path: Path):
    shown: dict[str, str] = {}

    class Display:
        def update(self, snapshot: Snapshot) -> None:
            shown.setdefault(snapshot.phase, snapshot.message)

    deploy(balance, metadata(), quick_rig(), tmp_path / "log.npz", RunOptions(0.1), display=Display())
    assert "see that it does: its encoder cannot tell" in shown["hang"]


def from_hanging(cart: SimulatedCart) -> float:
    return abs(math.remainder(cart.state[1] - math.pi, 2.0 * math.pi))


@pytest.mark.slow
def test_whoever_leaves_while_the_pole_is_lifted_leaves_it_hanging():
    cart = SimulatedCart()
    cart.set_voltage(1e-3)
    cart.advance_to(0.002)
    cart.set_voltage(0.0)
    cart.advance_to(4.0)
    assert cart.held
    assert from_hanging(cart) > 3.0
    cart.attend(False)
    cart.advance_to(5.5)
    cart.attend(True)
    for time_s in range(6, 40):
        cart.advance_to(float(time_s))
        assert not cart.held
        assert from_hanging(cart) < 0.02


def test_a_pole_that_friction_holds_upright_is_let_down_when_everybody_has_left():
    cart = SimulatedCart({"voltage_offset": 0.0}, start=(0.0, 0.0, 0.0, 0.0))
    cart.advance_to(3.0)
    assert from_hanging(cart) > 3.0
    cart.attend(False)
    cart.advance_to(6.0)
    assert from_hanging(cart) < 0.02


@contextlib.contextmanager
def virtual_rig(kind: str) -> Iterator[tuple[SimulatedCart, Any]]:
    """Its cart, and what makes a driver for it."""
    if kind == "tcp":
        with VirtualQuarcServer() as server:
            host, port = server.address
            connection = QuarcConnection(plant="quarc", host=host, port=port, read_timeout_s=1.0, watchdog_s=0.02)
            yield server.cart, lambda: QuarcPlant(connection)
    else:
        with VirtualSerialBoard() as board:
            serial = SerialConnection(plant="serial", port=board.port, read_timeout_s=1.0, watchdog_s=0.25)
            yield board.cart, lambda: SerialPlant(serial, counter_bits=16, voltage_limit_volt=5.0)


def push(plants: list[Plant], seconds: float, volt: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for plant in plants:
            plant.read()
            plant.write(volt)


@pytest.mark.slow
def test_virtual_rigs_are_ready_for_the_next_run():
    """
    The hand of one once lifted the pole a few seconds after a run, and the next run took it for a hanging one. Both kinds are
    watched at once, for it takes these seconds.
    """
    with virtual_rig("tcp") as (tcp, make_tcp_plant), virtual_rig("serial") as (board, make_board_plant):
        carts = (tcp, board)
        with make_tcp_plant() as one, make_board_plant() as other:
            push([one, other], 0.1, 1.0)
        furthest, end_s = 0.0, time.perf_counter() + 5.0
        while time.perf_counter() < end_s:
            furthest = max(furthest, *map(from_hanging, carts))
            time.sleep(0.02)
        assert furthest < 1.0
        with make_tcp_plant() as one, make_board_plant() as other:
            push([one, other], 2.5, 0.0)
            assert not any(cart.held for cart in carts)
            assert max(map(from_hanging, carts)) < 0.02
