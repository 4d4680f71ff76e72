"""How old samples are that do not say so: measured from a push at the start, counted while they stream."""

import math
import re
from typing import Any

import numpy as np
import pytest

from helpers.rigs import balance, changed, fast_rig, metadata
from nopg_robot.control.observation import Observer
from nopg_robot.control.safety import Checks
from nopg_robot.flight.log import read_flight
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig, open_rig
from nopg_robot.plants.sample_clock import LEARN_S, SampleClock
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.errors import PhaseError
from nopg_robot.rig.file import RigFile
from nopg_robot.run import phases
from nopg_robot.run.deployment import RunOptions, deploy, describe
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.latency import PushLatency
from nopg_robot.run.session import Session, run_episode
from nopg_robot.run.stop import StopRequest
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

PERIOD_S = 0.002


class TestPush:
    @pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.2, 1.3])
    @pytest.mark.parametrize("acceleration", [0.5, 1.0, 5.0])
    def test_whatever_the_cart_weighs(self, delay_s: float, acceleration: float) -> None:
        latency = PushLatency(1e-3)
        for cycle in range(1000):
            time_s = 7.0 + PERIOD_S * cycle
            moving_s = max(0.0, time_s - 7.0 - delay_s)
            # Counts of 23 µm, of a cart that creeps before.
            travel_m = acceleration * moving_s**2 / 2.0 + 4e-4 * (time_s - 7.0)
            latency.see(time_s, 23e-6 * round(travel_m / 23e-6))
        assert latency.seconds == pytest.approx(delay_s, abs=0.008)

    def test_one_that_hardly_moves(self) -> None:
        latency = PushLatency(1e-3)
        for cycle in range(100):
            latency.see(PERIOD_S * cycle, 0.9e-3)
        assert latency.seconds is None

    @pytest.mark.slow
    def test_the_identified_cart(self, tmp_path: Any) -> None:
        summary = deploy(balance, metadata(), fast_rig(), tmp_path / "log.npz", RunOptions(seconds=0.1))
        assert summary.outcome == "finished", summary.reason
        # 6 ms of the motor, 2 ms to the next sample.
        assert 0.004 < summary.latency_s < 0.012
        assert read_flight(tmp_path / "log.npz").summary["latency_s"] == summary.latency_s

    @pytest.mark.slow
    def test_a_cart_that_creeps_does_not_tell_and_is_not_flown(self, tmp_path: Any) -> None:
        file = fast_rig()
        plant = SimulatedPlant(file.connection, file.sensors, Creeping(operator=False))
        plant.open()
        recorder = FlightRecorder(tmp_path / "log.npz", describe(file))
        with recorder, Session(Rig(plant, file), recorder, NullDisplay(), StopRequest()) as session:
            phases.wait_for_hanging_pole(session.loop)
            with pytest.raises(PhaseError, match=r"never moved by 1 mm within 150 ms, .*latency cannot be measured"):
                phases.self_test(session.loop)
            recorder.close({})


class Creeping(SimulatedCart):
    """Comes far enough, ever so slowly, the way that it was pushed last."""

    SPEED_M_S = 0.005

    def __init__(self, **options: Any):
        self._way, self._seen_s, self._crept_m = 0.0, 0.0, 0.0
        super().__init__(**options)

    def set_voltage(self, volt: float) -> float:
        self._way = math.copysign(1.0, volt) if volt else self._way
        return volt

    @property
    def counts(self) -> tuple[int, int]:
        self._crept_m += self._way * self.SPEED_M_S * (self.time_s - self._seen_s)
        self._seen_s = self.time_s
        return round(self._crept_m / self.parameters.cart_count_m), 0


class TestStream:
    @pytest.mark.parametrize("first_late_s", [0.0, 0.04])
    def test_a_steady_one_is_fresh(self, first_late_s: float) -> None:
        clock, generator = SampleClock(), np.random.default_rng(0)
        ages_s = []
        for number in range(20_000):
            # Some are read late, the first of all most. The model's clock is wrong by a tenth of a percent.
            received_s = number * PERIOD_S * 1.001 + generator.exponential(0.0005)
            if number < 3:
                received_s += first_late_s
            ages_s.append(received_s - clock.taken_at(number, received_s))
        assert min(ages_s) == 0.0
        assert max(ages_s) < 0.01

    @pytest.mark.parametrize("late_s", [0.006, 0.01, 0.02])
    @pytest.mark.parametrize("until_s", [0.5, 1.2, 2.5, 5.0, 20.0])
    def test_one_that_was_late_at_first_is_fresh(self, until_s: float, late_s: float) -> None:
        """A switch that wakes up, a computer that was busy: from then on samples come sooner, and are not old for it."""
        clock, generator, oldest_s = SampleClock(), np.random.default_rng(0), 0.0
        received_s = 0.0
        while received_s < 120.0:
            received_s += PERIOD_S + generator.exponential(0.0005)
            number = int((received_s - (late_s if received_s < until_s else 0.0)) / PERIOD_S)
            age_s = received_s - clock.taken_at(number, received_s)
            oldest_s = max(oldest_s, age_s)
        assert oldest_s < 0.008

    def test_one_that_is_late_for_less_and_less_is_fresh(self) -> None:
        clock, generator, received_s, oldest_s = SampleClock(), np.random.default_rng(0), 0.0, 0.0
        while received_s < 120.0:
            received_s += PERIOD_S + generator.exponential(0.0005)
            number = int((received_s - 0.02 * math.exp(-received_s)) / PERIOD_S)
            oldest_s = max(oldest_s, received_s - clock.taken_at(number, received_s))
        assert oldest_s < 0.008

    def test_one_that_falls_behind(self) -> None:
        clock, age_s = SampleClock(), 0.0
        for cycle in range(10_000):
            received_s = cycle * PERIOD_S
            # After four seconds one in ten does not arrive in time.
            late = max(0.0, received_s - 4.0) * 0.1
            number = int((received_s - late) / PERIOD_S)
            age_s = received_s - clock.taken_at(number, received_s)
            if received_s < 4.0:
                assert age_s < 0.003
        assert age_s == pytest.approx(1.6, rel=0.1)

    @pytest.mark.parametrize("share", [0.003, 0.004])
    @pytest.mark.parametrize("since_s", [5.0, 15.0])
    def test_one_that_falls_behind_slowly(self, since_s: float, share: float) -> None:
        """After a minute samples would be 0.14 to 0.22 s old. The shipped limit is met long before that."""
        clock, generator, stale_s = SampleClock(), np.random.default_rng(0), RigFile.load("quanser_ip02_quarc").limits.stale_s
        received_s = late_s = age_s = 0.0
        while age_s < stale_s:
            assert received_s < 60.0, f"samples are {late_s:.2f} s old and seem to be {age_s:.2f} s old"
            received_s += PERIOD_S + generator.exponential(0.0005)
            late_s = max(0.0, received_s - since_s) * share
            age_s = received_s - clock.taken_at(int((received_s - late_s) / PERIOD_S), received_s)
        assert 0.9 * stale_s < late_s < 1.75 * stale_s

    @pytest.mark.parametrize("ppm", [-300, 300])
    def test_a_clock_that_differs_from_ours_is_no_age(self, ppm: int) -> None:
        clock, generator = SampleClock(), np.random.default_rng(1)
        received_s, oldest_s = 0.0, 0.0
        while received_s < 120.0:
            # The computer stands still now and then.
            received_s += PERIOD_S + generator.exponential(0.0005) + 0.03 * (generator.random() < 0.001)
            taken_s = clock.taken_at(int(received_s / (PERIOD_S * (1.0 + 1e-6 * ppm))), received_s)
            oldest_s = max(oldest_s, received_s - taken_s)
        assert oldest_s < 0.004

    def test_what_waited_while_the_program_slept_is_not_old(self) -> None:
        clock = SampleClock()
        for number in range(2000):
            clock.taken_at(number, number * PERIOD_S)
        # Half a second later, all at once, and the newest is new.
        assert clock.taken_at(2250, 2250 * PERIOD_S) == pytest.approx(2250 * PERIOD_S)

    def test_times_never_run_backwards(self) -> None:
        clock, generator, before_s = SampleClock(), np.random.default_rng(1), -math.inf
        number, received_s = 0, 0.0
        for _ in range(5000):
            number += int(generator.integers(1, 4))
            received_s += float(generator.exponential(0.004))
            taken_s = clock.taken_at(number, received_s)
            assert before_s <= taken_s <= received_s
            before_s = taken_s


def rig_of(server: VirtualQuarcServer, **sections: dict[str, Any]) -> RigFile:
    patient = {
        "connection": {
            "host": server.address[0],
            "port": server.address[1],
            "read_timeout_s": 0.2,
            "watchdog_s": None,
            "virtual": True,
        },
        "timing": {"miss_s": 1.0, "watchdog_s": 0.5},
        "limits": {"stale_s": 0.25},
        "start": {"still_s": 0.2},
    }
    for section, fields in sections.items():
        patient[section] = {**patient.get(section, {}), **fields}
    return changed(RigFile.load("quanser_ip02_quarc"), **patient)


@pytest.mark.real_time
@pytest.mark.slow
@pytest.mark.parametrize("age_s", [0.2, 1.0])
def test_old_samples_are_refused_before_anything_depends_on_them(age_s: float, tmp_path: Any) -> None:
    """Each is stamped when it arrives: the supervisor takes it for new."""
    with VirtualQuarcServer(SimulatedCart(operator=False)) as server:
        server.delay(age_s)
        file = rig_of(server)
        summary = deploy(balance, metadata(), file, tmp_path / "log.npz", RunOptions(seconds=1.0))
        assert (summary.outcome, summary.phase) == ("failed", "self-test"), summary.reason
        seen = re.search(r"seen to move (\d+) ms after its voltage was sent, limit 50 ms", summary.reason)
        assert seen is not None, summary.reason
        assert float(seen[1]) == pytest.approx(1e3 * age_s, abs=60.0)
        assert server.cart.voltage == 0.0


@pytest.mark.real_time
@pytest.mark.slow
def test_a_stream_that_falls_behind_ends_the_run(tmp_path: Any) -> None:
    """All samples arrive, one after the other, each a little older than the last."""
    with VirtualQuarcServer(SimulatedCart(operator=False)) as server:
        file = rig_of(server)
        recorder = FlightRecorder(tmp_path / "log.npz", describe(file))
        with recorder, Session(open_rig(file), recorder, NullDisplay(), StopRequest()) as session:
            phases.wait_for_hanging_pole(session.loop)
            session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
            session.loop.drive(lambda state: 0.0, lambda state, time_s: time_s > LEARN_S + 0.3, 10.0)
            server.slow_down(0.2)
            episode = run_episode(session, lambda observation: 0.0, Observer(), seconds=5.0)
        assert episode.fault is not None
        assert episode.fault.reason.value == "stale"
        # As old as the limit allows, not as old as they are after five seconds.
        assert server._behind * PERIOD_S < 0.25 + 0.15
