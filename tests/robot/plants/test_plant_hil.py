"""The plant for Quanser cards on the stand-in for the vendor's package, and the stand-in itself."""

import array
import math
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nopg_robot.plants.hil import LOW, TRISTATE, HilPlant, checked
from nopg_robot.rig.clock import SimulatedClock
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.sections import HilConnection
from nopg_robot.run.watchdog import GuardedPlant
from nopg_robot.virtual import hil_stub
from nopg_robot.virtual.hil_stub import HIL, Clock, HILError
from nopg_robot.virtual.simulated_card import SimulatedCard
from nopg_robot.virtual.simulated_cart import SimulatedCart

pytestmark = pytest.mark.real_time

ENABLE = 3
WATCHDOG_S = 0.05


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def card(clock: SimulatedClock) -> Iterator[SimulatedCard]:
    card = SimulatedCard(SimulatedCart(operator=False), clock, enable_channel=ENABLE)
    yield hil_stub.plug_in("q2_usb", "0", card)
    hil_stub._cards.clear()


def connection(**changes: Any) -> HilConnection:
    settings = {"module": "nopg_robot.virtual.hil_stub", "watchdog_s": WATCHDOG_S, "enable_channel": ENABLE, **changes}
    return HilConnection(plant="hil", card_type="q2_usb", **settings)


def wait(clock: SimulatedClock, seconds: float) -> None:
    clock.sleep_until(clock.now_s() + seconds)


class TestPlant:
    def test_reads_drives_and_leaves_no_voltage(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        with HilPlant(connection()) as plant:
            assert plant.read().cart == 0.0
            for _ in range(100):
                assert plant.write(2.0) == 2.0
                wait(clock, 0.002)
                reading = plant.read()
            assert reading.cart > 500
            assert reading.pole != 0.0
            assert (reading.cart, reading.pole) == card.cart.counts
            assert card.voltage == 2.0
        assert card.voltage == 0.0
        assert not card.in_use

    def test_order_of_calls(self, card: SimulatedCard) -> None:
        with HilPlant(connection()) as plant:
            # The amplifier is enabled when there is nothing to amplify, and the watchdog starts before the first voltage.
            assert card.calls == [("write_analog", (0.0,)), ("write_digital", (1,))]
            plant.write(1.0)
            assert card.calls[2:] == [("watchdog_start", WATCHDOG_S), ("write_analog", (1.0,))]
            assert card.expiration_volts == {0: 0.0}
            assert card.expiration_states == {ENABLE: LOW}
        assert card.calls[4:] == [
            ("write_analog", (0.0,)),
            ("write_digital", (0,)),
            ("watchdog_stop", None),
            ("close", None),
        ]

    def test_without_an_enable_line(self, card: SimulatedCard) -> None:
        card.enable_channel = None
        with HilPlant(connection(enable_channel=None)) as plant:
            plant.write(1.0)
            assert card.voltage == 1.0
        assert card.voltage == 0.0
        assert not [call for call in card.calls if call[0] == "write_digital"]

    def test_channels_of_the_rig_file(self, card: SimulatedCard) -> None:
        card.cart.count_jump = 11
        with HilPlant(connection(cart_encoder_channel=1, pole_encoder_channel=0, analog_channel=2)) as plant:
            reading = plant.read()
            assert (reading.cart, reading.pole) == (0.0, 11.0)
            plant.write(1.0)
            assert card.analog[2] == 1.0
            assert card.voltage == 0.0

    def test_counters_are_left_as_they_are(self, card: SimulatedCard) -> None:
        card.offsets[0] = 2**23 - 5
        with HilPlant(connection()) as plant:
            assert plant.read().cart == 2**23 - 5
            card.cart.count_jump = 10
            # 24 bits.
            assert plant.read().cart == -(2**23) + 5
        assert not [call for call in card.calls if call[0] == "set_encoder_counts"]

    def test_voltage_is_cut_to_what_the_converter_gives(self, card: SimulatedCard) -> None:
        with HilPlant(connection()) as plant:
            assert plant.write(99.0) == 10.0
            assert plant.write(-99.0) == -10.0

    @pytest.mark.parametrize("volt", [math.nan, math.inf])
    def test_no_number_is_no_voltage(self, card: SimulatedCard, volt: float) -> None:
        with HilPlant(connection()) as plant, pytest.raises(ValueError, match="volt: must be a finite number"):
            plant.write(volt)

    def test_whether_something_real_moves(self) -> None:
        assert not HilPlant(connection()).is_hardware
        assert HilPlant(connection(module="quanser.hardware")).is_hardware

    def test_closed_plant(self, card: SimulatedCard) -> None:
        plant = HilPlant(connection())
        plant.close()
        for use in (plant.read, lambda: plant.write(0.0)):
            with pytest.raises(PlantError, match="is not open"):
                use()


class TestWatchdog:
    def test_zero_volts_when_commands_stop(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        plant = HilPlant(connection())
        plant.open()
        plant.write(2.0)
        wait(clock, 0.04)
        plant.write(3.0)
        wait(clock, 1.0)
        assert card.voltage == 0.0
        assert card.applied_voltages == [(0.0, 2.0), (0.04, 3.0), (pytest.approx(0.04 + WATCHDOG_S), 0.0)]
        for use in (plant.read, lambda: plant.write(1.0)):
            with pytest.raises(PlantError, match="watchdog has cut the motor"):
                use()
        assert card.voltage == 0.0
        plant.close()
        assert not card.in_use
        assert card.voltage == 0.0

    def test_a_card_that_would_go_on_all_the_same(self, card: SimulatedCard, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HIL, "watchdog_reload", lambda self: False)
        with HilPlant(connection()) as plant:
            with pytest.raises(PlantError, match="watchdog has cut the motor"):
                plant.write(1.0)
            assert card.voltage == 0.0
            with pytest.raises(PlantError, match="watchdog has cut the motor"):
                plant.write(2.0)
            assert card.voltage == 0.0
        assert card.voltage == 0.0

    def test_it_does_not_run_before_the_first_voltage(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        with HilPlant(connection()) as plant:
            wait(clock, 10.0)
            plant.read()
            plant.write(1.0)
            assert card.voltage == 1.0

    def test_end_of_a_run_that_took_its_time(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        with HilPlant(connection()) as plant:
            plant.write(1.0)
            wait(clock, 1.0)
        assert card.voltage == 0.0
        assert not card.in_use

    def test_the_next_run_clears_what_a_killed_one_left(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        HilPlant.open(plant := HilPlant(connection()))
        plant.write(2.0)
        # The process is gone.
        card.in_use = False
        wait(clock, 1.0)
        assert card.voltage == 0.0
        card.calls.clear()
        with HilPlant(connection()) as again:
            assert card.calls[:2] == [("watchdog_clear", None), ("write_analog", (0.0,))]
            again.write(1.0)
            assert card.voltage == 1.0

    def test_a_card_that_takes_no_voltage_is_not_kept_from_expiring(self) -> None:
        """In real time: the guard tries again and again."""
        card = hil_stub.plug_in("q2_usb", "0", SimulatedCard(SimulatedCart(operator=False), enable_channel=ENABLE))
        plant = HilPlant(connection())
        plant.open()
        with GuardedPlant(plant, WATCHDOG_S / 2.0) as guarded:
            guarded.write(2.0)
            card.failing.add("write_analog")
            time.sleep(6.0 * WATCHDOG_S)
            assert card.voltage == 0.0
            assert card.expired
            assert card.digital[ENABLE] == 0
        plant.close()

    def test_the_amplifier_goes_off_with_the_card(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        """Its line too: an analog output at zero is not quite zero at an amplifier with an offset."""
        card.expiration_states_known = {TRISTATE}
        plant = HilPlant(connection())
        plant.open()
        assert card.expiration_states == {ENABLE: TRISTATE}
        plant.write(2.0)
        assert card.digital[ENABLE] == 1
        wait(clock, 1.0)
        assert card.voltage == 0.0
        assert card.digital[ENABLE] == 0
        plant.close()

    def test_it_is_seen_to_act(self) -> None:
        """In real time, as the plant waits."""
        card = hil_stub.plug_in("q2_usb", "0", SimulatedCard(SimulatedCart(operator=False), enable_channel=ENABLE))
        with HilPlant(connection()) as plant:
            assert plant.test_watchdog()
            assert [volt for _, volt in card.applied_voltages] == []
            # Ready again.
            assert plant.write(1.0) == 1.0
            assert card.voltage == 1.0

    def test_one_that_does_not_act_is_found(self) -> None:
        card = hil_stub.plug_in("q2_usb", "0", SimulatedCard(SimulatedCart(operator=False)))
        card.watchdog_is_broken = True
        with HilPlant(connection(enable_channel=None)) as plant, pytest.raises(PlantError, match="watchdog did not act"):
            plant.test_watchdog()


class TestErrors:
    @pytest.mark.parametrize(
        "call",
        [
            "open",
            "is_valid",
            "watchdog_is_expired",
            "write_analog",
            "watchdog_set_analog_expiration_state",
            "watchdog_set_digital_expiration_state",
            "set_digital_directions",
            "write_digital",
        ],
    )
    def test_while_opening(self, card: SimulatedCard, call: str) -> None:
        card.failing.add(call)
        with pytest.raises(PlantError, match="card q2_usb 0: "), HilPlant(connection()):
            pytest.fail("it must not open")
        assert card.voltage == 0.0
        assert not card.in_use

    @pytest.mark.parametrize("call", ["watchdog_start", "write_analog", "watchdog_reload", "read_encoder"])
    def test_while_running(self, card: SimulatedCard, clock: SimulatedClock, call: str) -> None:
        plant = HilPlant(connection())
        plant.open()
        if call != "watchdog_start":
            plant.write(1.0)
        card.failing.add(call)
        with pytest.raises(PlantError, match="The operation failed"):
            _ = plant.read(), plant.write(2.0)
        card.failing.add("close")
        if call == "write_analog":
            wait(clock, 2.0 * WATCHDOG_S)
        # Nothing new to say, and zero volts: by hand, or by the watchdog where the card takes nothing.
        plant.close()
        assert card.voltage == 0.0
        assert not card.in_use

    @pytest.mark.parametrize("call", ["write_digital", "watchdog_stop", "close", "watchdog_is_expired"])
    def test_while_closing(self, card: SimulatedCard, call: str) -> None:
        plant = HilPlant(connection())
        plant.open()
        plant.write(1.0)
        card.failing.add(call)
        if call == "watchdog_is_expired":
            plant.close()
        else:
            with pytest.raises(PlantError, match="cannot be closed properly: The operation failed"):
                plant.close()
        assert card.voltage == 0.0
        assert not card.in_use
        assert [name for name, _ in card.calls][-1] == "close"
        plant.close()

    def test_a_card_that_takes_no_zero_is_left_to_its_watchdog(self) -> None:
        """In real time: closing waits for the watchdog, which it must not stop."""
        card = hil_stub.plug_in("q2_usb", "0", SimulatedCard(SimulatedCart(operator=False)))
        plant = HilPlant(connection(enable_channel=None))
        plant.open()
        plant.write(1.0)
        card.failing.add("write_analog")
        with pytest.raises(PlantError, match="cannot be closed properly"):
            plant.close()
        assert card.expired
        assert card.voltage == 0.0
        assert [name for name, _ in card.calls][-2:] == ["watchdog_stop", "close"]

    def test_card_in_use(self, card: SimulatedCard) -> None:
        with HilPlant(connection()), pytest.raises(PlantError, match=r"in use by another program.*plugged in"):
            HilPlant(connection()).open()

    def test_without_the_vendors_package(self) -> None:
        with pytest.raises(PlantError, match=r"Quanser's SDK.*module: nopg_robot\.virtual\.hil_stub.*--plant auto"):
            HilPlant(connection(module="quanser_is_not_installed.hardware")).open()

    def test_package_without_its_driver(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        (tmp_path / "half_installed.py").write_text("raise OSError('cannot load library hil')")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(PlantError, match="cannot load library hil"):
            HilPlant(connection(module="half_installed")).open()

    def test_any_module_with_the_same_classes_will_do(self, card: SimulatedCard, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("vendor")
        module.HIL, module.HILError = HIL, HILError  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vendor", module)
        with HilPlant(connection(module="vendor")) as plant:
            plant.read()

    @pytest.mark.parametrize(
        "buffer",
        [
            np.zeros(2, dtype=np.float32),
            np.zeros(3, dtype=np.float64),
            np.zeros((2, 1), dtype=np.float64),
            np.zeros(4, dtype=np.float64)[::2],
        ],
    )
    def test_buffers_of_the_wrong_kind_never_reach_the_card(self, buffer: np.ndarray) -> None:
        with pytest.raises(TypeError, match="a buffer of 2 float64 is wanted"):
            checked(buffer, np.float64, 2)


CHANNELS = np.array([0, 1], dtype=np.uint32)
COUNTS = np.zeros(2, dtype=np.int32)


class TestStub:
    """It rejects what the vendor's package would corrupt."""

    @pytest.mark.parametrize(
        ("channels", "counts", "error"),
        [
            ([0, 1], COUNTS, TypeError),
            (CHANNELS.astype(np.int64), COUNTS, TypeError),
            (CHANNELS.astype(np.int32), COUNTS, TypeError),
            (CHANNELS, COUNTS.astype(np.int64), TypeError),
            (CHANNELS, COUNTS.astype(np.float64), TypeError),
            (CHANNELS, np.zeros(4, dtype=np.int32)[::2], TypeError),
            (CHANNELS, np.zeros((2, 2), dtype=np.int32), TypeError),
            (CHANNELS, bytes(8), TypeError),
            (CHANNELS, np.zeros(1, dtype=np.int32), HILError),
            (CHANNELS[:1], COUNTS, HILError),
            (np.array([0, 8], dtype=np.uint32), COUNTS, HILError),
        ],
    )
    def test_encoder_buffers(self, card: SimulatedCard, channels: Any, counts: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            HIL("q2_usb", "0").read_encoder(channels, 2, counts)

    def test_read_only_buffers(self, card: SimulatedCard) -> None:
        frozen = COUNTS.copy()
        frozen.flags.writeable = False
        with pytest.raises(TypeError, match="writable"):
            HIL("q2_usb", "0").read_encoder(CHANNELS, 2, frozen)

    def test_output_buffers(self, card: SimulatedCard) -> None:
        hil = HIL("q2_usb", "0")
        with pytest.raises(TypeError, match="float64"):
            hil.write_analog(CHANNELS, 1, np.zeros(1, dtype=np.float32))
        with pytest.raises(TypeError, match="int8"):
            hil.write_digital(CHANNELS, 1, np.zeros(1, dtype=np.int32))
        with pytest.raises(HILError) as caught:
            hil.write_analog(CHANNELS, 1, np.array([math.nan]))
        assert caught.value.error_code < 0
        assert "makes no sense" in caught.value.get_error_message()
        assert card.analog[0] == 0.0

    def test_arrays_of_the_standard_library(self, card: SimulatedCard) -> None:
        counts = array.array("i", [7, 7])
        HIL("q2_usb", "0").read_encoder(array.array("I", [0, 1]), 2, counts)
        assert list(counts) == [0, 0]

    def test_a_line_must_be_an_output(self, card: SimulatedCard) -> None:
        hil, line, on = HIL("q2_usb", "0"), np.array([ENABLE], dtype=np.uint32), np.ones(1, dtype=np.int8)
        with pytest.raises(HILError, match="-6"):
            hil.write_digital(line, 1, on)
        hil.set_digital_directions(None, 0, line, 1)
        hil.write_digital(line, 1, on)
        hil.set_digital_directions(line, 1, None, 0)
        with pytest.raises(HILError, match="-6"):
            hil.write_digital(line, 1, on)

    def test_set_encoder_counts(self, card: SimulatedCard) -> None:
        hil, counts = HIL("q2_usb", "0"), np.zeros(2, dtype=np.int32)
        card.cart.count_jump = 42
        hil.set_encoder_counts(CHANNELS, 2, np.array([100, -100], dtype=np.int32))
        hil.read_encoder(CHANNELS, 2, counts)
        assert list(counts) == [100, -100]

    def test_expired_card_refuses_until_it_is_cleared(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        hil, counts = HIL("q2_usb", "0"), np.zeros(2, dtype=np.int32)
        with pytest.raises(HILError):
            hil.watchdog_start(0.0)
        hil.watchdog_start(0.1)
        wait(clock, 0.09)
        assert hil.watchdog_reload()
        wait(clock, 0.09)
        assert not hil.watchdog_is_expired()
        wait(clock, 0.09)
        assert hil.watchdog_is_expired()
        assert not hil.watchdog_reload()
        hil.watchdog_stop()
        with pytest.raises(HILError) as caught:
            hil.read_encoder(CHANNELS, 2, counts)
        assert "protected until the watchdog is cleared" in caught.value.get_error_message()
        hil.watchdog_clear()
        hil.read_encoder(CHANNELS, 2, counts)

    def test_without_an_expiration_state_the_voltage_stays(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        """What the plant must not forget."""
        card.enable_channel = None
        hil = HIL("q2_usb", "0")
        hil.watchdog_start(0.1)
        hil.write_analog(CHANNELS, 1, np.array([2.0]))
        wait(clock, 1.0)
        assert hil.watchdog_is_expired()
        assert card.voltage == 2.0

    def test_closed_card(self) -> None:
        hil = HIL()
        assert not hil.is_valid()
        with pytest.raises(HILError) as caught:
            hil.watchdog_reload()
        assert "has not been opened" in caught.value.get_error_message()
        hil.close()


class TestEncoderReader:
    def test_samples_are_those_of_their_time(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        card.enable_channel = None
        hil, counts = HIL("q2_usb", "0"), np.zeros(4, dtype=np.int32)
        task = hil.task_create_encoder_reader(100, CHANNELS, 2)
        hil.task_start(task, Clock.HARDWARE_CLOCK_0, 100.0, 5)
        hil.write_analog(CHANNELS, 1, np.array([3.0]))
        twin = SimulatedCart(operator=False)
        twin.set_voltage(3.0)
        expected = []
        for number in range(1, 6):
            twin.advance_to(0.01 * number)
            expected += twin.counts
        # The first read waits, the second finds its samples waiting.
        assert hil.task_read_encoder(task, 2, counts) == 2
        assert clock.now_s() == pytest.approx(0.02)
        assert list(counts) == expected[:4]
        wait(clock, 1.0)
        assert hil.task_read_encoder(task, 2, counts) == 2
        assert list(counts) == expected[4:8]
        assert hil.task_read_encoder(task, 2, counts) == 1
        assert list(counts[:2]) == expected[8:]
        hil.task_stop(task)
        hil.task_delete(task)
        with pytest.raises(HILError, match="-8"):
            hil.task_read_encoder(task, 1, counts)

    def test_overflow(self, card: SimulatedCard, clock: SimulatedClock) -> None:
        hil, counts = HIL("q2_usb", "0"), np.zeros(2, dtype=np.int32)
        task = hil.task_create_encoder_reader(3, CHANNELS, 2)
        hil.task_start(task, Clock.SYSTEM_CLOCK_1, 100.0, 1000)
        wait(clock, 1.0)
        with pytest.raises(HILError) as caught:
            hil.task_read_encoder(task, 1, counts)
        assert "Samples were lost" in caught.value.get_error_message()

    def test_values_that_make_no_sense(self, card: SimulatedCard) -> None:
        hil = HIL("q2_usb", "0")
        task = hil.task_create_encoder_reader(3, CHANNELS, 2)
        with pytest.raises(HILError, match="-7"):
            hil.task_start(task, Clock.HARDWARE_CLOCK_0, 0.0, 10)
        with pytest.raises(HILError, match="-4"):
            hil.task_read_encoder(task, 2, np.zeros(2, dtype=np.int32))
