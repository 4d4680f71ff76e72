"""The sections of a rig file: which fields each has, their defaults, and what they may be."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nopg_envs.cartpole.parameters import parameters_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# The largest movement of one cycle that may pass for one, as a share of the rail.
LONGEST_JUMP = 0.2
# The largest number of late cycles within a second, as a share of all.
MOST_MISSES = 0.25
# Phases before a run do not know where the stops are. At this voltage the identified cart meets one at 0.4 m/s, and a
# push of the longest time moves it by less than half of its rail (tests/robot/run/test_deployment.py).
MOST_PHASE_VOLT, LONGEST_PUSH_S = 2.5, 0.6
# A cart that runs freely moves under this voltage.
FROZEN_VOLT = 1.5
# Commands that a board may miss before it goes to 0 V, and how long it keeps a voltage by default at most.
MISSED_COMMANDS, SERIAL_WATCHDOG_S = 3.0, 0.05
# A guard cuts when the loop has not written for this share of `timing.watchdog_s`.
GUARD_SHARE = 0.75
# How late a packet may be that is judged by when it came, however patient the rest of the file is. With more, a slip of
# centimetres would pass for a cart that moved. A virtual rig on a busy computer is not judged so strictly.
MOST_JITTER_S, MOST_VIRTUAL_JITTER_S = 0.004, 0.02
Sign = Literal[1, -1]


def _within(least: float, most: float, why: str) -> Any:
    """
    :param least: smallest value of a field
    :param most: largest
    :param why: what lies beyond protects nothing, in a few words for whoever tries
    """
    return Field(ge=least, le=most, allow_inf_nan=False, description=why)


def _at_most(most: float, why: str, **more: Any) -> Any:
    """
    :param most: largest value of a field that is positive
    :param why: as for `_within`
    :param more: a default, where the field may also be null
    """
    return Field(gt=0, le=most, allow_inf_nan=False, description=why, **more)


_TOO_LONG = "what waits for longer than a second protects nothing"
AtMostASecond = Annotated[float, _at_most(1.0, _TOO_LONG)]
AtMostAMinute = Annotated[float, _at_most(60.0, "what takes longer than a minute will not happen any more")]
PhaseVolt = Annotated[
    float, _at_most(MOST_PHASE_VOLT, "above, the cart meets a stop hard: in this phase nothing knows yet where the stops are")
]


class Section(BaseModel):
    # A misspelt limit that is silently ignored is no limit.
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_yes_for_one(cls, content: Any) -> Any:
        for name, value in content.items() if isinstance(content, dict) else ():
            if isinstance(value, bool) and name in cls.model_fields and cls.model_fields[name].annotation is not bool:
                raise ValueError(f"{name}: must not be true or false, which YAML also makes of yes and no")
        return content


def is_section(kind: Any) -> bool:
    """
    :param kind: type of a field
    """
    return isinstance(kind, type) and issubclass(kind, Section)


class SimulatedConnection(Section):
    """
    The identified cart. ``real_time: false`` runs as fast as it can; ``operator``: somebody is there to bring the pole to rest
    and, ``lifts_pole``, to lift it when the cart stands.
    """

    plant: Literal["simulated"]
    parameters: str | dict[str, float] = "identified"
    real_time: bool = True
    operator: bool = True
    lifts_pole: bool = True
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_parameters(self) -> "SimulatedConnection":
        if isinstance(self.parameters, dict):
            try:
                parameters_of(dict(self.parameters))
            except ValueError as error:
                raise ValueError(f"parameters: {error}") from error
        return self


class QuarcConnection(Section):
    """
    A QUARC model behind a TCP port.

    ``doubles``: 2 (x, θ) or 4 (with velocities). ``watchdog_s``: how long the model itself keeps a voltage without a new
    command; null if it keeps it for ever, which is said aloud at every start. ``virtual``: your word that nothing real moves,
    without which a real rig's limits hold and no program flies unasked; an address cannot tell, because a model may run on
    this computer.
    """

    plant: Literal["quarc"]
    host: str
    port: int = Field(default=9095, ge=1, le=65535)
    doubles: Literal[2, 4] = 2
    connect_timeout_s: AtMostAMinute = 5.0
    read_timeout_s: Positive = 0.01
    watchdog_s: float | None = _at_most(
        1.0, "a watchdog that waits for longer than a second is none; null if the model keeps a voltage for ever"
    )
    virtual: bool = False


class HilConnection(Section):
    """A Quanser data-acquisition card, through the vendor's Python package. ``module``: where its classes come from."""

    plant: Literal["hil"]
    card_type: str
    card_id: str = "0"
    cart_encoder_channel: int = Field(default=0, ge=0)
    pole_encoder_channel: int = Field(default=1, ge=0)
    analog_channel: int = Field(default=0, ge=0)
    enable_channel: int | None = Field(default=None, ge=0)
    watchdog_s: AtMostASecond = 0.05
    module: str = "quanser.hardware"


class SerialConnection(Section):
    """
    A board that speaks the protocol in PROTOCOL.md. ``watchdog_s``: without commands for so long it goes to 0 V; in a rig file
    that does not say, no longer than three control periods. ``virtual``: nothing real moves.
    """

    plant: Literal["serial"]
    port: str
    baud: int = Field(default=1_000_000, gt=0)
    connect_timeout_s: AtMostAMinute = 3.0
    read_timeout_s: Positive = 0.01
    watchdog_s: Annotated[float, _within(0.001, 1.0, _TOO_LONG)] = SERIAL_WATCHDOG_S
    virtual: bool = False


Connection = Annotated[SimulatedConnection | QuarcConnection | HilConnection | SerialConnection, Field(discriminator="plant")]


class VelocityFilter(Section):
    """ω s / (s + ω) or ω² s / (s² + 2 ζ ω s + ω²); or ``source: rig`` to take the velocities that the rig sends."""

    source: Literal["estimator", "rig"] = "estimator"
    order: Literal[1, 2] = 1
    cutoff_rad_s: Annotated[
        float, _within(10.0, 1e4, "below, velocities come too late for the limits that rest on them; above, they are noise")
    ] = 50.0
    damping: Annotated[float, _within(0.2, 5.0, "below, velocities ring; above, they come too late")] = 0.9


class Sensors(Section):
    """Raw readings to metres and radians. ``counter_bits``: width of counters that wrap around, null if they do not."""

    cart_scale_m: Positive
    cart_sign: Sign = 1
    pole_scale_rad: Positive
    pole_sign: Sign = 1
    counter_bits: Literal[16, 24, 32] | None = None
    velocity: VelocityFilter = VelocityFilter()


class Motor(Section):
    """``sign``: +1 if positive volts drive the cart towards +x."""

    sign: Sign = 1


class Limits(Section):
    """What the safety supervisor holds the run to. Voltage and rail length have no default on purpose."""

    voltage_volt: Annotated[float, _at_most(24.0, "no amplifier of such a cart gives more")]
    rail_length_m: Positive
    slew_volt_per_s: Annotated[float, _at_most(50_000.0, "above, no amplifier would notice the limit")] = 2000.0
    # The run is cut when the cart comes this near to a stop ...
    rail_margin_m: Annotated[float, _within(0.01, 1.0, "below, a cart that is cut still meets the stop")] = 0.05
    # ... and voltage towards the stop is withheld as soon as coasting, speed times this, would take the cart there.
    coasting_time_s: Annotated[float, _within(0.05, 10.0, "below, the brake comes too late")] = 0.2
    angle_rad: Annotated[
        float, _at_most(math.pi / 2, "above, a pole that has fallen is not cut; runs that start hanging have no such limit")
    ] = 0.35
    cart_speed_m_s: Annotated[float, _at_most(5.0, "no cart on such a rail is faster, and nothing would ever be cut")] = 2.0
    pole_speed_rad_s: Annotated[float, _at_most(60.0, "no such pole is faster, and nothing would ever be cut")] = 25.0
    # The identified cart gains 38 m/s² with 24 V and a spinning pole. A hand or a stick that pushes it may do more.
    cart_acceleration_m_s2: Annotated[
        float, _within(10.0, 300.0, "below, a cart that starts would count as one that jumped; above, a slip would pass")
    ] = 100.0
    stale_s: AtMostASecond = 0.02
    # A cart that does not count under this voltage for this long, or a pole that does not while the cart travels this far.
    frozen_s: AtMostASecond = 0.3
    frozen_volt: Positive = FROZEN_VOLT
    frozen_travel_m: Annotated[float, _at_most(0.2, "above, the rail may end before a dead encoder is noticed")] = 0.02
    jump_m: Positive = 0.02
    jump_rad: Annotated[float, Field(gt=0, le=math.pi / 2, allow_inf_nan=False)] = 0.3
    outside_data: Literal["ignore", "warn", "stop"] = "warn"
    outside_data_margin: Annotated[
        float, _within(0.0, 1.0, "above, everything is inside: say outside_data: ignore if that is what you want")
    ] = 0.1
    max_seconds: Annotated[float, _at_most(3600.0, "nobody watches a rig for longer without a break")] = 600.0

    @model_validator(mode="after")
    def _check_together(self) -> "Limits":
        if 2.0 * self.rail_margin_m >= self.rail_length_m:
            raise ValueError(
                f"rail_margin_m: two times {self.rail_margin_m:g} m leave nothing of rail_length_m, {self.rail_length_m:g} m"
            )
        if self.jump_m > LONGEST_JUMP * self.rail_length_m:
            raise ValueError(f"jump_m: {self.jump_m:g} m is above {LONGEST_JUMP:g} of rail_length_m, {self.rail_length_m:g} m")
        # With a few volts, half of them may be what friction takes.
        most_volt = min(self.voltage_volt, max(0.5 * self.voltage_volt, FROZEN_VOLT))
        if self.frozen_volt > most_volt:
            raise ValueError(
                f"frozen_volt: {self.frozen_volt:g} V is above {most_volt:g} V, the most with voltage_volt at "
                f"{self.voltage_volt:g} V: a run that seldom asks for so much never notices a dead encoder"
            )
        return self


class Rates(Section):
    """The loop reads, filters and supervises at ``sample_hz``; the policy acts at ``control_hz``, which must divide it."""

    sample_hz: Annotated[
        float, _within(50.0, 10_000.0, "below, a cart is centimetres further before anybody looks; above, no PC keeps up")
    ] = 500.0
    control_hz: Annotated[
        float, _within(5.0, 10_000.0, "below, a voltage stands for longer than a pole takes to fall, and so does the guard")
    ] = 50.0


class Timing(Section):
    """A cycle that begins later than ``miss_s`` after its time is a miss; more than ``max_misses`` a second stop the run."""

    miss_s: AtMostASecond = 0.002
    max_misses: int = Field(default=25, ge=0)
    # A guard beside the loop writes 0 V when the loop has not written for so long; null: one control period.
    watchdog_s: float | None = _at_most(1.0, _TOO_LONG, default=None)


class Readings(Section):
    """
    How exact a rig's readings are; no section of the file, but what follows from others.

    ``jitter_s``: how much later than it says a reading may have been taken. ``cart_m``, ``pole_rad``: what may be noise.
    """

    jitter_s: NotNegative = 0.0
    cart_m: NotNegative = 5e-4
    pole_rad: NotNegative = 0.01


class SelfTest(Section):
    """A push each way: the cart must move by ``min_travel_m``, the right way, and be seen to after ``latency_s``."""

    voltage_volt: PhaseVolt = 1.2
    push_s: Annotated[
        float, _at_most(LONGEST_PUSH_S, "above, a push takes the cart from the middle of the rail to a stop")
    ] = 0.4
    min_travel_m: Annotated[float, _within(0.001, 0.1, "below, noise would pass for a cart that moves")] = 0.005
    latency_s: AtMostASecond = 0.05
    timeout_s: AtMostAMinute = 10.0

    @model_validator(mode="after")
    def _check_together(self) -> "SelfTest":
        if self.push_s >= self.timeout_s:
            raise ValueError(f"push_s: {self.push_s:g} s is not below timeout_s, {self.timeout_s:g} s")
        return self


class Homing(Section):
    """Both stops at low voltage; the span between them must be the rail's length to within ``span_tolerance_m``."""

    voltage_volt: PhaseVolt = 1.5
    still_s: Annotated[float, _at_most(2.0, "above, the motor is stalled against a stop for long")] = 0.3
    span_tolerance_m: Positive = 0.02
    timeout_s: AtMostAMinute = 20.0


class Centring(Section):
    voltage_volt: PhaseVolt = 1.5
    tolerance_m: Positive = 0.01
    timeout_s: AtMostAMinute = 15.0


class Start(Section):
    """Before the run: the pole hangs still (its angle is set there), then stands within ``upright_rad`` for ``hold_s``."""

    upright_rad: Positive = 0.052
    hold_s: AtMostAMinute = 0.3
    still_s: Annotated[float, _within(0.2, 60.0, "below, every swinging pole stands still for a moment")] = 1.0
    still_rad_s: Annotated[float, _at_most(0.5, "above, a swinging pole would count as one that hangs still")] = 0.05
    timeout_s: Annotated[float, _at_most(3600.0, "nobody waits beside a rig for longer")] = 120.0
