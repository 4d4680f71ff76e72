"""The band of a report, as the console draws it."""

import pytest

from nopg_robot.console.prediction import drawn_band


def band(**changes):
    quantities = [
        {"name": "x", "low": [-0.1, -0.2], "high": [0.1, 0.2]},
        {"name": "sin_theta", "low": [0, 0], "high": [0, 0]},
        {"name": "theta", "low": [-0.01, -0.02], "high": [0.01, 0.02]},
        {"name": "voltage", "low": [-1, -1], "high": [2, 2]},
    ]
    return {"level": 0.9, "steps": [0, 50], "going": [1.0, 0.5], "quantities": quantities} | changes


def test_steps_become_seconds():
    drawn = drawn_band(band(), 0.02)
    assert drawn["time_s"] == [0.0, 1.0]
    assert drawn["going"] == [1.0, 0.5]
    assert drawn["level"] == 0.9
    assert drawn["ranges"] == {
        "x": ([-0.1, -0.2], [0.1, 0.2]),
        "theta": ([-0.01, -0.02], [0.01, 0.02]),
        "voltage": ([-1.0, -1.0], [2.0, 2.0]),
    }


def test_what_cannot_be_drawn_is_left_out():
    short = {"name": "theta", "low": [0.0], "high": [0.0]}
    drawn = drawn_band(band(quantities=[*band()["quantities"][:2], short]), 0.02)
    assert list(drawn["ranges"]) == ["x"]


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "band",
        [],
        {},
        band(steps=[50, 0]),
        band(steps=list(range(10**4))),
        band(steps=[0]),
        band(going=[]),
        band(going=[float("nan"), 1.0]),
        band(going=[True, 1.0]),
        band(going=[10**400, 1.0]),
        band(quantities=[]),
        band(quantities=[{"name": "x", "low": ["a", "b"], "high": [0.0, 0.0]}]),
        band(quantities=None),
    ],
)
def test_no_band_from_a_broken_file(broken):
    assert drawn_band(broken, 0.02) is None
