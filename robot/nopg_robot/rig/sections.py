"""The sections of a rig file: which fields each has, their defaults, and what they may be."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nopg_envs.cartpole.parameters import parameters_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# What waits for longer than this protects nothing.
AtMostASecond = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
# The largest movement of one cycle that may pass for one, as a share of the rail.
LONGEST_JUMP = 0.2
Sign = Literal[1, -1]


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
    command; null if it keeps it for ever, which is said aloud at every start.
    """

    plant: Literal["quarc"]
    host: str
    port: int = Field(default=9095, ge=1, le=65535)
    doubles: Literal[2, 4] = 2
    connect_timeout_s: Positive = 5.0
    read_timeout_s: Positive = 0.01
    watchdog_s: Positive | None


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
    """A board that speaks the protocol in PROTOCOL.md. ``watchdog_s``: without commands for so long it goes to 0 V."""

    plant: Literal["serial"]
    port: str
    baud: int = Field(default=1_000_000, gt=0)
    connect_timeout_s: Positive = 3.0
    read_timeout_s: Positive = 0.01
    watchdog_s: Annotated[float, Field(ge=0.001, le=1.0)] = 0.05


Connection = Annotated[SimulatedConnection | QuarcConnection | HilConnection | SerialConnection, Field(discriminator="plant")]


class VelocityFilter(Section):
    """ω s / (s + ω) or ω² s / (s² + 2 ζ ω s + ω²); or ``source: rig`` to take the velocities that the rig sends."""

    source: Literal["estimator", "rig"] = "estimator"
    order: Literal[1, 2] = 1
    cutoff_rad_s: Positive = 50.0
    damping: Positive = 0.9


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

    # No amplifier of such a cart gives more.
    voltage_volt: Annotated[float, Field(gt=0, le=24, allow_inf_nan=False)]
    rail_length_m: Positive
    slew_volt_per_s: Positive = 2000.0
    # The run is cut when the cart comes this near to a stop ...
    rail_margin_m: Annotated[float, Field(ge=0.01, allow_inf_nan=False)] = 0.05
    # ... and voltage towards the stop is withheld as soon as coasting, speed times this, would take the cart there.
    coasting_time_s: Annotated[float, Field(ge=0.05, allow_inf_nan=False)] = 0.2
    angle_rad: Annotated[float, Field(gt=0, le=math.pi)] = 0.35
    cart_speed_m_s: Positive = 2.0
    pole_speed_rad_s: Positive = 25.0
    stale_s: AtMostASecond = 0.02
    # A cart that does not count under this voltage for this long, or a pole that does not while the cart travels this far.
    frozen_s: Positive = 0.3
    frozen_volt: Positive = 1.5
    frozen_travel_m: Positive = 0.02
    jump_m: Positive = 0.02
    jump_rad: Annotated[float, Field(gt=0, le=math.pi / 2, allow_inf_nan=False)] = 0.3
    outside_data: Literal["ignore", "warn", "stop"] = "warn"
    outside_data_margin: NotNegative = 0.1
    max_seconds: Positive = 600.0

    @model_validator(mode="after")
    def _check_together(self) -> "Limits":
        if 2.0 * self.rail_margin_m >= self.rail_length_m:
            raise ValueError(
                f"rail_margin_m: two times {self.rail_margin_m:g} m leave nothing of rail_length_m, {self.rail_length_m:g} m"
            )
        if self.jump_m > LONGEST_JUMP * self.rail_length_m:
            raise ValueError(f"jump_m: {self.jump_m:g} m is above {LONGEST_JUMP:g} of rail_length_m, {self.rail_length_m:g} m")
        if self.frozen_volt > self.voltage_volt:
            raise ValueError(
                f"frozen_volt: {self.frozen_volt:g} V is above voltage_volt, {self.voltage_volt:g} V: never reached"
            )
        return self


class Rates(Section):
    """The loop reads, filters and supervises at ``sample_hz``; the policy acts at ``control_hz``, which must divide it."""

    sample_hz: Positive = 500.0
    control_hz: Positive = 50.0


class Timing(Section):
    """A cycle that begins later than ``miss_s`` after its time is a miss; more than ``max_misses`` a second stop the run."""

    miss_s: AtMostASecond = 0.002
    max_misses: int = Field(default=25, ge=0)
    # A guard beside the loop writes 0 V when the loop has not written for so long; null: one control period.
    watchdog_s: AtMostASecond | None = None


class SelfTest(Section):
    """A push each way: the cart must move by ``min_travel_m``, the right way, and be seen to after ``latency_s``."""

    voltage_volt: Positive = 1.2
    push_s: Positive = 0.4
    min_travel_m: Positive = 0.005
    latency_s: AtMostASecond = 0.05
    timeout_s: Positive = 10.0

    @model_validator(mode="after")
    def _check_together(self) -> "SelfTest":
        if self.push_s >= self.timeout_s:
            raise ValueError(f"push_s: {self.push_s:g} s is not below timeout_s, {self.timeout_s:g} s")
        return self


class Homing(Section):
    """Both stops at low voltage; the span between them must be the rail's length to within ``span_tolerance_m``."""

    voltage_volt: Positive = 1.5
    still_s: Positive = 0.3
    span_tolerance_m: Positive = 0.02
    timeout_s: Positive = 20.0


class Centring(Section):
    voltage_volt: Positive = 1.5
    tolerance_m: Positive = 0.01
    timeout_s: Positive = 15.0


class Start(Section):
    """Before the run: the pole hangs still (its angle is set there), then stands within ``upright_rad`` for ``hold_s``."""

    upright_rad: Positive = 0.052
    hold_s: Positive = 0.3
    still_s: Positive = 1.0
    still_rad_s: Positive = 0.05
    timeout_s: Positive = 120.0
