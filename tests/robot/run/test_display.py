"""What the person beside the rig sees."""

import io
import math
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import LiveDisplay, NullDisplay, PlainDisplay, Snapshot, banner, bar_text

LIMITS = RigFile.load("simulated").limits


def snapshot(**changes):
    state = SimpleNamespace(**{"x": 0.1234, "theta": -0.05, "x_dot": 0.2, "theta_dot": -1.5} | changes.pop("state", {}))
    default = dict(
        phase="run",
        time_s=100.0,
        state=state,
        asked_volt=7.5,
        applied_volt=4.25,
        late_s=1e-4,
        busy_s=5e-4,
        misses=0,
        interventions={},
        message="Balancing.",
    )
    return Snapshot(**default | changes)


def terminal(encoding="utf-8"):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=stream, force_terminal=True, width=80, height=30, color_system=None, legacy_windows=False)
    return console, lambda: raw.getvalue().decode(encoding)


def drawn(shown, encoding="utf-8"):
    console, written = terminal(encoding)
    display = LiveDisplay(LIMITS, console)
    display.update(shown)
    console.print(display._draw())
    return written()


def test_live_display_shows_what_matters():
    text = drawn(snapshot(interventions={"voltage": 12, "rail_brake": 3}, misses=4))
    for wanted in (
        "R U N",
        "Balancing.",
        "+123.4 mm",
        "+0.200 m/s",
        "-2.9 deg",
        "-1.500 rad/s",
        "+4.25 V",
        "asked +7.50 V",
        "0.10 ms late",
        "0.50 ms busy",
        "4 missed",
        "voltage x12",
        "rail_brake x3",
    ):
        assert wanted in text, wanted
    assert "no intervention" in drawn(snapshot())


def test_live_display_draws_by_itself_and_ends_with_the_newest():
    console, written = terminal()
    with LiveDisplay(LIMITS, console) as display:
        assert "waiting for the rig" in written()
        display.update(snapshot(phase="home", message="Looking for the left end."))
        deadline_s = time.monotonic() + 10.0
        while "H O M E" not in written():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        # Something nobody may overlook, in the middle of it.
        banner("SIMULATED: no hardware", "bold white on red", console)
        display.update(snapshot(phase="stop", message="The end.", time_s=107.0))
    text = written()
    assert "SIMULATED: no hardware" in text
    assert "S T O P" in text
    assert "7.0 s" in text


def test_loop_need_not_wait_for_the_drawing():
    before = sys.getswitchinterval()
    with LiveDisplay(LIMITS, terminal()[0]):
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == before


def test_live_display_survives_whatever_the_rig_says():
    nan = math.nan
    broken = {"x": nan, "theta": nan, "x_dot": math.inf, "theta_dot": nan}
    text = drawn(snapshot(state=broken, asked_volt=nan, applied_volt=-math.inf, message=""))
    assert "nan" in text
    assert "●" not in text


def test_live_display_on_a_console_that_knows_few_signs():
    text = drawn(snapshot(), encoding="cp437")
    assert "O" in text
    assert "●" not in text


@pytest.mark.parametrize(
    ("value", "limit", "reach", "place", "style"),
    [
        (0.0, 1.0, 1.0, 20, "bold green"),
        (1.0, 1.0, 1.0, 40, "bold green"),
        (-9.0, 1.0, 1.0, 0, "bold red"),
        (0.6, 0.5, 1.0, 32, "bold red"),
        (3.1, None, math.pi, 40, "bold green"),
    ],
)
def test_bar(value, limit, reach, place, style):
    bar = bar_text(value, limit, reach)
    assert len(bar.plain) == 41
    assert bar.plain.index("●") == place
    (span,) = [span for span in bar.spans if bar.plain[span.start : span.end] == "●"]
    assert span.style == style


def test_bar_marks_its_limits():
    assert [place for place, sign in enumerate(bar_text(0.1, 0.5, 1.0).plain) if sign == "│"] == [10, 20, 30]


def test_pole_that_hangs_before_the_run_is_no_alarm():
    display = LiveDisplay(LIMITS, terminal()[0])
    hanging = {"theta": 3.1}
    for phase, alarm in (("home", False), ("run", True)):
        bar = list(display._table(snapshot(phase=phase, state=hanging)).columns[1].cells)[1]
        assert any(span.style == "bold red" for span in bar.spans) == alarm, phase


def test_plain_display_has_a_line_for_each_change():
    stream = io.StringIO()
    with PlainDisplay(Console(file=stream, width=20)) as display:
        for time_s, phase, message in (
            (50.0, "home", "Looking for [left]."),
            (51.0, "home", "Looking for [left]."),
            (52.0, "home", "Looking for the right end, which is far away."),
            (53.5, "run", "Looking for the right end, which is far away."),
        ):
            display.update(snapshot(time_s=time_s, phase=phase, message=message))
    assert stream.getvalue().splitlines() == [
        "[   0.00 s] home: Looking for [left].",
        "[   2.00 s] home: Looking for the right end, which is far away.",
        "[   3.50 s] run: Looking for the right end, which is far away.",
    ]


def test_null_display_takes_everything(capsys):
    with NullDisplay() as display:
        display.update(snapshot())
    assert capsys.readouterr() == ("", "")


def test_banner_goes_to_the_terminal_by_default(capsys):
    banner("SIMULATED: no hardware", "bold white on red")
    assert "SIMULATED: no hardware" in capsys.readouterr().out
