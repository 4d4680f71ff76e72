"""What the fields of a rig file mean, in a sentence each; names, types and defaults come from the models themselves."""

_KIND = "kind of connection"
_TIME_LIMIT = "the phase fails after this time, s"
_PHASE_VOLT = "of this phase, which does not know where the stops are, V; at most `limits.voltage_volt`"

#: by the name of the model, then by that of the field
MEANINGS: dict[str, dict[str, str]] = {
    "RigFile": {
        "name": "shown and logged",
        "connection": "what the program talks to, one of those below",
        "sensors": "raw readings to metres and radians",
        "limits": "what the supervisor holds the run to",
        "motor": "direction of the motor",
        "rates": "of the loop and of the policy",
        "timing": "what counts as late, and the guard beside the loop",
        "self_test": "first movement",
        "homing": "search for both stops",
        "centring": "moving the cart to where an episode starts",
        "start": "waiting for the pole",
    },
    "SimulatedConnection": {
        "plant": _KIND,
        "parameters": (
            "of the cart: a set's name, a YAML file of `nopg_envs.identify`, or fields that differ from the identified ones"
        ),
        "real_time": "`false`: as fast as the computer can",
        "operator": "somebody is there to bring the pole to rest",
        "lifts_pole": "and to lift it when the cart stands",
        "seed": "of the simulated operator",
    },
    "QuarcConnection": {
        "plant": _KIND,
        "host": "address of the PC that runs the QUARC model",
        "port": "TCP port",
        "doubles": "numbers in a packet: 2 (x, θ) or 4 (with velocities)",
        "connect_timeout_s": "no connection after this time, s",
        "read_timeout_s": "longest wait for a packet, s; below three quarters of `timing.watchdog_s`",
        "virtual": (
            "true: nothing real moves, so that times may be as long as in a simulation, and `nopg-learn --yes` may fly unasked"
        ),
        "watchdog_s": (
            "how long the model keeps a voltage without a new command, s, 0.2 at most; `null`: for ever, which is said in "
            "red at every start. The program cannot set it, only the model can"
        ),
    },
    "HilConnection": {
        "plant": _KIND,
        "card_type": "as Quanser names it, such as `q2_usb`",
        "card_id": "number of the card",
        "cart_encoder_channel": "encoder of the cart",
        "pole_encoder_channel": "encoder of the pole",
        "analog_channel": "output to the amplifier",
        "enable_channel": "digital line that enables the amplifier; `null` if there is none",
        "watchdog_s": "the card goes to 0 V by itself after this time without a command, s, 0.2 at most",
        "module": "where the vendor's classes come from; `nopg_robot.virtual.hil_stub` is a stand-in",
    },
    "SerialConnection": {
        "plant": _KIND,
        "port": "such as `/dev/ttyACM0` or `COM3`",
        "baud": "of the line",
        "connect_timeout_s": "no connection after this time, s",
        "read_timeout_s": (
            "longest wait for an answer, s; asked again at half of it; below three quarters of `timing.watchdog_s`"
        ),
        "watchdog_s": (
            "the board goes to 0 V by itself after this time without a command, s; at most three control periods and 0.2. "
            "Where 0.05 is more than three control periods, these are the default"
        ),
        "virtual": "true: nothing real moves, as of the QUARC bridge",
    },
    "Sensors": {
        "cart_scale_m": "metres for each unit of the cart's raw reading",
        "cart_sign": "−1 if the reading falls towards +x",
        "pole_scale_rad": "radians for each unit of the pole's raw reading",
        "pole_sign": "−1 if the reading falls as the bob tips towards −x",
        "counter_bits": "width of counters that wrap around; `null` if they do not",
        "velocity": "how velocities are made",
    },
    "VelocityFilter": {
        "source": "`rig`: take the velocities that the rig sends",
        "order": "1: ω s / (s + ω); 2: ω² s / (s² + 2 ζ ω s + ω²)",
        "cutoff_rad_s": "ω, rad/s",
        "damping": "ζ, of the second order only",
    },
    "Limits": {
        "voltage_volt": "largest voltage, V; has no default on purpose",
        "rail_length_m": (
            "travel from stop to stop, or between the points where limit switches open, m; has no default on purpose, and "
            "homing measures it"
        ),
        "slew_volt_per_s": "fastest growth of the voltage, V/s; towards zero is always free",
        "rail_margin_m": "the run is cut when the cart comes this near to a stop, m",
        "coasting_time_s": "voltage towards a stop is withheld when speed times this would take the cart into the margin, s",
        "angle_rad": (
            "the run is cut when the pole leans farther, rad. It does not hold for runs that start hanging, so that swing-up "
            "needs no larger one"
        ),
        "cart_speed_m_s": "the run is cut above, m/s",
        "pole_speed_rad_s": "the run is cut above, rad/s",
        "cart_acceleration_m_s2": (
            "most that motor, pole, or somebody who pushes the cart can do, m/s²; a reading that would need more is a jump"
        ),
        "stale_s": "the run is cut when the newest reading is older than this, s; at least two sample periods, 0.1 at most",
        "frozen_s": "the run is cut when an encoder that should count has not for so long, s",
        "frozen_volt": "the cart should count under this voltage, V; at most half of `voltage_volt`, or 1.5 if that is more",
        "frozen_travel_m": "the pole should count while the cart moves by this, m",
        "jump_m": "the run is cut when x moves by more in one cycle, m, or than a cart can; at most a fifth of the rail",
        "jump_rad": "the run is cut when θ moves by more in one cycle, rad, or than a pole can",
        "outside_data": "what happens in states that the training data did not cover",
        "outside_data_margin": "how far outside of the data's range a state may lie, as a share of the range",
        "max_seconds": "longest run, s",
    },
    "Rates": {
        "sample_hz": "the loop reads, filters and supervises so often a second",
        "control_hz": "the policy acts so often a second; must divide `sample_hz` and agree with the policy file",
    },
    "Timing": {
        "miss_s": "a cycle that begins later than this after its time is a miss, s; at most a control period",
        "max_misses": "more misses than this within a second cut the run; at most a quarter of `rates.sample_hz`",
        "watchdog_s": (
            "a guard beside the loop writes 0 V when the loop has not written for so long, s, 0.1 at most; `null`: one "
            "control period"
        ),
    },
    "SelfTest": {
        "voltage_volt": _PHASE_VOLT,
        "push_s": "length of each push, s; below `timeout_s`, 0.6 at most",
        "min_travel_m": "the cart must move by this in one direction at least, m",
        "latency_s": "the cart must be seen to move within this time of the push, s, 0.1 at most",
        "timeout_s": _TIME_LIMIT,
    },
    "Homing": {
        "voltage_volt": _PHASE_VOLT,
        "still_s": "a cart that has not moved for so long stands at a stop, s, 2 at most",
        "span_tolerance_m": (
            "largest difference between the measured travel and `limits.rail_length_m`, m; below `limits.rail_margin_m`"
        ),
        "timeout_s": _TIME_LIMIT,
    },
    "Centring": {
        "voltage_volt": _PHASE_VOLT,
        "tolerance_m": "how near is near enough, m",
        "timeout_s": _TIME_LIMIT,
    },
    "Start": {
        "upright_rad": "the pole counts as upright within this angle, rad; at most `limits.angle_rad`",
        "hold_s": "for so long, s",
        "still_s": "the pole hangs still when it has not moved for so long, s",
        "still_rad_s": "faster than this is moving, rad/s",
        "timeout_s": _TIME_LIMIT,
    },
    "Motor": {
        "sign": "−1 if positive volts drive the cart towards −x",
    },
}
