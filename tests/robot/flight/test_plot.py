"""A flight log as a picture and a paragraph."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from nopg_robot.flight.journal import journal_path
from nopg_robot.flight.log import read_flight
from nopg_robot.flight.plot import describe, main, plot_flight
from nopg_robot.flight.recorder import FlightRecorder, Sample
from nopg_robot.rig.file import RigFile

SAMPLE = Sample(0.0, "home", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e-4, 5e-4, True, 0)


@dataclass(frozen=True)
class Note:
    reason: str
    message: str
    time_s: float


def fly(path, rig=True):
    """One second of homing with a hanging pole, two of a run; not closed."""
    recorder = FlightRecorder(path, {"rig": RigFile.load("simulated").to_yaml()} if rig else {})
    for number in range(1500):
        time_s = 500.0 + 0.002 * number
        run = number >= 500
        theta = np.nan if number == 900 else 0.1 * np.sin(time_s) if run else (np.pi - 0.01) * (-1) ** number
        asked = 1e9 if number == 700 else float("nan") if number == 701 else np.sin(time_s)
        recorder.record(
            replace(SAMPLE, time_s=time_s, phase="run" if run else "home", theta=theta, asked_volt=asked, applied_volt=1.0)
        )
    for time_s in (501.5, 502.0, 502.5):
        recorder.note(Note("voltage", "cut", time_s))
    recorder.note(Note("angle", "fell", 503.0))
    recorder.end_episode(0, "angle", True)
    return recorder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    recorder = fly(tmp_path_factory.mktemp("flight") / "run.npz")
    recorder.close({"outcome": "stopped"})
    return recorder.path


def test_paragraph(path):
    text = describe(read_flight(path))
    for wanted in (
        "run.npz: 3.0 s, 1500 samples.",
        "Phases: home 1.0 s, run 2.0 s.",
        "Interventions noted: voltage x3, angle x1.",
        "Episodes ended by: angle x1.",
        "0.10 / 0.10 / 0.10 ms after their time",
        "0.50 / 0.50 / 0.50 ms after that",
    ):
        assert wanted in text, wanted
    assert "INCOMPLETE" not in text


def figure_of(log, monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: (kept.append(self), path.write_bytes(b"")))
    plot_flight(log, tmp_path / "out.png")
    return kept[0]


@pytest.mark.slow
def test_picture_shows_limits_phases_and_interventions(path, monkeypatch, tmp_path):
    figure = figure_of(path, monkeypatch, tmp_path)
    cart, pole, cart_speed, volts, timing, interventions, pole_speed = figure.axes
    limits = RigFile.load("simulated").limits

    def levels(axis):
        return sorted({round(float(line.get_ydata()[0]), 6) for line in axis.lines if len(set(line.get_ydata())) == 1})

    half_mm = 500.0 * limits.rail_length_m
    margin_mm = 1e3 * limits.rail_margin_m
    assert {-half_mm, margin_mm - half_mm, half_mm - margin_mm, half_mm} <= set(levels(cart))
    assert round(np.rad2deg(limits.angle_rad), 6) in levels(pole)
    assert limits.voltage_volt in levels(volts)
    # Neither a hanging pole nor an absurd wish flattens the run.
    assert pole.get_ylim()[1] < 30.0
    assert volts.get_ylim()[1] < 10.0
    assert [text.get_text() for text in cart.texts] == ["home", "run"]
    assert [label.get_text() for label in interventions.get_yticklabels()] == ["voltage ×3", "angle ×1"]
    np.testing.assert_allclose(interventions.lines[0].get_xdata(), [1.5, 2.0, 2.5])
    # Where the angle jumps from π to −π no line crosses the picture.
    assert np.nanmax(np.abs(np.diff(pole.lines[0].get_ydata()))) < 180.0
    assert (cart_speed.get_ylabel(), pole_speed.get_ylabel()) == ("cart [m/s]", "pole [rad/s]")
    assert len(timing.lines) == 2


@pytest.mark.slow
def test_command_draws_beside_the_log_and_where_asked(path, tmp_path, capsys):
    assert main([str(path)]) == 0
    assert path.with_name("run.png").read_bytes().startswith(b"\x89PNG")
    assert "1500 samples" in capsys.readouterr().out
    asked = tmp_path / "other.png"
    assert main([str(path), "-o", str(asked)]) == 0
    assert asked.read_bytes().startswith(b"\x89PNG")
    assert f"Written: {asked}" in capsys.readouterr().out


@pytest.mark.slow
def test_log_that_was_not_closed(tmp_path, capsys):
    recorder = fly(tmp_path / "run.npz", rig=False)
    journal = journal_path(recorder.path)
    recorder._stop.set()
    recorder._thread.join()
    recorder._flush()
    assert main([str(journal)]) == 0
    assert "INCOMPLETE" in capsys.readouterr().out
    assert (tmp_path / "run.png").exists()
    assert "INCOMPLETE" in describe(read_flight(recorder.path))
    recorder.close({})


@pytest.mark.slow
def test_log_without_samples(tmp_path, capsys):
    FlightRecorder(tmp_path / "run.npz", {"rig": "- no: sections"}).close({})
    assert main([str(tmp_path / "run.npz")]) == 0
    assert "no samples" in capsys.readouterr().out
    assert (tmp_path / "run.png").exists()


def test_bad_arguments_end_in_one_line_and_code_2(path, tmp_path, capsys):
    (tmp_path / "text.npz").write_text("text")
    FlightRecorder(tmp_path / "yaml.npz", {"rig": "{unclosed"}).close({})
    for arguments in (
        [str(tmp_path / "missing.npz")],
        [str(tmp_path / "text.npz")],
        [str(tmp_path / "yaml.npz")],
        [str(path), "-o", str(tmp_path / "no" / "folder.png")],
        [str(path), "-o", str(tmp_path / "run.nonsense")],
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("plot: ")
        assert error.count("\n") == 1, arguments


def test_computer_without_matplotlib_is_told_what_to_install(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([str(path), "-o", str(tmp_path / "out.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
