"""The flight recorder: what is on disk whatever happens to the program, the disk or the file."""

import errno
import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace

import numpy as np
import pytest

from helpers.flight_samples import RAIL, SAMPLE, numbered
from helpers.repository import environment
from nopg_robot.flight import recorder as flight_recorder
from nopg_robot.flight.journal import COLUMNS, journal_path, pack_header, read_journal
from nopg_robot.flight.log import EpisodeEnd, FlightLogError, LoggedIntervention, read_flight
from nopg_robot.flight.recorder import FlightRecorder, Sample, seal_journal
from nopg_robot.rig.errors import RecorderError


def wait_until(condition):
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def flushed(recorder):
    """Wait until the recorder's thread has written everything."""
    journal = journal_path(recorder.path)
    last = recorder._flushed_s
    wait_until(lambda: recorder._flushed_s > last and not recorder._pending)
    return journal.read_bytes()


def test_columns_are_the_fields_of_a_sample():
    assert [column.name for column in COLUMNS] == [field.name for field in fields(Sample)]


def test_everything_comes_back(tmp_path):
    path = tmp_path / "new" / "folder" / "run.npz"
    with FlightRecorder(path, {"rig": "name: me\n", "policy": {"digest": "abc", "low": np.array([1.0, 2.0])}}) as recorder:
        recorder.record(SAMPLE)
        recorder.note(RAIL)
        recorder.record(replace(SAMPLE, phase="self-test", acted=False))
        recorder.end_episode(3, "rail", True)
        recorder.close({"outcome": "stopped", "late_ms": np.float64(0.5)})
    log = read_flight(path)
    for field in fields(Sample):
        np.testing.assert_array_equal(getattr(log, field.name)[0], getattr(SAMPLE, field.name))
    assert log.phase.tolist() == ["run", "self-test"]
    assert log.acted.tolist() == [True, False]
    assert log.interventions == (LoggedIntervention("rail", RAIL.message, 12.6),)
    assert log.episode_ends == (EpisodeEnd(3, "rail", True),)
    assert log.summary == {"outcome": "stopped", "late_ms": 0.5}
    assert log.complete
    assert log.path == path
    assert log.header["rig"] == "name: me\n"
    assert log.header["policy"] == {"digest": "abc", "low": [1.0, 2.0]}
    assert {column["name"]: column["unit"] for column in log.header["columns"]}["theta_dot"] == "rad/s"
    assert log.header["started_utc"].endswith("+00:00")
    assert log.header["command_line"] == sys.argv
    assert log.header["versions"]["numpy"] == np.__version__
    # Sealed: no journal, no temporary file, no pickle.
    assert os.listdir(path.parent) == ["run.npz"]
    with np.load(path, allow_pickle=False) as content:
        assert all(content[name].dtype.kind != "O" for name in content.files)


def test_samples_that_numpy_made_are_recorded(tmp_path):
    path = tmp_path / "run.npz"
    with FlightRecorder(path, {}) as recorder:
        recorder.record(replace(SAMPLE, asked_volt=np.float32(1.5), acted=np.bool_(True), episode=np.int64(7)))
    assert (read_flight(path).asked_volt[0], read_flight(path).episode[0]) == (1.5, 7)


def test_file_is_written_while_the_run_goes_on(tmp_path):
    path = tmp_path / "run.npz"
    with FlightRecorder(path, {"rig": "r"}) as recorder:
        # The header is there before anything happens.
        assert read_flight(path).header["rig"] == "r"
        for sample in numbered(50):
            recorder.record(sample)
        flushed(recorder)
        log = read_flight(path)
        assert len(log) == 50
        assert not log.complete
        assert log.path == journal_path(path)
        assert not path.exists()


_KILLED = """
import sys
from dataclasses import replace
from helpers.flight_samples import RAIL, SAMPLE
from nopg_robot.flight.recorder import FlightRecorder
recorder = FlightRecorder({path!r}, {{"rig": "r"}})
recorder.note(RAIL)
number = 0
while True:
    recorder.record(replace(SAMPLE, time_s=float(number)))
    number += 1
    if number % 100 == 0:
        sys.stdout.write(f"{{number}}\\n")
        sys.stdout.flush()
        import time; time.sleep(0.01)
"""


@pytest.mark.slow
def test_kill_leaves_a_log_that_is_readable_up_to_the_last_flush(tmp_path):
    path = tmp_path / "run.npz"
    script = _KILLED.format(path=str(path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout.readline() == "100\n"
        journal = journal_path(path)
        begin = journal.stat().st_size
        wait_until(lambda: journal.stat().st_size > begin)
        process.kill()
    log = read_flight(path)
    assert not log.complete
    assert log.summary is None
    assert log.interventions[0].reason == "rail"
    assert len(log) >= 100
    # Nothing is missing in between.
    np.testing.assert_array_equal(log.time_s, np.arange(len(log)))
    with pytest.raises(RecorderError, match="did not end in order"):
        FlightRecorder(path, {})
    seal_journal(path)
    assert len(read_flight(path)) == len(log)
    assert not read_flight(path).complete
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.fixture(scope="module")
def journal_bytes(tmp_path_factory):
    """A journal of 5 samples, an intervention and 1 sample."""
    recorder = FlightRecorder(tmp_path_factory.mktemp("journal") / "run.npz", {"rig": "r"})
    for sample in numbered(5):
        recorder.record(sample)
    recorder.note(RAIL)
    recorder.record(numbered(6)[-1])
    content = flushed(recorder)
    recorder.close({})
    return content


@pytest.mark.slow
def test_journal_cut_at_any_byte_is_read_up_to_its_last_whole_record(tmp_path, journal_bytes):
    path = tmp_path / "run.npz.journal"
    path.write_bytes(journal_bytes)
    header = len(pack_header(read_journal(path).header))
    for length in {*range(0, header, 50), *range(20), header - 1}:
        path.write_bytes(journal_bytes[:length])
        with pytest.raises(FlightLogError, match="within its header"):
            read_flight(path)
    seen = []
    for length in range(header, len(journal_bytes) + 1):
        path.write_bytes(journal_bytes[:length])
        log = read_flight(path)
        found = (len(log), len(log.interventions))
        np.testing.assert_array_equal(log.x, 1e-3 * np.arange(len(log)))
        # Bytes are left over exactly where no record has just ended.
        assert (log.unread_bytes > 0) == (found in seen)
        seen = seen if found in seen else [*seen, found]
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (5, 1), (6, 1)]


@pytest.mark.slow
def test_journal_with_one_wrong_bit_is_read_up_to_it(tmp_path, journal_bytes):
    path = tmp_path / "run.npz.journal"
    path.write_bytes(journal_bytes)
    whole = read_journal(path)
    header = len(pack_header(whole.header))
    for position in range(header, len(journal_bytes), 2):
        spoilt = bytearray(journal_bytes)
        spoilt[position] ^= 1 << position % 8
        path.write_bytes(spoilt)
        log = read_flight(path)
        np.testing.assert_array_equal(log.x, 1e-3 * np.arange(len(log)))
        assert len(log) < 6
        assert log.unread_bytes >= len(journal_bytes) - position


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"something else entirely", "not the journal"),
        (b"NOPGLOG\n\x63\x00\x00\x00\x00\x00", "version 99"),
        (pack_header({"columns": []})[:-1] + b"\x00", "header is damaged"),
    ],
)
def test_files_that_are_no_journals_are_refused(tmp_path, content, message):
    path = tmp_path / "run.npz.journal"
    path.write_bytes(content)
    with pytest.raises(FlightLogError, match=message) as error:
        read_flight(path)
    assert str(path) in str(error.value)


@pytest.mark.slow
def test_full_disk_is_told_at_the_next_call_and_loses_nothing_that_was_flushed(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    recorder = FlightRecorder(path, {})
    for sample in numbered(10):
        recorder.record(sample)
    flushed(recorder)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(flight_recorder.os, "fsync", full)
        recorder.record(SAMPLE)
        wait_until(lambda: recorder._error is not None)
    for call in (lambda: recorder.record(SAMPLE), lambda: recorder.note(RAIL), lambda: recorder.end_episode(0, "", False)):
        with pytest.raises(RecorderError, match=r"run\.npz\.journal: writing failed.*No space left"):
            call()
    with pytest.raises(RecorderError, match=r"No space left.*readable there"):
        recorder.close({"outcome": "lost"})
    assert not path.exists()
    log = read_flight(path)
    np.testing.assert_array_equal(log.x[:10], 1e-3 * np.arange(10))
    assert not log.complete


_LIMITED = """
import resource, sys, time
from helpers.flight_samples import numbered
from nopg_robot.rig.errors import RecorderError
from nopg_robot.flight.recorder import FlightRecorder
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    with FlightRecorder({path!r}, {{}}) as recorder:
        for sample in numbered(10000):
            recorder.record(sample)
            time.sleep(0.0005)
except RecorderError as error:
    sys.stdout.write(str(error))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="file sizes are limited by POSIX systems only")
def test_write_that_is_really_cut_short_leaves_whole_records(tmp_path):
    path = tmp_path / "run.npz"
    script = _LIMITED.format(path=str(path))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment())
    assert "File too large" in result.stdout
    log = read_flight(path)
    # The operating system took a part of the last write; whole records of it count.
    assert journal_path(path).stat().st_size == 20000
    assert 0 < log.unread_bytes < 150
    assert len(log) > 100
    np.testing.assert_array_equal(log.x, 1e-3 * np.arange(len(log)))


def test_write_that_takes_a_part_goes_on_with_the_rest(tmp_path):
    class Reluctant(io.FileIO):
        def write(self, content):
            return super().write(content[:7])

    with Reluctant(tmp_path / "file", "wb") as stream:
        flight_recorder._write(stream, bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_journal_that_somebody_deletes_is_noticed(tmp_path):
    recorder = FlightRecorder(tmp_path / "run.npz", {})
    journal_path(recorder.path).unlink()
    recorder.record(SAMPLE)
    wait_until(lambda: recorder._error is not None)
    with pytest.raises(RecorderError, match="No such file"):
        recorder.record(SAMPLE)
    with pytest.raises(RecorderError, match="No such file"):
        recorder.close({})


@pytest.mark.slow
def test_disk_that_hangs_is_told_instead_of_filling_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_recorder, "LONGEST_STALL_S", 0.3)
    answers = threading.Event()
    recorder = FlightRecorder(tmp_path / "run.npz", {})
    with monkeypatch.context() as patch:
        patch.setattr(flight_recorder.os, "fsync", lambda descriptor: answers.wait(30.0))
        recorder.record(SAMPLE)
        time.sleep(0.8)
        with pytest.raises(RecorderError, match=r"not taken anything for 0\.3 s"):
            recorder.record(SAMPLE)
        with pytest.raises(RecorderError, match="does not answer"):
            recorder.close({})
        answers.set()
        recorder._thread.join(10.0)
    recorder._stream.close()


def test_sealing_that_fails_leaves_the_journal_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    recorder = FlightRecorder(path, {})
    recorder.record(SAMPLE)

    def full(stream, **arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(flight_recorder.np, "savez_compressed", full)
        with pytest.raises(RecorderError, match=r"could not be sealed.*No space.*run\.npz\.journal"):
            recorder.close({"outcome": "finished"})
    assert os.listdir(tmp_path) == ["run.npz.journal"]
    # The run itself was recorded to its end.
    assert read_flight(path).summary == {"outcome": "finished"}
    seal_journal(path)
    assert read_flight(path).complete
    assert os.listdir(tmp_path) == ["run.npz"]


def test_damaged_journal_is_kept_beside_its_sealed_part(tmp_path, journal_bytes, caplog):
    journal = tmp_path / "run.npz.journal"
    journal.write_bytes(journal_bytes[:-1])
    seal_journal(tmp_path / "run.npz")
    assert len(read_flight(tmp_path / "run.npz")) == 5
    assert journal.exists()
    assert "damaged" in caplog.text


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "run.npz"
    path.write_text("precious")
    with pytest.raises(RecorderError, match="choose another name"):
        FlightRecorder(path, {})
    assert path.read_text() == "precious"
    other = FlightRecorder(tmp_path / "other.npz", {})
    # Somebody puts a file there during the run.
    other.path.write_text("precious")
    with pytest.raises(RecorderError, match="such a file already"):
        other.close({})
    assert other.path.read_text() == "precious"
    assert journal_path(other.path).exists()


def test_bad_beginnings(tmp_path):
    (tmp_path / "file").write_text("")
    for path, header, message in (
        (tmp_path / "run.log", {}, r"must end in \.npz"),
        (tmp_path / "file" / "run.npz", {}, "cannot be begun"),
        (tmp_path / "run.npz", {(1, 2): 3}, "cannot be begun"),
    ):
        with pytest.raises(RecorderError, match=message):
            FlightRecorder(path, header)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("phase", ["", "a phase with a long name", "zurück"])
def test_phases_that_cannot_be_written_are_named(tmp_path, phase):
    with FlightRecorder(tmp_path / "run.npz", {}) as recorder:
        with pytest.raises(RecorderError, match="phase: must be 1 to 16"):
            recorder.record(replace(SAMPLE, phase=phase))
        with pytest.raises(RecorderError, match="cannot be written"):
            recorder.record(replace(SAMPLE, x=None))
        recorder.record(SAMPLE)
    assert len(read_flight(recorder.path)) == 1


def test_closed_recorder_takes_nothing_more_and_closes_again(tmp_path):
    recorder = FlightRecorder(tmp_path / "run.npz", {})
    recorder.close({"outcome": "first"})
    recorder.close({"outcome": "second"})
    with pytest.raises(RecorderError, match="closed"):
        recorder.record(SAMPLE)
    assert read_flight(recorder.path).summary == {"outcome": "first"}


def test_exception_is_kept_and_written_down(tmp_path):
    with pytest.raises(KeyError), FlightRecorder(tmp_path / "run.npz", {}):
        raise KeyError("wire")
    assert read_flight(tmp_path / "run.npz").summary == {"error": "KeyError: 'wire'"}


def test_exception_is_not_hidden_by_a_recorder_that_fails_too(tmp_path, caplog):
    recorder = FlightRecorder(tmp_path / "run.npz", {})
    journal_path(recorder.path).unlink()
    with pytest.raises(KeyError), recorder:
        raise KeyError("wire")
    assert "No such file" in caplog.text
