"""Heads of columns: the name and the unit in a text like ``position [m]``, and what names tell of cosines and sines."""

import keyword
import re
from collections.abc import Iterable

# "position [m]", "theta (rad)", "speed / (m/s)"; a unit has no brackets of its own kind inside.
_BRACKETS = re.compile(r"(.*\S)\s*(?:\[([^\[\]]*)\]|\(([^()]*)\))")
# What a name may end in after an underscore, as in u_V or x_dot_m_s; s, g, K and W are an index more often than a unit.
_SUFFIXES = {
    **{unit: unit for unit in ("V", "mV", "A", "mA", "N", "Nm", "m", "cm", "mm", "rad", "deg", "Hz", "rpm")},
    **{"volt": "V", "volts": "V", "degC": "°C", "N_m": "N m"},
    **{f"{unit}_s": f"{unit}/s" for unit in ("m", "cm", "mm", "rad", "deg")},
    **{f"{unit}_s2": f"{unit}/s²" for unit in ("m", "rad", "deg")},
}
# joint_B: where there is one, the A of joint_A is no unit either.
_INDEXED = re.compile(r"[_ ]*(.+?)[_ ]*_(\d+|[^\W\d_])")
# How else the units are written that cannot be told from each other by looking at numbers.
_SPELLINGS = {
    **{"volt": "V", "volts": "V", "v": "V", "meter": "m", "metre": "m", "meters": "m", "metres": "m"},
    **{"radian": "rad", "radians": "rad", "degree": "deg", "degrees": "deg", "°": "deg", "newton": "N"},
    **{"Nm": "N m", "N*m": "N m", "N·m": "N m"},
}
#: units of which two that differ are not the same for certain
KNOWN_UNITS = {"V", "mV", "A", "mA", "N", "N m", "m", "cm", "mm", "rad", "deg"}
KNOWN_UNITS |= {f"{unit}/s" for unit in ("m", "cm", "mm", "rad", "deg")}
_COSINE = re.compile(r"cos(?:ine)?[\s_]*\(?\s*(?P<before>.*?)\s*\)?|(?P<after>.+?)[\s_]*cos(?:ine)?", re.IGNORECASE)
_SINE = re.compile(r"sin(?:e|us)?[\s_]*\(?\s*(?P<before>.*?)\s*\)?|(?P<after>.+?)[\s_]*sin(?:e|us)?", re.IGNORECASE)


def label(name: str, unit: str) -> str:
    """
    :param name: of a column
    :param unit: ``""`` or ``"1"`` for none
    """
    return f"{name} [{unit}]" if unit not in ("", "1") else name


def parsed(text: str) -> tuple[str, str]:
    """
    :param text: head of a column
    :return: name and unit, ``""`` where it tells none
    """
    text = text.strip()
    match = _BRACKETS.fullmatch(text)
    if match is not None and _holds_unit(text, match):
        unit = (match[2] or match[3] or "").strip()
        return match[1].rstrip("/").strip() or text, "1" if unit in ("-", "1", "") else unit
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        name = text.removesuffix(f"_{suffix}").strip("_ ")
        if name and text.endswith(f"_{suffix}"):
            return name, _SUFFIXES[suffix]
    return text, ""


def parsed_together(texts: Iterable[str]) -> dict[str, tuple[str, str]]:
    """
    :param texts: heads of columns that stand beside each other
    :return: name and unit of each; ``joint_A`` beside ``joint_B`` is in no amperes, ``x_m`` beside ``x [m]`` another column
    """
    heads = {text: text.strip() for text in texts}
    indexed = {match[1] for text in heads.values() if (match := _INDEXED.fullmatch(text)) and match[2] not in _SUFFIXES}
    found = {given: parsed(text) for given, text in heads.items()}
    in_brackets = {found[given] for given, text in heads.items() if text.endswith(("]", ")"))}
    for given, text in heads.items():
        name, unit = found[given]
        if unit and not text.endswith(("]", ")")) and (name in indexed or (name, unit) in in_brackets):
            found[given] = text, ""
    return found


def _holds_unit(text: str, match: re.Match[str]) -> bool:
    attached = text[match.end(1)] != " "
    if match[2] is not None:
        # s[0] is a name.
        return not (attached and match[2].strip().isdecimal())
    # And so are sin(theta) and sin (theta).
    return spelled(match[3]) in KNOWN_UNITS or not (attached or match[1].lower() in ("sin", "cos"))


def spelled(unit: str) -> str:
    """
    :param unit: as somebody wrote it
    :return: as :data:`KNOWN_UNITS` has it, where it is one of them
    """
    text = re.sub(r"\s*(\*\s*)?s(\^-1|⁻¹|-1)$", "/s", unit.strip())
    head, slash, tail = text.partition("/")
    head = _SPELLINGS.get(head.strip(), _SPELLINGS.get(head.strip().lower(), head.strip()))
    return f"{head}/{tail.strip()}" if slash else head


def identifier(name: str) -> str:
    """
    :param name: of a column
    :return: what formulas call it: ``cart position`` is ``cart_position``
    """
    text = re.sub(r"\W+", "_", name).strip("_")
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def angle_of(first: str, second: str) -> str | None:
    """
    :param first: name of a column on the unit circle
    :param second: and of the other
    :return: what they are cosine and sine of, in either order; None where the names do not tell
    """
    for cosine, sine in ((first, second), (second, first)):
        of_cosine, of_sine = _COSINE.fullmatch(cosine), _SINE.fullmatch(sine)
        if of_cosine is not None and of_sine is not None:
            name = of_cosine["before"] or of_cosine["after"]
            if name and name == (of_sine["before"] or of_sine["after"]):
                return name
    return None


def is_sine(name: str) -> bool:
    """
    :param name: of one of two columns of which `angle_of` has found the angle
    """
    return _COSINE.fullmatch(name) is None
