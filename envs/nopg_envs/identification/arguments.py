"""What the commands ``fidelity`` and ``identify`` take: parameters by name, recordings with the angle's zero put right."""

from pathlib import Path

from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.command_line import UsageError
from nopg_envs.identification.recordings import Recording, angle_zero, read_recording


def parameters_named(text: str) -> CartPoleParameters:
    """
    :param text: name of a parameter set, or path of a YAML file
    """
    if text in PARAMETER_SETS:
        return PARAMETER_SETS[text]
    if not Path(text).is_file():
        raise UsageError(f"{text!r} is neither a parameter set ({', '.join(PARAMETER_SETS)}) nor a YAML file")
    try:
        return CartPoleParameters.load(text)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def read_all(paths: list[str], *, raw_angle: bool) -> tuple[list[Recording], list[float]]:
    """
    :param paths: of recordings
    :param raw_angle: leave the encoder's zero as it is
    :return: recordings with the angle's zero put right, and by how much, rad
    """
    recordings = [read_recording(path) for path in paths]
    zeros = [0.0 if raw_angle else angle_zero(recording) for recording in recordings]
    return [recording.with_angle_zero(zero) for recording, zero in zip(recordings, zeros, strict=True)], zeros


def note_on_zeros(recordings: list[Recording], zeros: list[float], *, raw_angle: bool) -> str | None:
    """
    :param recordings: that were read
    :param zeros: of their angles, rad
    :param raw_angle: whether no zero was looked for
    :return: which recordings could not tell the zero of their angle, if any
    """
    # An estimate is never exactly zero.
    unknown = [recording.name for recording, zero in zip(recordings, zeros, strict=True) if zero == 0.0]
    if raw_angle or not unknown:
        return None
    return f"Note: the pole moves too little to estimate the angle's zero, 0 is used: {', '.join(unknown)}"
