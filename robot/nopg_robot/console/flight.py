"""What pages are told of a flight, at its beginning and at its end."""

from collections.abc import Mapping
from typing import Any

from nopg_robot.rig.file import RigFile
from nopg_robot.run.session import RunSummary


def describe_flight(
    rig: RigFile,
    *,
    title: str,
    seconds: float,
    pole: str = "upright",
    dry_run: bool = False,
    band: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    :param rig: that flies
    :param title: what flies
    :param seconds: how long the policy acts, at most
    :param pole: how it starts; the limit of the angle applies to an upright one only
    :param dry_run: the motor stays off, and nothing is known of stops and angles
    :param band: that was predicted, see :func:`nopg_robot.console.prediction.drawn_band`
    """
    limits = rig.limits
    return {
        "title": title,
        "rig": rig.name,
        "plant": rig.connection.plant,
        "seconds": min(seconds, limits.max_seconds),
        "limits": {
            "rail_m": limits.rail_length_m / 2.0,
            "end_m": limits.rail_length_m / 2.0 - limits.rail_margin_m,
            # While the policy acts; before, positions are not known or do not matter.
            "x_m": None if dry_run else limits.rail_length_m / 2.0 - limits.rail_margin_m,
            "theta_rad": limits.angle_rad if pole == "upright" and not dry_run else None,
            "volt": limits.voltage_volt,
            # Phases that are not named here leave the motor without voltage.
            "volt_in_phase": {
                "self-test": rig.self_test.voltage_volt,
                "home": rig.homing.voltage_volt,
                "place": rig.centring.voltage_volt,
                "run": 0.0 if dry_run else limits.voltage_volt,
                "collect": limits.voltage_volt,
            },
        },
        "band": band,
    }


def describe_ending(summary: RunSummary, exit_code: int) -> dict[str, Any]:
    """
    :param summary: of the flight
    :param exit_code: that the program will give
    """
    content = summary.as_dict()
    kept = ("outcome", "reason", "fault", "phase", "seconds", "interventions", "simulated")
    return {**{name: content[name] for name in kept}, "exit_code": int(exit_code)}
