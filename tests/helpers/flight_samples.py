"""What a flight recorder is given."""

from dataclasses import dataclass, replace

from nopg_robot.flight.recorder import Sample

SAMPLE = Sample(
    time_s=12.5,
    phase="run",
    raw_cart=-123.0,
    raw_pole=40000.0,
    x=0.01,
    theta=-0.02,
    x_dot=0.3,
    theta_dot=-0.4,
    asked_volt=float("nan"),
    applied_volt=-2.5,
    late_s=1e-5,
    busy_s=3e-4,
    acted=True,
    episode=3,
)


@dataclass(frozen=True)
class Note:
    reason: str
    message: str
    time_s: float


RAIL = Note("rail", "x 0.39 m is within 0.03 m of the stop", 12.6)


def numbered(count):
    return [replace(SAMPLE, time_s=0.002 * number, x=1e-3 * number, acted=number % 10 == 0) for number in range(count)]
