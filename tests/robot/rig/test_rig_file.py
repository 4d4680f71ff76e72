"""A rig file that is wrong does not load, and says which field it is."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nopg_robot.rig.file import RigFile, RigFileError, is_virtual, shipped_rigs

SMALLEST: dict[str, Any] = {
    "name": "a rig",
    "connection": {"plant": "simulated"},
    "sensors": {"cart_scale_m": 1e-5, "pole_scale_rad": 1e-3},
    "limits": {"voltage_volt": 5.0, "rail_length_m": 0.8},
}
CONNECTIONS: dict[str, dict[str, Any]] = {
    "simulated": {"plant": "simulated"},
    "quarc": {"plant": "quarc", "host": "10.0.0.1", "watchdog_s": 0.1},
    "hil": {"plant": "hil", "card_type": "q2_usb"},
    "serial": {"plant": "serial", "port": "/dev/ttyACM0"},
}


def changed(path: str, value: Any, start: dict[str, Any] = SMALLEST) -> dict[str, Any]:
    """A copy with one field set, its sections made where they are missing."""
    content = copy.deepcopy(start)
    *sections, field = path.split(".")
    section = content
    for name in sections:
        section = section.setdefault(name, {})
    section[field] = value
    return content


def without(path: str, start: dict[str, Any] = SMALLEST) -> dict[str, Any]:
    content = copy.deepcopy(start)
    *sections, field = path.split(".")
    section = content
    for name in sections:
        section = section[name]
    del section[field]
    return content


def number_fields(content: dict[str, Any], prefix: str = "") -> list[str]:
    """Paths of all numbers in a file with nothing left out."""
    found = []
    for name, value in content.items():
        if isinstance(value, dict):
            found += number_fields(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(prefix + name)
    return found


def all_numbers() -> list[tuple[str, str]]:
    """Every number of every kind of rig: kind, path."""
    pairs = []
    for kind, connection in CONNECTIONS.items():
        whole = RigFile.from_dict({**SMALLEST, "connection": connection}).model_dump()
        pairs += [(kind, path) for path in number_fields(whole) if kind == "simulated" or path.startswith("connection.")]
    return pairs


# --- Files that load ------------------------------------------------------------------------------------------------------


def test_the_shipped_files_are_these():
    assert set(shipped_rigs()) == {"simulated", "quanser_ip02_quarc", "quanser_ip02_hil", "serial_board", "avr_board"}


@pytest.mark.parametrize("name", sorted(shipped_rigs()))
def test_shipped_files_load_by_name_and_by_path(name: str):
    rig = RigFile.load(name)
    assert rig == RigFile.load(shipped_rigs()[name]) == RigFile.load(str(shipped_rigs()[name]))
    assert (rig.limits.voltage_volt, rig.limits.rail_length_m) == (5.0, 0.814)
    assert (rig.sample_s, rig.samples_per_action) == (0.002, 10)


@pytest.mark.parametrize("name", sorted(shipped_rigs()))
def test_a_file_written_out_is_the_same_file(name: str, tmp_path: Path):
    rig = RigFile.load(name)
    written = tmp_path / "rig.yaml"
    written.write_text(rig.to_yaml(), encoding="utf-8")
    assert RigFile.load(written) == rig
    # Nothing is left to defaults that may be others one day.
    assert yaml.safe_load(rig.to_yaml())["limits"]["coasting_time_s"] == rig.limits.coasting_time_s


@pytest.mark.parametrize("kind", CONNECTIONS)
def test_the_smallest_file_of_each_kind_loads(kind: str):
    rig = RigFile.from_dict({**SMALLEST, "connection": CONNECTIONS[kind]})
    assert rig.connection.plant == kind


def test_a_file_of_ones_own_goes_before_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "simulated").write_text(yaml.safe_dump(SMALLEST), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert RigFile.load("simulated").name == "a rig"


def test_rig_files_cannot_be_changed_in_passing():
    rig = RigFile.from_dict(SMALLEST)
    with pytest.raises(ValidationError, match="frozen"):
        rig.limits.voltage_volt = 24.0  # type: ignore[misc]


def test_the_sending_of_velocities_needs_a_bridge_that_does():
    bridge = {**CONNECTIONS["quarc"], "doubles": 4}
    content = changed("sensors.velocity.source", "rig", {**SMALLEST, "connection": bridge})
    assert RigFile.from_dict(content).sensors.velocity.source == "rig"


# --- Fields that are missing or too many ----------------------------------------------------------------------------------

MANDATORY = [
    "limits.voltage_volt", "limits.rail_length_m", "limits", "sensors", "sensors.cart_scale_m", "sensors.pole_scale_rad",
    "name", "connection",
]  # fmt: skip


@pytest.mark.parametrize("path", MANDATORY)
def test_what_has_no_default_must_be_there(path: str):
    with pytest.raises(RigFileError, match=rf"{path} is missing"):
        RigFile.from_dict(without(path))


def test_everything_that_is_missing_is_named_at_once():
    with pytest.raises(RigFileError, match=r"lab\.yaml: .*limits\.voltage_volt is missing; limits\.rail_length_m is missing"):
        RigFile.from_dict({**SMALLEST, "limits": {}}, "lab.yaml")


@pytest.mark.parametrize(
    ("kind", "field"), [("quarc", "host"), ("quarc", "watchdog_s"), ("hil", "card_type"), ("serial", "port")]
)
def test_connections_name_what_they_need(kind: str, field: str):
    content = without(f"connection.{field}", {**SMALLEST, "connection": CONNECTIONS[kind]})
    with pytest.raises(RigFileError, match=rf"connection\.{field} is missing"):
        RigFile.from_dict(content)


@pytest.mark.parametrize(
    "path",
    [
        "limit",
        "limits.voltage_volts",
        "limits.Voltage_volt",
        "sensors.velocity.cutoff",
        "connection.host",
        "rates.hz",
        "motor.gain",
    ],
)
def test_misspelt_fields_are_named(path: str):
    with pytest.raises(RigFileError, match=rf"{path} is not a field of rig files; is it misspelt\?"):
        RigFile.from_dict(changed(path, 1.0))


@pytest.mark.parametrize("section", ["connection", "sensors", "limits", "rates", "motor"])
@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_sections_must_be_sections(section: str, value: Any):
    with pytest.raises(RigFileError, match=section):
        RigFile.from_dict(changed(section, value))


@pytest.mark.parametrize("content", [None, [], "text", 3])
def test_a_file_must_have_sections(content: Any):
    with pytest.raises(RigFileError, match=r"lab\.yaml"):
        RigFile.from_dict(content, "lab.yaml")


# --- Numbers that are none, or not possible -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "path"), all_numbers())
def test_no_number_can_be_anything_else(kind: str, path: str):
    for value in (math.nan, math.inf, -math.inf, -1e9, "five", "5 V", None, [5.0], {}):
        # A bridge may have no watchdog, and a seed may be anything.
        if (kind, path, value) in [("quarc", "connection.watchdog_s", None), ("simulated", "connection.seed", -1e9)]:
            continue
        with pytest.raises(RigFileError, match=path):
            RigFile.from_dict(changed(path, value, {**SMALLEST, "connection": CONNECTIONS[kind]}))


@pytest.mark.parametrize("path", ["limits.slew_volt_per_s", "limits.rail_length_m", "timing.max_misses", "motor.sign"])
def test_yes_is_not_a_number(path: str):
    with pytest.raises(RigFileError, match=path):
        RigFile.from_dict(changed(path, True))


@pytest.mark.parametrize("path", ["limits.voltage_volt", "limits.rail_length_m", "sensors.cart_scale_m", "rates.sample_hz"])
def test_zero_is_not_positive(path: str):
    with pytest.raises(RigFileError, match=path):
        RigFile.from_dict(changed(path, 0))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sensors.cart_sign", 0),
        ("motor.sign", 2),
        ("sensors.counter_bits", 12),
        ("sensors.velocity.order", 3),
        ("sensors.velocity.source", "magic"),
        ("limits.angle_rad", 3.2),
        ("limits.outside_data", "off"),
        ("timing.max_misses", 2.5),
        ("connection.real_time", 2),
    ],
)
def test_choices_are_checked(path: str, value: Any):
    with pytest.raises(RigFileError, match=path):
        RigFile.from_dict(changed(path, value))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("quarc", "port", 65536),
        ("quarc", "doubles", 3),
        ("hil", "analog_channel", -1),
        ("serial", "watchdog_s", 2),
        ("serial", "connect_timeout_s", 61),
        ("quarc", "connect_timeout_s", 61),
    ],
)
def test_connections_are_checked(kind: str, field: str, value: Any):
    with pytest.raises(RigFileError, match=rf"connection\.{field}"):
        RigFile.from_dict(changed(f"connection.{field}", value, {**SMALLEST, "connection": CONNECTIONS[kind]}))


@pytest.mark.parametrize("plant", ["lego", "Simulated", "", None, 3])
def test_unknown_plants_are_refused_with_those_that_are_known(plant: Any):
    with pytest.raises(RigFileError, match=r"connection: .*'simulated', 'quarc', 'hil', 'serial'"):
        RigFile.from_dict(changed("connection.plant", plant))


def test_a_connection_without_a_plant_is_refused():
    with pytest.raises(RigFileError, match=r"connection\.plant is missing") as refused:
        RigFile.from_dict(changed("connection", {"host": "10.0.0.1"}))
    assert [kind for kind in CONNECTIONS if kind not in str(refused.value)] == []


# --- Fields that contradict each other ------------------------------------------------------------------------------------


@pytest.mark.parametrize("control_hz", [60.0, 333.0, 1000.0, 501.0])
def test_the_control_rate_must_divide_the_sample_rate(control_hz: float):
    with pytest.raises(RigFileError, match=rf"rates\.control_hz: {control_hz:g} does not divide sample_hz, 500"):
        RigFile.from_dict(changed("rates.control_hz", control_hz))


@pytest.mark.parametrize(
    ("sample_hz", "control_hz", "n"), [(500, 500, 1), (500, 50, 10), (1000, 40, 25), (100, 33.333333333333336, 3)]
)
def test_rates_that_divide(sample_hz: float, control_hz: float, n: int):
    rig = RigFile.from_dict({**SMALLEST, "rates": {"sample_hz": sample_hz, "control_hz": control_hz}})
    assert rig.samples_per_action == n


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("limits.rail_margin_m", 0.4),
        ("sensors.velocity.source", "rig"),
    ],
)
def test_contradictions_are_named(path: str, value: Any):
    with pytest.raises(RigFileError, match=path):
        RigFile.from_dict(changed(path, value))


@pytest.mark.parametrize("section", ["self_test", "homing", "centring"])
def test_a_phase_has_no_more_volts_than_the_run(section: str):
    low = {**SMALLEST, "limits": {"voltage_volt": 2.0, "rail_length_m": 0.8}}
    RigFile.from_dict(changed(f"{section}.voltage_volt", 2.0, low))
    with pytest.raises(RigFileError, match=rf"{section}\.voltage_volt: 2\.1 V is above limits\.voltage_volt, 2 V"):
        RigFile.from_dict(changed(f"{section}.voltage_volt", 2.1, low))


@pytest.mark.parametrize(("voltage_volt", "most_volt"), [(1.6, 1.5), (2.0, 1.5), (5.0, 2.5), (24.0, 12.0)])
def test_a_dead_encoder_is_noticed_by_a_run_that_asks_for_half_of_its_volts(voltage_volt: float, most_volt: float):
    start = {**SMALLEST, "limits": {"voltage_volt": voltage_volt, "rail_length_m": 0.8}}
    RigFile.from_dict(changed("limits.frozen_volt", most_volt, start))
    with pytest.raises(RigFileError, match=rf"limits\.frozen_volt: .* above {most_volt:g} V, the most with voltage_volt"):
        RigFile.from_dict(changed("limits.frozen_volt", most_volt + 0.1, start))


# Field, the last value that is allowed, one that is not, and what the error says of the bound.
BOUNDS: list[tuple[str, Any, Any, str]] = [
    ("limits.voltage_volt", 24.0, 24.5, "or equal to 24,"),
    ("limits.rail_margin_m", 0.021, 0.009, "or equal to 0.01,"),
    ("limits.coasting_time_s", 0.05, 0.04, "or equal to 0.05,"),
    ("limits.stale_s", 1.0, 1.5, "or equal to 1,"),
    ("limits.jump_rad", 1.57, 1.6, "or equal to 1.57"),
    ("limits.jump_m", 0.16, 0.17, "0.2 of rail_length_m, 0.8 m"),
    ("limits.frozen_volt", 2.5, 5.0, "the most with voltage_volt at 5 V"),
    ("limits.angle_rad", 1.57, 3.1415, "a pole that has fallen is not cut; runs that start hanging have no such limit"),
    ("limits.cart_speed_m_s", 5.0, 1e9, "or equal to 5, got 1000000000.0; no cart on such a rail is faster"),
    ("limits.pole_speed_rad_s", 60.0, 1e9, "or equal to 60, got 1000000000.0; no such pole is faster"),
    ("limits.cart_acceleration_m_s2", 300.0, 1e9, "or equal to 300, got 1000000000.0; below, a cart that starts"),
    ("limits.slew_volt_per_s", 5e4, 1e9, "or equal to 50000, got 1000000000.0; above, no amplifier would notice"),
    ("limits.frozen_s", 1.0, 1e9, "or equal to 1, got 1000000000.0; what waits for longer"),
    ("limits.frozen_travel_m", 0.2, 1e9, "or equal to 0.2, got 1000000000.0; above, the rail may end"),
    ("limits.outside_data_margin", 1.0, 1e9, "say outside_data: ignore"),
    ("limits.max_seconds", 3600.0, 1e9, "nobody watches a rig for longer"),
    ("sensors.velocity.cutoff_rad_s", 10.0, 1e-9, "or equal to 10, got 1e-09; below, velocities come too late"),
    ("sensors.velocity.damping", 5.0, 1e9, "velocities ring; above, they come too late"),
    ("rates.control_hz", 5.0, 0.05, "or equal to 5, got 0.05; below, a voltage stands for longer than a pole takes"),
    ("self_test.min_travel_m", 0.001, 1e-9, "noise would pass for a cart that moves"),
    ("start.upright_rad", 0.35, 3.0, "limits.angle_rad, 0.35 rad"),
    ("start.still_rad_s", 0.5, 1e9, "a swinging pole would count"),
    ("start.still_s", 0.2, 1e-9, "every swinging pole stands still for a moment"),
    ("timing.miss_s", 1.0, 1e9, "what waits for longer than a second protects nothing"),
    ("timing.watchdog_s", 1.0, 1e9, "or equal to 1, got 1000000000.0; what waits for longer than a second protects nothing"),
    ("timing.max_misses", 125, 126, "0.25 of rates.sample_hz, 500"),
    ("homing.span_tolerance_m", 0.049, 0.05, "limits.rail_margin_m, 0.05 m"),
    ("self_test.push_s", 0.6, 2.0, "above, a push takes the cart from the middle of the rail to a stop"),
    ("self_test.voltage_volt", 2.5, 5.0, "above, the cart meets a stop hard"),
    ("homing.voltage_volt", 2.5, 5.0, "above, the cart meets a stop hard"),
    ("centring.voltage_volt", 2.5, 5.0, "above, the cart meets a stop hard"),
    ("self_test.timeout_s", 60.0, 1e9, "what takes longer than a minute"),
    ("homing.still_s", 2.0, 1e6, "stalled against a stop"),
    ("homing.timeout_s", 60.0, 1e9, "what takes longer than a minute"),
    ("centring.timeout_s", 60.0, 1e9, "what takes longer than a minute"),
    ("start.hold_s", 60.0, 1e9, "what takes longer than a minute"),
    ("start.timeout_s", 3600.0, 1e9, "nobody waits beside a rig for longer"),
]


@pytest.mark.parametrize(("path", "allowed", "refused", "bound"), BOUNDS)
def test_a_number_that_switches_a_protection_off_is_refused(path: str, allowed: Any, refused: Any, bound: str):
    RigFile.from_dict(changed(path, allowed))
    with pytest.raises(RigFileError, match=path) as error:
        RigFile.from_dict(changed(path, refused))
    assert f"{refused:g}" in str(error.value) or str(refused) in str(error.value)
    assert bound in str(error.value)


def test_a_push_must_end_before_its_time_is_over():
    with pytest.raises(RigFileError, match=r"self_test\.push_s: 0\.4 s is not below timeout_s, 0\.4 s"):
        RigFile.from_dict(changed("self_test.timeout_s", 0.4))


# Field, the last value that is allowed for a real rig, one that is not.
PATIENCE = [
    ("limits.stale_s", 0.1, 0.11),
    ("self_test.latency_s", 0.1, 0.2),
    ("timing.miss_s", 0.02, 0.021),
    ("timing.watchdog_s", 0.1, 0.11),
    ("connection.watchdog_s", 0.2, 0.25),
]
# A model may run on this computer and move something, and a board may be behind a pseudo-terminal.
REAL = [connection for kind, connection in CONNECTIONS.items() if kind != "simulated"] + [
    *({"plant": "quarc", "host": host, "watchdog_s": 0.1} for host in ("127.0.0.1", "localhost", "::1")),
    {"plant": "serial", "port": "/dev/pts/7"},
]
VIRTUAL = [
    {"plant": "simulated"},
    {"plant": "quarc", "host": "127.0.0.1", "watchdog_s": None, "virtual": True},
    {"plant": "quarc", "host": "10.0.0.1", "watchdog_s": None, "virtual": True},
    {"plant": "serial", "port": "/dev/pts/7", "virtual": True},
    {"plant": "hil", "card_type": "test", "module": "nopg_robot.virtual.hil_stub"},
]


@pytest.mark.parametrize("connection", REAL, ids=lambda connection: "-".join(map(str, connection.values())))
@pytest.mark.parametrize(("path", "allowed", "refused"), PATIENCE)
def test_a_real_rig_is_not_waited_for(path: str, allowed: float, refused: float, connection: dict[str, Any]):
    start = {**SMALLEST, "connection": connection}
    if path == "connection.watchdog_s" and connection["plant"] == "serial":
        allowed = 0.06
    assert not is_virtual(RigFile.from_dict(changed(path, allowed, start)))
    with pytest.raises(RigFileError, match=rf"{path}: {refused:g} s .*is above {allowed:g} s, the most for a real rig"):
        RigFile.from_dict(changed(path, refused, start))


@pytest.mark.parametrize(("control_hz", "most_s"), [(10.0, 0.2), (50.0, 0.06), (100.0, 0.03)])
def test_a_board_waits_for_three_commands_and_no_longer(control_hz: float, most_s: float):
    rig = changed("timing.watchdog_s", 0.1, changed("rates.control_hz", control_hz))
    start = {**rig, "connection": CONNECTIONS["serial"]}
    assert RigFile.from_dict(changed("connection.watchdog_s", most_s, start)).connection.watchdog_s == most_s
    with pytest.raises(RigFileError, match=rf"connection\.watchdog_s: 0\.25 s is above {most_s:g} s, .*behind a board"):
        RigFile.from_dict(changed("connection.watchdog_s", 0.25, start))
    # Of a file that does not say.
    rig_file = RigFile.from_dict(start)
    assert rig_file.connection.watchdog_s == min(0.05, most_s)
    assert RigFile.from_dict(rig_file.model_dump()) == rig_file


def test_a_slow_policy_does_not_make_the_guard_of_a_real_rig_slow():
    start = changed("rates.control_hz", 5.0, {**SMALLEST, "connection": CONNECTIONS["hil"]})
    with pytest.raises(RigFileError, match=r"timing\.watchdog_s: 0\.2 s \(one control period where it is null\)"):
        RigFile.from_dict(start)
    assert RigFile.from_dict(changed("timing.watchdog_s", 0.1, start)).watchdog_s == 0.1


@pytest.mark.parametrize("connection", VIRTUAL, ids=lambda connection: "-".join(map(str, connection.values())))
@pytest.mark.parametrize("path", [path for path, _, _ in PATIENCE])
def test_what_moves_nothing_real_may_be_waited_for(path: str, connection: dict[str, Any]):
    if path == "connection.watchdog_s" and connection["plant"] == "simulated":
        pytest.skip("it has none")
    assert is_virtual(RigFile.from_dict(changed(path, 1.0, {**SMALLEST, "connection": connection})))


@pytest.mark.parametrize("kind", ["quarc", "serial"])
def test_a_reading_must_not_be_waited_for_longer_than_the_guard_does(kind: str):
    rig = changed("connection.read_timeout_s", 0.06, {**SMALLEST, "connection": CONNECTIONS[kind]})
    assert RigFile.from_dict(changed("timing.watchdog_s", 0.09, rig)).watchdog_s == 0.09
    for watchdog_s, said in ((0.08, "0.08"), (0.065, "0.065"), (0.05, "0.05"), (None, "0.02")):
        with pytest.raises(RigFileError, match=rf"connection\.read_timeout_s: 0\.06 s .* timing\.watchdog_s, {said} s"):
            RigFile.from_dict(changed("timing.watchdog_s", watchdog_s, rig))


@pytest.mark.parametrize("kind", ["hil", "serial", "quarc"])
def test_a_rig_must_not_wait_for_ever(kind: str):
    start = {**SMALLEST, "connection": CONNECTIONS[kind]}
    for watchdog_s in (1.5, 1e9):
        with pytest.raises(RigFileError, match=r"connection\.watchdog_s: .* a second"):
            RigFile.from_dict(changed("connection.watchdog_s", watchdog_s, start))


def test_a_bridge_without_a_watchdog_says_so():
    start = {**SMALLEST, "connection": CONNECTIONS["quarc"]}
    assert RigFile.from_dict(changed("connection.watchdog_s", None, start)).connection.watchdog_s is None


def test_readings_must_be_allowed_to_be_as_old_as_a_sample():
    with pytest.raises(RigFileError, match=r"limits\.stale_s"):
        RigFile.from_dict(changed("limits.stale_s", 0.001))


def test_parameters_of_the_simulated_cart_must_exist():
    with pytest.raises(RigFileError, match=r"connection\.parameters"):
        RigFile.from_dict(changed("connection.parameters", {"input_gian": 1.0}))


# --- Files that are none --------------------------------------------------------------------------------------------------

NO_RIG_FILES = {
    "empty": b"",
    "a list": b"- 1\n- 2\n",
    "text": b"just text",
    "a number": b"5.0",
    "bytes": bytes(range(256)),
    "zeros": bytes(64),
    "not UTF-8": b"\xff\xfe\x00n\x00a",
    "unfinished": b"limits: {voltage_volt: 5",
    "tabs": b"limits:\n\tvoltage_volt: 5\n",
    "keys that are no names": b"1: 2\n",
    "Python objects": b"!!python/object/apply:os.getcwd []",
    "two documents": b"name: a\n---\nname: b\n",
    "fields that are lists": b"? [a, b]\n: 1\n",
    "too long": b"# " + b"x" * 2**18,
    "aliases": b"limits: &all {voltage_volt: 5}\nsensors: *all\n",
}


@pytest.mark.parametrize("kind", NO_RIG_FILES)
def test_files_that_are_no_rig_files_are_refused_by_name(kind: str, tmp_path: Path):
    path = tmp_path / "lab.yaml"
    path.write_bytes(NO_RIG_FILES[kind])
    with pytest.raises(RigFileError, match=r"lab\.yaml: "):
        RigFile.load(path)


def test_aliases_that_stand_for_more_text_than_there_is_memory_are_refused_at_once(tmp_path: Path):
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "lab.yaml"
    path.write_text("\n".join(["a0: &a0 [lol]", *levels, "name: *a11"]) + "\n")
    with pytest.raises(RigFileError, match=r"lab\.yaml: .*\*a0 is an alias; write out what it stands for"):
        RigFile.load(path)


def test_a_long_value_is_shown_in_part(tmp_path: Path):
    with pytest.raises(RigFileError) as error:
        RigFile.from_dict(changed("limits.jump_m", "9" * 10_000))
    assert len(str(error.value)) < 500


def test_deep_nesting_is_refused(tmp_path: Path):
    path = tmp_path / "lab.yaml"
    path.write_bytes(b"[" * 600)
    with pytest.raises(RigFileError, match=r"lab\.yaml: "):
        RigFile.load(path)


def test_a_limit_that_is_given_twice_is_refused(tmp_path: Path):
    path = tmp_path / "lab.yaml"
    text = yaml.safe_dump(SMALLEST).replace("  voltage_volt: 5.0\n", "  voltage_volt: 5.0\n  voltage_volt: 50.0\n")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RigFileError, match="voltage_volt"):
        RigFile.load(path)


@pytest.mark.parametrize("path", ["no such file", "", ".", "simulated.yml"])
def test_a_file_that_is_not_there_names_those_that_are(path: str):
    with pytest.raises(RigFileError, match=r"there is no such file; .*quanser_ip02_hil.*simulated"):
        RigFile.load(path)
