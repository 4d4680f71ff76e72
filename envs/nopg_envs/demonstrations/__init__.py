"""
Demonstration sets that come with the package, by name.

``mountain_car_scripted`` was recorded by a program, :mod:`nopg_envs.demonstrations.scripted_operator`, and not by a person.
How a person or a program records one is in the modules beside this one.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "data"


def names() -> list[str]:
    """Of the demonstration sets that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def demonstration_file(name: str) -> Path:
    """
    :param name: of a demonstration set
    :return: its file, which ``TransitionDataset.load`` takes
    """
    if name not in names():
        raise ValueError(f"demonstrations: {name!r} is unknown; known are {', '.join(names())}")
    return FOLDER / f"{name}.npz"
