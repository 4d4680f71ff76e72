"""The serial plant against a board of software: what it survives, what it gives up on, and that zero volts are left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from nopg_robot.plants.serial_board import SerialPlant
from nopg_robot.rig import protocol
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.protocol import Configure, Drive, Flag, Frame, Hello, Message, Poll, State, Stop
from nopg_robot.rig.sections import SerialConnection
from nopg_robot.virtual import serial_board
from nopg_robot.virtual.serial_board import Firmware, VirtualSerialBoard
from nopg_robot.virtual.simulated_cart import SimulatedCart

# Longer than on a rig: these run on computers that are busy with other things. The firmware's own tests keep time exactly.
pytestmark = pytest.mark.real_time

WATCHDOG_S = 0.4
SLACK_S = 0.5


@pytest.fixture
def board() -> Iterator[VirtualSerialBoard]:
    with VirtualSerialBoard(cart=SimulatedCart(operator=False)) as board:
        yield board


def connection(port: str, **changes: float) -> SerialConnection:
    settings = {"connect_timeout_s": 2.0, "read_timeout_s": 0.25, "watchdog_s": WATCHDOG_S, **changes}
    return SerialConnection(plant="serial", port=port, **settings)


@pytest.fixture
def plant(board: VirtualSerialBoard) -> Iterator[SerialPlant]:
    plant = SerialPlant(connection(board.port))
    plant.open()
    yield plant
    plant.close()


def drive(plant: SerialPlant, n_cycles: int) -> None:
    for cycle in range(n_cycles):
        plant.read()
        # A voltage that changes each time, so that the board's list shows when it took the last one.
        plant.write(1.0 + 0.1 * (cycle % 2))
        time.sleep(0.002)


def wait_for_zero(board: VirtualSerialBoard) -> float:
    """:return: seconds between the last voltage that the board took and zero volts"""
    deadline_s = time.perf_counter() + 5.0
    while board.applied_voltages[-1][1] != 0.0:
        assert time.perf_counter() < deadline_s, "the motor still has voltage"
        time.sleep(0.005)
    (last_s, last_volt), (zero_s, _) = board.applied_voltages[-2:]
    assert last_volt != 0.0
    assert board.cart.voltage == 0.0
    return zero_s - last_s


class TestFirmware:
    """Rules of PROTOCOL.md, on a clock that the test turns."""

    def setup_method(self) -> None:
        self.firmware = Firmware(SimulatedCart(operator=False), counter_bits=16)
        self.sequence = 65530

    def send(self, message: Message, time_s: float, sequence: int | None = None) -> Message | None:
        if sequence is None:
            self.sequence = sequence = protocol.next_sequence(self.sequence)
        answers = protocol.Decoder().feed(self.firmware.answer(Frame(sequence, message), time_s))
        self.firmware.tick(time_s)
        assert all(answer.sequence == sequence for answer in answers)
        return answers[0].message if answers else None

    def state(self, time_s: float) -> State:
        answer = self.send(Poll(), time_s)
        assert isinstance(answer, State)
        return answer

    def test_no_voltage_before_it_is_configured(self) -> None:
        self.send(Drive(1000), 0.0)
        assert self.firmware.cart.voltage == 0.0
        assert self.state(0.0).flags == 0

    def test_watchdog(self) -> None:
        self.send(Configure(50, 5000), 0.0)
        # It waits for the first DRIVE, however long that takes.
        assert self.state(10.0).flags == Flag.ENABLED
        self.send(Drive(1000), 10.0)
        self.send(Hello(), 10.02)
        assert self.state(10.049).applied_mv == 1000
        self.firmware.tick(10.050)
        assert self.firmware.cart.voltage == 0.0
        state = self.state(10.051)
        assert (state.applied_mv, state.flags) == (0, Flag.ENABLED | Flag.WATCHDOG_EXPIRED)
        assert self.firmware.applied_voltages == [(10.0, 1.0), (10.05, 0.0)]

    @pytest.mark.parametrize("cause", ["both limit switches", "its own"])
    def test_a_fault_is_shown_for_a_while(self, cause: str) -> None:
        self.send(Configure(1000, 5000), 0.0)
        self.send(Drive(1000), 1.0)
        both = Flag.LIMIT_NEGATIVE | Flag.LIMIT_POSITIVE
        if cause == "its own":
            self.firmware.fault = True
        else:
            self.firmware.limits = both
        self.firmware.tick(1.001)
        assert self.firmware.cart.voltage == 0.0
        self.firmware.fault, self.firmware.limits = False, Flag(0)
        self.send(Drive(1000), 1.1)
        state = self.state(1.1)
        assert (state.applied_mv, state.flags) == (0, Flag.ENABLED | Flag.FAULT)
        self.send(Drive(1000), 1.102)
        state = self.state(1.102)
        assert (state.applied_mv, state.flags) == (1000, Flag.ENABLED)

    @pytest.mark.parametrize("message", [Stop(), Configure(50, 5000)])
    def test_expired_until_it_is_told(self, message: Message) -> None:
        self.send(Configure(50, 5000), 0.0)
        self.send(Drive(1000), 0.0)
        self.firmware.tick(1.0)
        self.send(Drive(1000), 1.0)
        # Not for an instant.
        assert self.firmware.applied_voltages == [(0.0, 1.0), (1.0, 0.0)]
        self.send(message, 1.0)
        assert self.state(1.0).flags == Flag.ENABLED
        self.send(Drive(1000), 1.0)
        assert self.firmware.cart.voltage == 1.0

    def test_old_and_repeated_commands_neither_drive_nor_feed_the_watchdog(self) -> None:
        self.send(Configure(50, 5000), 0.0)
        self.send(Drive(1000), 0.0)
        # Numbers went round between these two.
        for _ in range(10):
            self.send(Drive(2000), 0.01)
        newest = self.sequence
        self.send(Drive(3000), 0.04, sequence=newest)
        self.send(Drive(3000), 0.04, sequence=65533)
        assert self.firmware.cart.voltage == 2.0
        self.firmware.tick(0.061)
        assert self.firmware.cart.voltage == 0.0

    def test_a_command_from_before_stop_does_not_drive(self) -> None:
        self.send(Configure(50, 5000), 0.0)
        late = protocol.next_sequence(self.sequence)
        self.sequence = late
        self.send(Stop(), 0.0)
        self.send(Drive(1000), 0.0, sequence=late)
        assert self.firmware.cart.voltage == 0.0

    def test_voltage_limits(self) -> None:
        assert self.send(Configure(50, 5000), 0.0) == protocol.Configured(50, 5000)
        self.send(Drive(-30_000), 0.0)
        assert self.firmware.cart.voltage == -5.0
        assert self.send(Configure(50, 60_000), 0.0) == protocol.Configured(50, 10_000)
        assert self.firmware.cart.voltage == 0.0

    def test_the_watchdog_is_taken_within_bounds(self) -> None:
        assert self.send(Configure(0, 5000), 0.0) == protocol.Configured(1, 5000)
        assert self.send(Configure(5000, 5000), 0.0) == protocol.Configured(1000, 5000)

    @pytest.mark.parametrize(("flag", "sign"), [(Flag.LIMIT_POSITIVE, 1), (Flag.LIMIT_NEGATIVE, -1)])
    def test_limit_switches(self, flag: Flag, sign: int) -> None:
        self.send(Configure(50, 5000), 0.0)
        self.send(Drive(sign * 1000), 0.0)
        self.firmware.limits = flag
        self.firmware.tick(0.001)
        assert self.firmware.cart.voltage == 0.0
        self.send(Drive(sign * 1000), 0.002)
        assert (self.state(0.002).applied_mv, self.state(0.002).flags) == (0, Flag.ENABLED | flag)
        self.send(Drive(-sign * 1000), 0.003)
        assert self.state(0.003).applied_mv == -sign * 1000

    def test_a_slip_is_told_until_it_is_configured(self) -> None:
        self.firmware.slipped = True
        self.send(Stop(), 0.0)
        assert self.state(0.0).flags == Flag.SLIPPED
        self.send(Configure(50, 5000), 0.0)
        assert self.state(0.0).flags == Flag.ENABLED

    def test_fault_and_restart(self) -> None:
        self.send(Configure(500, 5000), 0.0)
        self.send(Drive(1000), 0.0)
        self.firmware.fault = True
        self.firmware.tick(0.001)
        assert self.firmware.cart.voltage == 0.0
        assert self.state(0.001).flags & Flag.FAULT
        self.firmware.fault = False
        self.send(Drive(1000), 0.102)
        assert self.firmware.cart.voltage == 1.0
        self.firmware.restart()
        assert self.firmware.cart.voltage == 0.0
        assert self.firmware.applied_voltages[-1][1] == 0.0
        assert self.state(0.103).flags == 0

    def test_counters_wrap(self) -> None:
        self.firmware.cart.count_jump = 32_767
        assert self.state(0.0).cart == 32_767
        self.firmware.cart.count_jump = 32_768
        assert self.state(0.0).cart == -32_768


class TestConnecting:
    def test_reads_drives_and_leaves_no_voltage(self, board: VirtualSerialBoard) -> None:
        with SerialPlant(connection(board.port), counter_bits=16) as plant:
            first = plant.read()
            drive(plant, 50)
            last = plant.read()
            assert last.time_s > first.time_s
            assert last.cart > first.cart + 10
            assert board.cart.voltage > 0.0
        assert board.applied_voltages[-1][1] == 0.0
        # By STOP and not by the watchdog.
        assert not board.firmware._expired
        assert plant.decoder.dropped.total == 0

    def test_an_answer_that_waited_says_when_it_was_made(self, board: VirtualSerialBoard, monkeypatch) -> None:
        at_once = board._write

        def later(data: bytes) -> None:
            time.sleep(0.1)
            at_once(data)

        with SerialPlant(connection(board.port, read_timeout_s=0.9, watchdog_s=1.0)) as plant:
            drive(plant, 20)
            with monkeypatch.context() as held_up:
                held_up.setattr(board, "_write", later)
                reading = plant.read()
            assert time.perf_counter() - reading.time_s > 0.08

    def test_a_second_run_on_the_same_board(self, board: VirtualSerialBoard) -> None:
        for _ in range(2):
            with SerialPlant(connection(board.port)) as plant:
                drive(plant, 5)

    def test_what_is_sent_is_never_more_than_what_was_asked(self, plant: SerialPlant) -> None:
        assert plant.write(1.2349) == 1.234
        assert plant.write(-1.2349) == -1.234
        assert plant.write(12.0) == 10.0
        assert plant.write(-1e9) == -10.0

    def test_the_board_holds_to_the_rig_files_limit(self, board: VirtualSerialBoard) -> None:
        with SerialPlant(connection(board.port), voltage_limit_volt=2.5) as plant:
            assert plant.write(4.0) == 2.5
            assert board.firmware._limit_mv == 2500

    @pytest.mark.parametrize("volt", [float("nan"), float("inf")])
    def test_no_number_is_no_voltage(self, plant: SerialPlant, volt: float) -> None:
        with pytest.raises(ValueError, match="volt: must be a finite number"):
            plant.write(volt)

    def test_no_such_port(self, tmp_path: Path) -> None:
        with pytest.raises(PlantError, match=r"nothing.*connection\.port"):
            SerialPlant(connection(str(tmp_path / "nothing"))).open()

    def test_port_in_use(self, board: VirtualSerialBoard, plant: SerialPlant) -> None:
        with pytest.raises(PlantError, match="no other program"):
            SerialPlant(connection(board.port)).open()
        plant.read()

    def test_nobody_there(self, board: VirtualSerialBoard) -> None:
        board.hang()
        with (
            pytest.raises(PlantError, match=r"no board answered within 0\.3 s"),
            SerialPlant(connection(board.port, connect_timeout_s=0.3)),
        ):
            pytest.fail("it must not open")

    def test_another_version(self, board: VirtualSerialBoard) -> None:
        board.hang()
        plant = SerialPlant(connection(board.port, connect_timeout_s=0.4))
        talk = threading.Timer(0.1, lambda: board.send_garbage(protocol.wrap(0x81, 1, b"future", version=2)))
        talk.start()
        with pytest.raises(PlantError, match="the board speaks version 2"), plant:
            pytest.fail("it must not open")
        talk.join()

    def test_a_board_tells_its_version_to_another(self, board: VirtualSerialBoard, monkeypatch: pytest.MonkeyPatch) -> None:
        """The computer's version changes, not the board's: its decoder was made before."""
        monkeypatch.setattr("nopg_robot.plants.serial_board.encode", lambda number, message: wrapped(number, message, 3))
        monkeypatch.setattr("nopg_robot.plants.serial_board.Decoder", lambda: OtherDecoder())
        plant = SerialPlant(connection(board.port, connect_timeout_s=0.5))
        with pytest.raises(PlantError, match="the board speaks version 1 of the protocol"), plant:
            pytest.fail("it must not open")

    def test_a_board_may_allow_less_silence_than_was_asked_for(
        self, board: VirtualSerialBoard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nopg_robot.virtual.serial_board.LONGEST_WATCHDOG_MS", 60)
        with SerialPlant(connection(board.port)) as plant:
            plant.read()
            plant.write(1.0)
            time.sleep(0.2)
            assert wait_for_zero(board) <= 0.06 + SLACK_S
            with pytest.raises(PlantError, match=r"no command reached it for 0\.06 s"):
                plant.read()

    def test_what_is_written_at_a_limit_switch_is_not_applied(self, board: VirtualSerialBoard, plant: SerialPlant) -> None:
        board.firmware.limits = Flag.LIMIT_POSITIVE
        plant.read()
        assert plant.write(1.0) == 0.0
        assert plant.write(-1.0) == -1.0

    def test_a_board_that_starts_slowly(self) -> None:
        board = VirtualSerialBoard()
        start = threading.Timer(0.3, board.__enter__)
        start.start()
        with SerialPlant(connection(board.port)) as plant:
            plant.read()
        start.join()
        board.__exit__(None, None, None)

    def test_counters_that_are_not_as_the_rig_file_says(self, board: VirtualSerialBoard) -> None:
        with (
            pytest.raises(PlantError, match=r"sensors\.counter_bits: 24"),
            SerialPlant(connection(board.port), counter_bits=24),
        ):
            pytest.fail("it must not open")

    def test_without_pyserial(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "serial", None)
        with pytest.raises(PlantError, match="needs pyserial"):
            SerialPlant(connection("anything")).open()

    def test_closed_plant(self, board: VirtualSerialBoard) -> None:
        plant = SerialPlant(connection(board.port))
        plant.close()
        for use in (plant.read, lambda: plant.write(0.0)):
            with pytest.raises(PlantError, match="is not open"):
                use()


def wrapped(number: int, message: Message, version: int) -> bytes:
    return protocol.wrap(message.TYPE, number, message.payload(), version)


class OtherDecoder(protocol.Decoder):
    """Of a program that speaks version 3."""

    def _read(self, packet: bytes) -> Frame | None:
        if packet[0] != 3:
            self.other_version = packet[0]
            return None
        return super()._read(packet)


def wrong_length(board: VirtualSerialBoard) -> None:
    board.send_garbage(protocol.wrap(State.TYPE, 1, b"\1" * 20))


def stale_backlog(board: VirtualSerialBoard) -> None:
    board.send_garbage(b"".join(protocol.encode(number, State(0, 30_000, 30_000, 0, 0, 1)) for number in range(1, 100)))


def own_fault(board: VirtualSerialBoard) -> None:
    board.firmware.fault = True


def slip(board: VirtualSerialBoard) -> None:
    board.firmware.slipped = True


def lost_drives(board: VirtualSerialBoard) -> None:
    board.firmware.ignores_drive = True


class TestSurvived:
    """Noise: a run goes on with fresh samples."""

    @pytest.mark.parametrize(
        "accident",
        [
            lambda board: board.send_garbage(os.urandom(300)),
            lambda board: board.send_garbage(b"\x81" * 5000),
            wrong_length,
            lambda board: board.corrupt_next(1),
            lambda board: board.truncate_next(1),
            lambda board: board.duplicate_next(5),
            lambda board: board.reorder_next(1),
            stale_backlog,
        ],
        ids=["garbage", "endless frame", "wrong length", "crc", "half a frame", "duplicated", "reordered", "stale backlog"],
    )
    def test_accident(self, board: VirtualSerialBoard, accident: Callable[[VirtualSerialBoard], None]) -> None:
        with SerialPlant(connection(board.port, read_timeout_s=0.5, watchdog_s=1.0)) as plant:
            drive(plant, 5)
            accident(board)
            for _ in range(10):
                asked_s = time.perf_counter()
                reading = plant.read()
                assert reading.time_s >= asked_s
                # The cart has hardly moved; old and damaged frames say something else.
                assert abs(reading.cart) < 5000
                plant.write(0.5)
            assert plant.decoder.dropped.total + plant.ignored > 0
            assert board.cart.voltage == 0.5

    def test_an_answer_that_came_while_this_process_slept(self, plant: SerialPlant, monkeypatch: pytest.MonkeyPatch) -> None:
        receive = plant._receive

        def sleep_once() -> bytes:
            monkeypatch.setattr(plant, "_receive", receive)
            time.sleep(0.3)
            return b""

        monkeypatch.setattr(plant, "_receive", sleep_once)
        plant.read()

    def test_what_was_ignored_is_counted(self, board: VirtualSerialBoard, plant: SerialPlant) -> None:
        drive(plant, 2)
        board.duplicate_next(3)
        drive(plant, 5)
        stale_backlog(board)
        drive(plant, 2)
        assert plant.ignored == 3 + 99


class TestGivenUp:
    """The rig cannot be trusted any more: an error with a reason, and zero volts by the board's own doing."""

    @pytest.mark.parametrize(
        ("accident", "reason"),
        [
            (lambda board: board.hang(), "no answer within 250 ms"),
            (lambda board: board.unplug(), "was the cable pulled"),
            (lambda board: board.corrupt_next(10_000), "damaged frames so far"),
            (lambda board: board.truncate_next(10_000), "no answer within 250 ms"),
            (lambda board: board.restart(), "has restarted"),
            (own_fault, "a fault of its own"),
            (slip, "counts may be missing"),
            (lost_drives, "has not taken the last 3 commands"),
        ],
        ids=["hangs", "cable pulled", "crc", "half frames", "restarted", "fault", "slip", "drives lost"],
    )
    def test_accident(
        self, board: VirtualSerialBoard, plant: SerialPlant, accident: Callable[[VirtualSerialBoard], None], reason: str
    ) -> None:
        drive(plant, 5)
        accident(board)
        with pytest.raises(PlantError, match=reason) as caught:
            drive(plant, 500)
        assert board.port in str(caught.value)
        # Nobody closes the plant here: the board is on its own.
        assert wait_for_zero(board) <= WATCHDOG_S + SLACK_S
        begin_s = time.perf_counter()
        plant.close()
        assert time.perf_counter() - begin_s < 2.0

    def test_commands_that_come_too_late(self, board: VirtualSerialBoard, plant: SerialPlant) -> None:
        drive(plant, 5)
        time.sleep(1.5 * WATCHDOG_S)
        assert wait_for_zero(board) <= WATCHDOG_S + SLACK_S
        with pytest.raises(PlantError, match="watchdog has cut the motor"):
            plant.read()
        plant.write(1.0)
        time.sleep(0.05)
        assert board.cart.voltage == 0.0

    def test_close_says_so_when_zero_is_not_confirmed(self, board: VirtualSerialBoard) -> None:
        plant = SerialPlant(connection(board.port))
        plant.open()
        drive(plant, 5)
        board.hang()
        with pytest.raises(PlantError, match="did not confirm zero volts"):
            plant.close()
        assert wait_for_zero(board) <= WATCHDOG_S + SLACK_S
        plant.close()

    def test_a_full_buffer_does_not_block(self, board: VirtualSerialBoard, plant: SerialPlant) -> None:
        drive(plant, 5)
        board.hang()
        begin_s = time.perf_counter()
        with pytest.raises(PlantError, match="connection broke"):
            any(plant.write(1.0) == 0.0 for _ in range(10_000))
        assert time.perf_counter() - begin_s < 4.0
        assert wait_for_zero(board) <= WATCHDOG_S + SLACK_S


DRIVE_FOR_EVER = """
import sys, time
from nopg_robot.plants.serial_board import SerialPlant
from nopg_robot.rig.sections import SerialConnection
connection = SerialConnection(plant="serial", port=sys.argv[1], read_timeout_s=1.0, watchdog_s=float(sys.argv[2]))
with SerialPlant(connection) as plant:
    for cycle in range(10**9):
        plant.read()
        plant.write(1.0 + 0.1 * (cycle % 2))
        time.sleep(0.002)
"""


class TestItsWatchdog:
    """Seen at work before the motor is driven."""

    def test_it_acts(self, plant: SerialPlant, board: VirtualSerialBoard) -> None:
        assert plant.test_watchdog()
        # A voltage that moves nothing, until the board took it away by itself.
        (first_s, volt), (zero_s, zero) = board.applied_voltages
        assert (volt, zero) == (0.1, 0.0)
        assert WATCHDOG_S <= zero_s - first_s < WATCHDOG_S + SLACK_S
        drive(plant, 3)
        assert board.cart.voltage != 0.0

    @pytest.mark.parametrize("fault", ["watchdog_is_broken", "poll_feeds"])
    def test_one_that_does_not_act(self, plant: SerialPlant, board: VirtualSerialBoard, fault: str) -> None:
        setattr(board.firmware, fault, True)
        with pytest.raises(PlantError, match=r"watchdog did not act: 0\.1 V on the motor after 0\.52 s"):
            plant.test_watchdog()
        board.firmware.watchdog_is_broken = False

    @pytest.mark.parametrize("asked_s", [0.1, 0.25])
    @pytest.mark.parametrize("poll_feeds", [True, False])
    def test_by_the_time_that_the_board_took(
        self, board: VirtualSerialBoard, asked_s: float, poll_feeds: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By what was asked for, a board that takes less and is fed by POLL would have acted in the end."""
        monkeypatch.setattr(serial_board, "LONGEST_WATCHDOG_MS", 60)
        with SerialPlant(connection(board.port, watchdog_s=asked_s)) as plant:
            board.firmware.poll_feeds = poll_feeds
            if poll_feeds:
                with pytest.raises(PlantError, match=r"watchdog did not act: 0\.1 V on the motor after 0\.078 s"):
                    plant.test_watchdog()
            else:
                assert plant.test_watchdog()

    def test_a_board_that_holds_zero_volts_for_its_own_reasons(self, plant: SerialPlant, board: VirtualSerialBoard) -> None:
        board.firmware.fault = True
        with pytest.raises(PlantError, match="emergency stop"):
            plant.test_watchdog()


class TestProcesses:
    def test_kill_9_of_the_driving_process(self, board: VirtualSerialBoard) -> None:
        process = subprocess.Popen([sys.executable, "-c", DRIVE_FOR_EVER, board.port, str(WATCHDOG_S)])
        try:
            deadline_s = time.perf_counter() + 30.0
            while len(board.applied_voltages) < 20:
                assert process.poll() is None
                assert time.perf_counter() < deadline_s
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert wait_for_zero(board) <= WATCHDOG_S + SLACK_S
        # The next run finds a board that is none the worse for it.
        with SerialPlant(connection(board.port, watchdog_s=1.0)) as plant:
            drive(plant, 5)

    @pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
    def test_a_board_in_another_process(self, end: signal.Signals, tmp_path: Path) -> None:
        link = tmp_path / "board"
        process = subprocess.Popen(
            [sys.executable, "-m", "nopg_robot.virtual", "serial", "--link", str(link)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while "nopg-deploy" not in lines[-1]:
                assert process.poll() is None
                lines.append(process.stdout.readline())
            shipped = yaml.safe_load(RigFile.load("serial_board").to_yaml())
            rig = RigFile.from_dict({**shipped, **yaml.safe_load("".join(lines[1:-1]))})
            assert isinstance(rig.connection, SerialConnection)
            assert (rig.connection.port, rig.timing) == (str(link), RigFile.load("simulated").timing)
            assert (rig.connection.read_timeout_s, rig.connection.watchdog_s, rig.limits.stale_s) == (0.1, 0.25, 0.25)
            with SerialPlant(connection(str(link), read_timeout_s=1.0, watchdog_s=1.0)) as plant:
                drive(plant, 50)
                assert plant.read().cart > 10
        finally:
            process.send_signal(end)
            process.communicate(timeout=10.0)
        assert process.returncode == 0
        assert not link.is_symlink()


class TestLink:
    def test_replaces_a_link_that_was_left_behind(self, tmp_path: Path) -> None:
        link = tmp_path / "board"
        link.symlink_to("/nowhere")
        with VirtualSerialBoard(str(link)) as board:
            assert os.readlink(link) == board.port
            board.unplug()
            assert not link.is_symlink()

    def test_does_not_replace_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "thesis.txt"
        file.write_text("years of work")
        with pytest.raises(FileExistsError, match="link"):
            VirtualSerialBoard(str(file))
        assert file.read_text() == "years of work"
