"""A model's own watchdog is seen to act, or not, by what the cart does when commands stop."""

import math
from typing import Any

import pytest

from helpers.rigs import changed
from nopg_robot.control.safety import Checks
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import open_rig
from nopg_robot.rig.errors import PhaseError
from nopg_robot.rig.file import RigFile
from nopg_robot.run import rig_watchdog
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import SafetyStop
from nopg_robot.run.session import Session
from nopg_robot.run.stop import StopRequest
from nopg_robot.virtual import hil_stub
from nopg_robot.virtual.simulated_card import SimulatedCard
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

WATCHDOG_S = 0.1


def model_after_the_test(
    tmp_path: Any, *, x: float = 0.0, watchdog_s: float | None = WATCHDOG_S, said_s: float | None = WATCHDOG_S
) -> VirtualQuarcServer:
    """
    :param x: where the cart stands at first
    :param watchdog_s: that the model has
    :param said_s: that the rig file has
    """
    cart = SimulatedCart(operator=False, start=(x, math.pi, 0.0, 0.0))
    with VirtualQuarcServer(cart, watchdog_s=watchdog_s) as server:
        file = changed(
            RigFile.load("quanser_ip02_quarc"),
            connection={
                "host": "127.0.0.1",
                "port": server.address[1],
                "read_timeout_s": 0.07,
                "watchdog_s": said_s,
                "virtual": True,
            },
            timing={"miss_s": 1.0, "watchdog_s": 0.1},
            limits={"stale_s": 1.0},
        )
        recorder = FlightRecorder(tmp_path / "log.npz", {})
        with recorder, Session(open_rig(file), recorder, NullDisplay(), StopRequest()) as session:
            if not rig_watchdog.ask_the_rig(session.loop):
                rig_watchdog.watch_the_cart(session.loop)
            # The guards of this program did not mind the silence, and are on their watch again.
            assert session.loop.guarded.tripped is None
            session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
            session.loop.drive(lambda state: 0.0, lambda state, time_s: time_s > 0.1, 1.0)
    return server


@pytest.mark.parametrize("x", [-0.407, 0.407])
def test_it_acts_also_where_the_cart_stands_at_a_stop(tmp_path: Any, x: float) -> None:
    server = model_after_the_test(tmp_path, x=x)
    assert [volt for _, volt in server.applied_voltages if volt != 0.0]


@pytest.mark.parametrize("watchdog_s", [None, 1.0])
def test_one_that_does_not_act_in_time(tmp_path: Any, watchdog_s: float | None) -> None:
    with pytest.raises(PhaseError, match=r"watchdog: the cart still ran at 0\.\d\d m/s after 0\.6 s without a command"):
        model_after_the_test(tmp_path, watchdog_s=watchdog_s)


def test_a_rig_file_that_says_there_is_none(tmp_path: Any) -> None:
    """The operator was told in red; nothing is tested and nothing moves."""
    server = model_after_the_test(tmp_path, watchdog_s=None, said_s=None)
    assert not [volt for _, volt in server.applied_voltages if volt != 0.0]


def test_a_card_without_one_is_not_flown(tmp_path: Any) -> None:
    card = hil_stub.plug_in("test", "0", SimulatedCard(SimulatedCart(operator=False)))
    card.watchdog_is_broken = True
    connection = {"card_type": "test", "module": "nopg_robot.virtual.hil_stub"}
    file = changed(RigFile.load("quanser_ip02_hil"), connection=connection)
    recorder = FlightRecorder(tmp_path / "log.npz", {})
    with (
        recorder,
        Session(open_rig(file), recorder, NullDisplay(), StopRequest()) as session,
        pytest.raises(SafetyStop, match="watchdog did not act"),
    ):
        session.prepare()
    assert not card.applied_voltages
