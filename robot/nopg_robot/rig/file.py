"""Rig files: everything that differs from one rig to the next, checked before anything moves."""

import os
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError, model_validator

from nopg_envs.plain_yaml import read_yaml
from nopg_robot.rig.sections import (
    GUARD_SHARE,
    MISSED_COMMANDS,
    MOST_JITTER_S,
    MOST_MISSES,
    MOST_VIRTUAL_JITTER_S,
    SERIAL_WATCHDOG_S,
    Centring,
    Connection,
    HilConnection,
    Homing,
    Limits,
    Motor,
    QuarcConnection,
    Rates,
    Readings,
    Section,
    SelfTest,
    Sensors,
    SerialConnection,
    SimulatedConnection,
    Start,
    Timing,
    is_section,
)

# Of a real rig: a cart that is controlled by samples of 0.2 s ago, or keeps its voltage for so long, runs into a stop.
OLDEST_S, LONGEST_VOLTAGE_S = 0.1, 0.2


class RigFileError(ValueError):
    """A rig file that must not be used; the message names the file, the field and what is wrong with it."""


class RigFile(Section):
    """One rig."""

    name: str
    connection: Connection
    sensors: Sensors
    limits: Limits
    motor: Motor = Motor()
    rates: Rates = Rates()
    timing: Timing = Timing()
    self_test: SelfTest = SelfTest()
    homing: Homing = Homing()
    centring: Centring = Centring()
    start: Start = Start()

    @property
    def sample_s(self) -> float:
        return 1.0 / self.rates.sample_hz

    @property
    def samples_per_action(self) -> int:
        return round(self.rates.sample_hz / self.rates.control_hz)

    @property
    def watchdog_s(self) -> float:
        return self.timing.watchdog_s or 1.0 / self.rates.control_hz

    @property
    def readings(self) -> Readings:
        """How exact they are: those of a bridge are stamped when they arrive, and it sends metres, not counts."""
        if self.connection.plant == "quarc":
            most_s = MOST_VIRTUAL_JITTER_S if is_virtual(self) else MOST_JITTER_S
            return Readings(jitter_s=min(self.timing.miss_s, most_s))
        sensors, least = self.sensors, Readings()
        return Readings(
            jitter_s=self.sample_s / 2.0,
            cart_m=least.cart_m + 2.0 * sensors.cart_scale_m,
            pole_rad=least.pole_rad + 2.0 * sensors.pole_scale_rad,
        )

    @model_validator(mode="after")
    def _check_together(self) -> "RigFile":
        ratio = self.rates.sample_hz / self.rates.control_hz
        if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-9:
            raise ValueError(
                f"rates.control_hz: {self.rates.control_hz:g} does not divide sample_hz, {self.rates.sample_hz:g}"
            )
        for section in ("self_test", "homing", "centring"):
            volt = getattr(self, section).voltage_volt
            if volt > self.limits.voltage_volt:
                raise ValueError(
                    f"{section}.voltage_volt: {volt:g} V is above limits.voltage_volt, {self.limits.voltage_volt:g} V"
                )
        if self.limits.stale_s < 2.0 * self.sample_s:
            raise ValueError(f"limits.stale_s: {self.limits.stale_s:g} s is less than two sample periods")
        if self.sensors.velocity.source == "rig" and getattr(self.connection, "doubles", 2) != 4:
            raise ValueError("sensors.velocity.source: only a quarc connection with doubles: 4 sends velocities")
        return self

    @model_validator(mode="after")
    def _check_protection(self) -> "RigFile":
        """What would switch a protection off without saying so."""
        if self.homing.span_tolerance_m >= self.limits.rail_margin_m:
            raise ValueError(
                f"homing.span_tolerance_m: {self.homing.span_tolerance_m:g} m is not below limits.rail_margin_m, "
                f"{self.limits.rail_margin_m:g} m: the stops could be nearer than the margin"
            )
        if self.timing.max_misses > MOST_MISSES * self.rates.sample_hz:
            raise ValueError(
                f"timing.max_misses: {self.timing.max_misses} is above {MOST_MISSES:g} of rates.sample_hz, "
                f"{self.rates.sample_hz:g}: a loop that late controls nothing"
            )
        if self.start.upright_rad > self.limits.angle_rad:
            raise ValueError(
                f"start.upright_rad: {self.start.upright_rad:g} rad is above limits.angle_rad, "
                f"{self.limits.angle_rad:g} rad: a run would begin with a fallen pole"
            )
        # A loop that waits for a reading does not write, and the guard would take it for one that hangs.
        read_timeout_s = getattr(self.connection, "read_timeout_s", 0.0)
        if read_timeout_s >= GUARD_SHARE * self.watchdog_s:
            raise ValueError(
                f"connection.read_timeout_s: {read_timeout_s:g} s is not below {GUARD_SHARE * self.watchdog_s:g} s, three "
                f"quarters of timing.watchdog_s, {self.watchdog_s:g} s (one control period where it is null): the guard would "
                "cut the motor while the loop waits"
            )
        return self

    @model_validator(mode="after")
    def _follow_control_rate(self) -> "RigFile":
        """A board that is given no time of its own is given one that suits the rate of commands."""
        connection = self.connection
        if not isinstance(connection, SerialConnection) or "watchdog_s" in connection.model_fields_set:
            return self
        # No board counts less than a millisecond.
        watchdog_s = max(0.001, min(SERIAL_WATCHDOG_S, MISSED_COMMANDS / self.rates.control_hz))
        return self.model_copy(update={"connection": connection.model_copy(update={"watchdog_s": watchdog_s})})

    @model_validator(mode="after")
    def _check_patience(self) -> "RigFile":
        """What a slow computer needs where nothing real moves is dangerous where something does."""
        if is_virtual(self):
            return self
        period_s = 1.0 / self.rates.control_hz
        is_board = isinstance(self.connection, SerialConnection)
        longest_voltage_s = min(LONGEST_VOLTAGE_S, MISSED_COMMANDS * period_s) if is_board else LONGEST_VOLTAGE_S
        bounds = {
            "limits.stale_s": (self.limits.stale_s, OLDEST_S),
            "self_test.latency_s": (self.self_test.latency_s, OLDEST_S),
            "timing.miss_s": (self.timing.miss_s, period_s),
            "timing.watchdog_s": (self.watchdog_s, OLDEST_S),
            "connection.watchdog_s": (getattr(self.connection, "watchdog_s", None) or 0.0, longest_voltage_s),
        }
        for field, (asked_s, most_s) in bounds.items():
            if asked_s > most_s * (1.0 + 1e-9):
                period = " (one control period where it is null)" if field == "timing.watchdog_s" else ""
                most = " behind a board (three control periods)" if field == "connection.watchdog_s" and is_board else ""
                raise ValueError(
                    f"{field}: {asked_s:g} s{period} is above {most_s:g} s, the most for a real rig{most}: a cart that is "
                    "seen or stopped so late runs into a stop. Only simulated rigs and virtual ones may wait longer: say "
                    "connection.virtual: true if nothing real moves"
                )
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RigFile":
        """
        :param path: of a YAML file, or the name of a rig file that comes with the package, such as ``simulated``
        """
        found = _find(path)
        try:
            content = read_yaml(found)
        except ValueError as error:
            raise RigFileError(f"{path}: {error}") from error
        if not isinstance(content, dict):
            raise RigFileError(f"{path}: not a rig file, it has no sections")
        return cls.from_dict(content, str(path))

    @classmethod
    def from_dict(cls, content: dict[str, Any], source: str = "rig file") -> "RigFile":
        """
        :param content: sections as in a YAML file
        :param source: named in errors
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            problems = "; ".join(_explain(entry) for entry in error.errors())
            raise RigFileError(f"{source}: {problems}") from error

    def to_yaml(self) -> str:
        """The whole file with all defaults written out."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def is_virtual(rig: RigFile) -> bool:
    """
    :param rig: of any kind
    :return: whether nothing real moves: a simulation, the stand-in of a card, or a model or board of which the file says so
    """
    connection = rig.connection
    if isinstance(connection, QuarcConnection | SerialConnection):
        return connection.virtual
    if isinstance(connection, HilConnection):
        return connection.module == "nopg_robot.virtual.hil_stub"
    return isinstance(connection, SimulatedConnection)


def shipped_rigs() -> dict[str, Path]:
    """Rig files that come with the package, by name."""
    package = Path(__file__).parent.parent
    # Inside the package when installed, beside it in a checkout.
    folder = package / "rigs" if (package / "rigs").is_dir() else package.parent / "rigs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _find(path: str | os.PathLike[str]) -> Path:
    if Path(path).is_file():
        return Path(path)
    shipped = shipped_rigs()
    if str(path) in shipped:
        return shipped[str(path)]
    raise RigFileError(f"{path}: there is no such file; rig files that come with the package: {', '.join(shipped)}")


def _explain(entry: Any) -> str:
    loc = tuple(str(part) for part in entry["loc"])
    # The union's tag stands in the location and in no file.
    parts = [*loc[:1], *loc[2:]] if len(loc) > 1 and loc[0] == "connection" else list(loc)
    field = ".".join(parts)
    if entry["type"] == "union_tag_not_found":
        return "connection.plant is missing: simulated, quarc, hil or serial"
    if entry["type"] == "missing":
        return f"{field} is missing"
    if entry["type"] == "extra_forbidden":
        return f"{field} is not a field of rig files; is it misspelt?"
    if entry["type"] == "value_error":
        # Our own, of a whole section: it begins with the name of a field.
        return ".".join([*parts, str(entry["msg"]).removeprefix("Value error, ")])
    return f"{field}: {entry['msg']}, got {entry['input']!r:.100}{_reason_of(entry['type'], parts)}"


def _reason_of(error_type: str, parts: list[str]) -> str:
    """Why a bound is where it is, for a number that lies beyond it."""
    if error_type not in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return ""
    sections: list[Any] = [RigFile]
    for part in parts:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [kind for found in fields for kind in (found.annotation, *get_args(found.annotation)) if is_section(kind)]
    return "".join(f"; {found.description}" for found in fields[:1] if found.description)
