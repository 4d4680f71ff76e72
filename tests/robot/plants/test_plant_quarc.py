"""The QUARC bridge: the driver against bytes that a test sends, and against the virtual model with its faults."""

import contextlib
import math
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import yaml

from nopg_envs.cartpole.simulator import filter_coefficients
from nopg_robot.plants.quarc import QuarcPlant
from nopg_robot.rig.errors import PlantError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import QuarcConnection
from nopg_robot.virtual.__main__ import main
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

pytestmark = pytest.mark.real_time

COUNT_M = 22.7485e-6
# A busy computer may wake a thread late; nothing here is about how late.
PATIENCE_S = 2.0


def connection(port: int, **changes) -> QuarcConnection:
    given = {"connect_timeout_s": 2.0, "read_timeout_s": 0.5, "watchdog_s": None, **changes}
    return QuarcConnection(plant="quarc", host="127.0.0.1", port=port, **given)


def packet(*doubles: float) -> bytes:
    return struct.pack(f">{len(doubles)}d", *doubles)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline_s, "did not happen"
        time.sleep(0.001)


@contextlib.contextmanager
def scripted(stale: bytes = b"", **changes) -> Iterator[tuple[QuarcPlant, socket.socket]]:
    """
    An open plant and the other end of its connection, with nothing under way between them.

    :param stale: sent as soon as somebody connects
    """
    doubles = changes.get("doubles", 2)
    opened = threading.Event()
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            ends.append(listener.accept()[0])
            ends[0].sendall(stale)
            while not opened.is_set():
                ends[0].sendall(packet(*[1.0] * doubles))
                opened.wait(0.005)
            ends[0].sendall(packet(*[1.0] * doubles))

        thread = threading.Thread(target=greet)
        thread.start()
        plant = QuarcPlant(connection(listener.getsockname()[1], **changes))
        try:
            plant.open()
            opened.set()
            thread.join()
            assert plant.read().cart == 1.0
            yield plant, ends[0]
        finally:
            opened.set()
            thread.join()
            for end in ends:
                end.close()
            with contextlib.suppress(PlantError):
                plant.close()


def received(end: socket.socket) -> list[float]:
    """Voltages until the client says no more."""
    end.settimeout(PATIENCE_S)
    data = b""
    while chunk := end.recv(4096):
        data += chunk
    assert len(data) % 8 == 0
    return [volt for (volt,) in struct.iter_unpack(">d", data)]


# --- Reading, byte by byte ------------------------------------------------------------------------------------------------


def test_two_doubles_are_positions():
    with scripted() as (plant, end):
        before_s = plant.clock.now_s()
        end.sendall(packet(0.125, -3.5))
        reading = plant.read()
        assert (reading.cart, reading.pole, reading.velocities) == (0.125, -3.5, None)
        assert before_s <= reading.time_s <= plant.clock.now_s()


def test_four_doubles_bring_velocities():
    with scripted(doubles=4) as (plant, end):
        end.sendall(packet(0.125, -3.5, 0.5, 1e-310))
        reading = plant.read()
        assert (reading.cart, reading.pole, reading.velocities) == (0.125, -3.5, (0.5, 1e-310))


def test_the_newest_complete_packet_counts_and_half_a_one_stays():
    with scripted() as (plant, end):
        third = packet(0.3, 3.0)
        end.sendall(packet(0.1, 1.0) + packet(0.2, 2.0) + third[:5])
        assert plant.read().cart == 0.2
        end.sendall(third[5:])
        assert plant.read().cart == 0.3


def test_more_than_one_chunk_waits():
    with scripted() as (plant, end):
        end.sendall(b"".join(packet(float(number), 0.0) for number in range(1, 9001)))
        assert plant.read().cart == 9000.0


def test_packets_in_single_bytes():
    with scripted() as (plant, end):

        def trickle() -> None:
            for number in range(1, 6):
                for byte in packet(float(number), -0.5):
                    end.sendall(bytes([byte]))
                    time.sleep(0.0005)

        thread = threading.Thread(target=trickle)
        thread.start()
        seen = []
        while not seen or seen[-1].cart != 5.0:
            seen.append(plant.read())
        thread.join()
        assert {reading.pole for reading in seen} == {-0.5}
        assert [reading.cart for reading in seen] == sorted(reading.cart for reading in seen)


def test_what_was_sent_before_somebody_listened_is_discarded():
    with scripted(stale=packet(9.0, 9.0) * 5000) as (plant, end):
        # scripted() has read a fresh one.
        end.sendall(packet(2.0, 2.0))
        assert plant.read().cart == 2.0


# --- Reading what is wrong ------------------------------------------------------------------------------------------------


def test_silence_is_an_error_after_the_timeout():
    with scripted(read_timeout_s=0.05) as (plant, _):
        begin_s = time.monotonic()
        with pytest.raises(PlantError, match=r"127\.0\.0\.1:\d+ sent no sample for 0\.05 s: has the QUARC model stopped"):
            plant.read()
        assert 0.05 <= time.monotonic() - begin_s < PATIENCE_S


def test_half_a_packet_is_an_error_after_the_timeout():
    with scripted(read_timeout_s=0.05) as (plant, end):
        end.sendall(packet(0.1, 0.2)[:11])
        with pytest.raises(PlantError, match="only 11 bytes of one"):
            plant.read()


def test_bytes_that_never_make_a_packet_do_not_extend_the_timeout():
    with scripted(doubles=4, read_timeout_s=0.1) as (plant, end):
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(0.02):
                end.sendall(b"\0")

        thread = threading.Thread(target=trickle)
        thread.start()
        begin_s = time.monotonic()
        with pytest.raises(PlantError, match="bytes of one"):
            plant.read()
        # All 32 bytes would take 0.64 s.
        assert time.monotonic() - begin_s < 0.5
        over.set()
        thread.join()


def test_an_orderly_end_of_the_connection():
    with scripted() as (plant, end):
        end.shutdown(socket.SHUT_WR)
        with pytest.raises(PlantError, match="closed the connection"):
            plant.read()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e12, 1e-200])
@pytest.mark.parametrize("place", [0, 1])
def test_numbers_that_are_no_positions(value: float, place: int):
    with scripted() as (plant, end):
        doubles = [0.1, 0.2]
        doubles[place] = value
        # Not even if better ones follow.
        end.sendall(packet(*doubles) + packet(0.1, 0.2))
        with pytest.raises(PlantError, match=r"the stream is out of step: does the model send 2 or 4 doubles\?"):
            plant.read()


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_numbers_that_are_no_velocities(value: float):
    with scripted(doubles=4) as (plant, end):
        end.sendall(packet(0.1, 0.2, 0.0, value))
        with pytest.raises(PlantError, match="out of step"):
            plant.read()


def test_a_stream_that_lost_some_bytes():
    with scripted() as (plant, end):
        end.sendall(b"".join(packet(number * COUNT_M, number / 300.0) for number in range(1, 100))[3:])
        with pytest.raises(PlantError, match="out of step"):
            plant.read()


# --- Connecting -----------------------------------------------------------------------------------------------------------


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    plant = QuarcPlant(connection(port))
    with pytest.raises(PlantError, match=rf"127\.0\.0\.1:{port} refuses the connection: is the QUARC model running"):
        plant.open()
    plant.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (socket.gaierror("unknown"), "no computer of this name"),
        (UnicodeError("label too long"), "no computer of this name"),
        (TimeoutError("timed out"), r"does not answer within 2 s: check connection\.host"),
        (OSError("no route"), r"cannot be reached \(no route\)"),
    ],
)
def test_why_there_is_no_connection(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str):
    def fail(address, timeout):
        assert (address, timeout) == (("127.0.0.1", 9095), 2.0)
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(PlantError, match=rf"127\.0\.0\.1:9095.*{message}"), QuarcPlant(connection(9095)):
        pass


def test_somebody_listens_and_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plant = QuarcPlant(connection(listener.getsockname()[1], connect_timeout_s=0.1))
        with pytest.raises(PlantError, match=r"sent no sample for 0\.1 s"):
            plant.open()
        # The failed attempt left nothing open.
        with pytest.raises(PlantError, match="not connected"):
            plant.read()
        end, _ = listener.accept()
        assert received(end) == [0.0, 0.0]
        end.close()


def test_use_before_open_and_opening_twice():
    plant = QuarcPlant(connection(9095))
    for use in (plant.read, lambda: plant.write(0.0)):
        with pytest.raises(PlantError, match="not connected: call open"):
            use()
    plant.close()
    with scripted() as (plant, _), pytest.raises(PlantError, match="open already"):
        plant.open()


# --- Writing and closing --------------------------------------------------------------------------------------------------


def test_commands_are_single_doubles_and_the_last_is_zero():
    with scripted() as (plant, end):
        assert plant.write(2.5) == 2.5
        assert plant.write(-1.25) == -1.25
        # The goodbye waits for the other side: here it answers nothing.
        plant.close()
        plant.close()
        assert received(end) == [0.0, 2.5, -1.25, 0.0]


def test_samples_that_nobody_read_do_not_reset_the_connection_under_the_last_command():
    with scripted() as (plant, end):
        plant.write(2.5)
        end.sendall(packet(0.1, 0.2) * 100)
        plant.close()
        # A reset would be an error here.
        assert received(end) == [0.0, 2.5, 0.0]


@pytest.mark.parametrize("volt", [math.nan, math.inf])
def test_what_is_no_voltage_is_not_sent(volt: float):
    with scripted() as (plant, end):
        with pytest.raises(PlantError, match="not a voltage; nothing was sent"):
            plant.write(volt)
        plant.close()
        assert received(end) == [0.0, 0.0]


def test_a_model_that_takes_no_commands():
    with scripted(read_timeout_s=0.05) as (plant, _):
        with contextlib.suppress(BlockingIOError):
            while True:
                plant._socket.send(packet(1.0) * 8192)
        with pytest.raises(PlantError, match="takes no commands"):
            plant.write(1.0)
        begin_s = time.monotonic()
        # The operator must know, and closing does not wait for long.
        with pytest.raises(PlantError, match="switch the amplifier off"):
            plant.close()
        assert time.monotonic() - begin_s < PATIENCE_S


class StingySocket:
    """Takes a few bytes now and then."""

    def __init__(self, link: socket.socket, portions: list[int]):
        self._link, self._portions = link, portions

    def __getattr__(self, name: str):
        return getattr(self._link, name)

    def send(self, data: bytes) -> int:
        portion = self._portions.pop(0) if self._portions else len(data)
        if portion == 0:
            raise BlockingIOError
        return self._link.send(data[:portion])


def test_commands_in_pieces_stay_in_step():
    with scripted(read_timeout_s=0.02) as (plant, end):
        # First one arrives in two pieces; of the second 3 bytes, then nothing till long after the timeout.
        plant._socket = StingySocket(plant._socket, [5, 0, 3, 3, *[0] * 10**6])
        plant.write(1.5)
        with pytest.raises(PlantError, match="takes no commands"):
            plant.write(2.5)
        with pytest.raises(PlantError, match="nothing but zero volts"):
            plant.write(3.5)
        with pytest.raises(PlantError, match="takes no commands"):
            plant.write(0.0)
        plant._socket._portions.clear()
        with pytest.raises(PlantError, match="over the old connection and nobody confirmed them"):
            plant.close()
        # 2.5 was begun and must be finished; 3.5 was not, and is out of date.
        assert received(end) == [0.0, 1.5, 2.5, 0.0]


def test_writing_to_a_broken_connection():
    with scripted() as (plant, end):
        end.close()

        def write_on() -> None:
            for _ in range(1000):
                plant.write(1.0)
                time.sleep(0.001)

        with pytest.raises(PlantError, match=r"connection to .* broke"):
            write_on()


@pytest.mark.parametrize("known", [False, True])
def test_zero_volts_that_cannot_be_sent_are_an_error_that_says_what_to_do(known: bool):
    with VirtualQuarcServer() as server:
        plant = QuarcPlant(connection(server.address[1]))
        plant.open()
        server.drop()
        server.close()
        if known:
            fail_to_read(plant, "broke|closed")
        with pytest.raises(PlantError, match=r"zero volts could not be sent .*refuses.*: switch the amplifier off"):
            plant.close()
        plant.close()


@pytest.mark.parametrize("how", ["close", "write"])
def test_over_a_broken_connection_zero_volts_are_sent_anew(how: str):
    with VirtualQuarcServer(watchdog_s=None) as server:
        plant = QuarcPlant(connection(server.address[1]))
        plant.open()
        drive(plant, server, 3.0)
        server.drop()
        fail_to_read(plant, "broke|closed")
        # Without a watchdog a lost client leaves its voltage behind.
        assert server.cart.voltage == 3.0
        if how == "write":
            assert plant.write(0.0) == 0.0
            wait_until(lambda: server.cart.voltage == 0.0)
            with pytest.raises(PlantError, match="nothing but zero volts"):
                plant.write(1.0)
        with pytest.raises(
            PlantError, match=r"over a new connection and the model hung up in order: .*switch the amplifier off"
        ):
            plant.close()
        wait_until(lambda: server.cart.voltage == 0.0)


def test_to_connect_anew_no_name_is_looked_up(monkeypatch: pytest.MonkeyPatch):
    """With the network down that may take for ever, under the lock that everybody needs who writes zero volts."""
    look_up = socket.getaddrinfo
    asked: list[str] = []

    def remember(host, *arguments, **options):
        asked.append(host)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", remember)
    with VirtualQuarcServer(watchdog_s=None) as server:
        port = server.address[1]
        plant = QuarcPlant(connection(port).model_copy(update={"host": "localhost"}))
        plant.open()
        # The guard process has the same address.
        assert plant.lifeline().address == ("127.0.0.1", port)
        server.drop()
        fail_to_read(plant, "broke|closed")
        with pytest.raises(PlantError, match="new connection"):
            plant.close()
        assert asked == ["localhost", "127.0.0.1"]
        # Another run may find the computer elsewhere.
        plant.open()
        assert asked[-1] == "localhost"
        plant.close()


# --- The virtual model ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def virtual(changes: dict | None = None, **server_arguments) -> Iterator[tuple[QuarcPlant, VirtualQuarcServer]]:
    with VirtualQuarcServer(**server_arguments) as server:
        doubles = server_arguments.get("doubles", 2)
        with QuarcPlant(connection(server.address[1], doubles=doubles, **(changes or {}))) as plant:
            yield plant, server


def drive(plant: QuarcPlant, server: VirtualQuarcServer, volt: float) -> None:
    """Until the motor has it."""
    plant.write(volt)
    wait_until(lambda: server.cart.voltage == volt)


def test_the_virtual_model_moves_its_cart():
    with virtual(watchdog_s=None) as (plant, server):
        first = plant.read()
        # It creeps, and the pole hangs.
        assert abs(first.cart) < 0.01
        assert abs(first.pole) < 0.01
        drive(plant, server, 4.0)
        wait_until(lambda: plant.read().cart > 0.05)
        assert server.applied_voltages[-1][1] == 4.0
        assert server.cart.state[0] > 0.1
        drive(plant, server, 0.0)
    assert server.cart.voltage == 0.0


def test_the_virtual_model_sends_filtered_velocities():
    cart = SimulatedCart(start=(0.0, math.pi, 0.5, 3.0), operator=False)
    with VirtualQuarcServer(cart, doubles=4) as server, socket.create_connection(server.address) as client:
        stream = b""
        while len(stream) < 200 * 32:
            stream += client.recv(4096)
    samples = np.frombuffer(stream[: 200 * 32], ">f8").reshape(200, 4)
    keep, gain = filter_coefficients(50.0, 1.0 / 500.0)
    expected = keep * samples[:-1, 2:] + gain * np.diff(samples[:, :2], axis=0)
    np.testing.assert_allclose(samples[1:, 2:], expected, atol=1e-9)
    assert np.ptp(samples[:, 3]) > 1.0


def test_faults_of_the_cart_reach_the_client():
    with virtual() as (plant, server):
        server.cart.frozen_pole = True
        server.cart.count_jump = 5000
        wait_until(lambda: plant.read().cart > 4900 * COUNT_M)


def test_after_a_pause_the_newest_sample_is_read():
    with virtual() as (plant, server):
        time.sleep(0.3)
        server.cart.count_jump = 10_000
        # Twice the model has been through its loop since: behind about 150 old samples one lies that is new.
        server.resume()
        server.resume()
        assert plant.read().cart > 9000 * COUNT_M


def test_a_backlog_sent_in_one_go():
    with virtual() as (plant, server):
        server.mute()
        time.sleep(0.1)
        server.cart.count_jump = 10_000
        server.mute()
        server.mute()
        server.send_backlog()
        assert plant.read().cart > 9000 * COUNT_M
        server.resume()
        assert plant.read().cart > 9000 * COUNT_M


def test_single_bytes_from_the_virtual_model():
    with virtual(rate_hz=100.0) as (plant, server):
        server.trickle()
        for _ in range(5):
            assert abs(plant.read().cart) < 0.01


def fail_to_read(plant: QuarcPlant, message: str) -> None:
    def read_on() -> None:
        for _ in range(10_000):
            plant.read()

    with pytest.raises(PlantError, match=message):
        read_on()


def quiet_within_the_watchdog(server: VirtualQuarcServer, since_s: float, watchdog_s: float) -> None:
    wait_until(lambda: server.cart.voltage == 0.0)
    time_s, volt = server.applied_voltages[-1]
    assert volt == 0.0
    assert time_s - since_s < watchdog_s + 0.25


FAULTS: dict[str, tuple[Callable[[VirtualQuarcServer], None], str]] = {
    "hang": (VirtualQuarcServer.hang, "sent no sample"),
    "mute": (VirtualQuarcServer.mute, "sent no sample"),
    "half a packet": (VirtualQuarcServer.send_half, "only 8 bytes of one"),
    "dropped": (VirtualQuarcServer.drop, "broke|closed"),
    "garbage": (lambda server: server.send_garbage(64), "out of step"),
    "out of step": (lambda server: server.send_garbage(3), "out of step"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_model_end_the_run_at_zero_volts(name: str):
    switch_on, message = FAULTS[name]
    # The cart moves, so that its numbers are not all zeros, which look the same wherever they are cut.
    cart = SimulatedCart(start=(0.0, math.pi, 0.5, 3.0), operator=False)
    with virtual({"read_timeout_s": 0.1}, watchdog_s=0.05, cart=cart) as (plant, server):
        drive(plant, server, 3.0)
        switch_on(server)
        since_s = plant.clock.now_s()
        fail_to_read(plant, message)
        quiet_within_the_watchdog(server, since_s, 0.05)
        if name in ("hang", "dropped"):
            # Nobody, or somebody else, took the zero: the operator must know.
            with pytest.raises(PlantError, match="if the cart moves, switch the amplifier off"):
                plant.close()


def test_a_model_that_dropped_its_client_can_be_connected_to_again():
    with VirtualQuarcServer(watchdog_s=None) as server:
        plant = QuarcPlant(connection(server.address[1]))
        plant.open()
        server.drop()
        fail_to_read(plant, "broke|closed")
        with pytest.raises(PlantError, match="new connection"):
            plant.close()
        with QuarcPlant(connection(server.address[1])) as plant:
            plant.read()
            wait_until(lambda: server.cart.voltage == 0.0)


def test_the_watchdog_of_the_model():
    with virtual(watchdog_s=0.1) as (plant, server):
        drive(plant, server, 2.0)
        commanded_s = server.applied_voltages[-1][0]
        # The client is there and reads, but sends nothing.
        wait_until(lambda: plant.read() is not None and server.cart.voltage == 0.0)
        time_s, _ = server.applied_voltages[-1]
        assert 0.09 < time_s - commanded_s < 0.35
        drive(plant, server, 1.0)


def test_the_model_does_not_wait_for_its_watchdog_when_the_client_is_gone():
    with virtual(watchdog_s=30.0) as (plant, server):
        drive(plant, server, 2.0)
        server.drop()
        fail_to_read(plant, "broke|closed")
        wait_until(lambda: server.cart.voltage == 0.0)
        with pytest.raises(PlantError, match="new connection"):
            plant.close()


def test_without_a_watchdog_a_voltage_stays():
    with virtual(watchdog_s=None) as (plant, server):
        drive(plant, server, 2.0)
        time.sleep(0.1)
        assert server.cart.voltage == 2.0
        # Closing says zero, and says it so that it arrives.
        plant.close()
        wait_until(lambda: server.cart.voltage == 0.0)


def test_a_command_that_is_no_number_stops_the_motor():
    with virtual(watchdog_s=None) as (plant, server):
        drive(plant, server, 2.0)
        plant._socket.send(packet(math.nan))
        wait_until(lambda: server.cart.voltage == 0.0)


CLIENT = """
import sys, time
from nopg_robot.plants.quarc import QuarcPlant
from nopg_robot.rig.sections import QuarcConnection
port = int(sys.argv[1])
plant = QuarcPlant(QuarcConnection(plant="quarc", host="127.0.0.1", port=port, read_timeout_s=2.0, watchdog_s=None))
plant.open()
while True:
    plant.read()
    plant.write(3.0)
"""


def test_a_client_that_is_killed_leaves_zero_volts_by_the_watchdog():
    with VirtualQuarcServer(watchdog_s=0.05) as server:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, str(server.address[1])])
        try:
            deadline_s = time.monotonic() + 20.0
            while server.cart.voltage != 3.0:
                assert time.monotonic() < deadline_s
                time.sleep(0.001)
        finally:
            since_s = time.perf_counter()
            client.kill()
            client.wait()
        quiet_within_the_watchdog(server, since_s, 0.05)


def test_faults_need_a_model_that_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nopg_robot.virtual.tcp.ANSWER_S", 0.01)
    server = VirtualQuarcServer()
    with pytest.raises(RuntimeError, match="with statement"):
        server.hang()
    server.close()


# --- The command ----------------------------------------------------------------------------------------------------------


def begin(*arguments: str) -> tuple[subprocess.Popen, dict]:
    """The command, and the sections of a rig file that it prints."""
    command = [sys.executable, "-m", "nopg_robot.virtual", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("and run: nopg-deploy"):
        lines.append(process.stdout.readline())
        assert lines[-1], "ended early"
    # Between what it says before and after.
    return process, yaml.safe_load("".join(lines[1:-1]))


def assert_as_patient_as_the_simulated_rig(rig: RigFile) -> None:
    """It runs on a desktop, which pauses."""
    assert rig.timing == RigFile.load("simulated").timing
    assert (rig.limits.stale_s, rig.connection.read_timeout_s) == (0.25, 0.1)


def end_by_ctrl_c(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10.0)
    assert process.returncode == 0


def test_the_tcp_command_prints_how_to_connect_and_that_is_true():
    process, sections = begin("tcp", "--port", "0", "--doubles", "4", "--watchdog-s", "none")
    try:
        shipped = yaml.safe_load(RigFile.load("quanser_ip02_quarc").to_yaml())
        rig = RigFile.from_dict({**shipped, **sections})
        assert isinstance(rig.connection, QuarcConnection)
        assert rig.connection.watchdog_s is None
        assert_as_patient_as_the_simulated_rig(rig)
        with QuarcPlant(rig.connection.model_copy(update={"read_timeout_s": 1.0})) as plant:
            assert plant.read().velocities is not None
            plant.write(0.5)
    finally:
        end_by_ctrl_c(process)


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert main(["tcp", "--port", str(listener.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["usb"], ["tcp", "--port", "70000"], ["tcp", "--doubles", "3"], ["tcp", "--watchdog-s", "-1"]]
)
def test_arguments_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_code:
        main(arguments)
    assert exit_code.value.code == 2
    assert "usage:" in capsys.readouterr().err
