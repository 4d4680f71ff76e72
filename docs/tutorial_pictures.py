"""
The pictures of the tutorial's sections 5 to 8, from what its own blocks compute: ``python docs/tutorial_pictures.py``.

The picture of the report is Chromium's; without Chromium it stays as it is.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

PAGE = Path(__file__).with_name("tutorial.md")
PICTURES = Path(__file__).with_name("pictures")
PERIOD_S = 0.02
# Pixels: as wide as the page of a report, and down to the first of its pictures.
WINDOW = "1040,1200"


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        # The blocks write into the current folder.
        os.chdir(folder)
        known: dict[str, Any] = {}
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
            exec(compile(block, PAGE.name, "exec"), known)
        for name, draw in (("policy", draw_policy), ("followed", draw_followed), ("flown", draw_flown)):
            figure = draw(known)
            figure.savefig(PICTURES / f"tutorial_{name}.png", dpi=100)
            plt.close(figure)
        if chromium is not None:
            picture, page = PICTURES / "tutorial_report.png", Path("report.html").absolute().as_uri()
            options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile")
            subprocess.run(
                [chromium, *options, f"--window-size={WINDOW}", f"--screenshot={picture}", page],
                check=True,
                capture_output=True,
            )


def draw_policy(known: dict[str, Any]) -> Figure:
    """Volts over angle and speed, and the steps that were recorded."""
    data, model = known["learn_from"], known["model"]
    (low, slow), (high, fast) = data.observations.min(axis=0), data.observations.max(axis=0)
    angles, speeds = np.meshgrid(np.linspace(low, high, 81), np.linspace(slow, fast, 61))
    volts, _ = model.predict(np.stack([angles.ravel(), speeds.ravel()], axis=1), deterministic=True)
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    painted = axes.pcolormesh(angles, speeds, volts.reshape(angles.shape), cmap="RdBu", vmin=-6, vmax=6, shading="gouraud")
    axes.plot(*data.observations.T, ".", color="black", markersize=1.5, alpha=0.5)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=0.8)
    axes.set(xlabel="angle [rad]", ylabel="speed [rad/s]")
    figure.colorbar(painted, label="u [V]")
    return figure


def draw_followed(known: dict[str, Any]) -> Figure:
    """The angle along the trajectories through the model, from each start."""
    states = known["paths"].states
    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
    times = PERIOD_S * np.arange(len(states))
    for number, start in enumerate(known["starts"]):
        axes.plot(times, states[:, number, 0], label=f"from {start[0]:g} rad")
    axes.axhline(1.0, color="black", linestyle="--", linewidth=0.8)
    axes.set(xlabel="time [s]", ylabel="predicted angle [rad]")
    axes.legend(frameon=False)
    return figure


def draw_flown(known: dict[str, Any]) -> Figure:
    """The arm itself, from hanging, with the voltage that it gets."""
    angle, speed, rows = 0.0, 0.0, []
    for _ in range(100):
        action, _ = known["model"].predict(np.array([angle, speed]), deterministic=True)
        rows.append((angle, float(action[0])))
        angle, speed = known["moved"](angle, speed, float(action[0]))
    figure, panels = plt.subplots(2, sharex=True, figsize=(7.5, 3.8), layout="constrained")
    times = PERIOD_S * np.arange(len(rows))
    predicted = known["paths"].states[:100, 0, 0]
    panels[0].plot(times, [row[0] for row in rows], label="the arm")
    panels[0].plot(times, predicted, linestyle=":", color="black", label="predicted")
    panels[0].axhline(1.0, color="black", linestyle="--", linewidth=0.8)
    panels[0].set_ylabel("angle [rad]")
    panels[0].legend(frameon=False)
    panels[1].step(times, [row[1] for row in rows], where="post", color="tab:red")
    panels[1].set(xlabel="time [s]", ylabel="u [V]")
    return figure


if __name__ == "__main__":
    main()
