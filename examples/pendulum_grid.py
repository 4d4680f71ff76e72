"""
From 800 recorded transitions to a pendulum that swings up, with a look at what is predicted before anything moves.

    python examples/pendulum_grid.py [--output runs/demo] [--updates 300] [--seed 0]

Writes the value function and the state distribution before and after learning, the swing-up itself, the model and the log.
"""

import argparse
import time
from pathlib import Path

import gymnasium as gym
import matplotlib
import numpy as np
from stable_baselines3.common.logger import configure

import nopg_envs
from sb3_nopg import NOPG, TransitionDataset

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GAMMA = 0.97


def portraits(model: NOPG) -> dict[str, np.ndarray]:
    """Value and state distribution over the plane of angle and angular velocity."""
    angle, velocity = np.meshgrid(np.linspace(-np.pi, np.pi, 101), np.linspace(-8, 8, 81))
    states = np.column_stack([np.cos(angle.ravel()), np.sin(angle.ravel()), velocity.ravel()])
    return {
        "value": model.value(states).reshape(angle.shape),
        "state distribution": model.state_distribution(states).reshape(angle.shape),
    }


def swing_up(model: NOPG, env: gym.Env) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :return: observations, actions and rewards of one episode from hanging
    """
    observation, _ = env.reset()
    record, done = [], False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        next_observation, reward, terminated, truncated, _ = env.step(action)
        record.append((observation, action, reward))
        observation, done = next_observation, terminated or truncated
    observations, actions, rewards = (np.array(column) for column in zip(*record, strict=True))
    return observations, actions, rewards


def draw_portraits(before: dict[str, np.ndarray], after: dict[str, np.ndarray], path: np.ndarray, file: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for row, name in zip(axes, before, strict=True):
        low, high = min(before[name].min(), after[name].min()), max(before[name].max(), after[name].max())
        # Visits differ by orders of magnitude: the square root shows the path as well as where it ends.
        norm = matplotlib.colors.PowerNorm(0.5 if name == "state distribution" else 1.0, low, high)
        for axis, picture, when in zip(row, (before[name], after[name]), ("before", "after"), strict=True):
            image = axis.imshow(
                picture, origin="lower", extent=(-np.pi, np.pi, -8, 8), aspect="auto", norm=norm, interpolation="bilinear"
            )
            axis.set_title(f"{name} {when} learning")
        figure.colorbar(image, ax=row)
    axes[1, 1].plot(path[:, 0], path[:, 1], ".", color="white", markersize=2, label="what then happened")
    axes[1, 1].legend(loc="upper right", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("angle from upright, rad")
    for axis in axes[:, 0]:
        axis.set_ylabel("angular velocity, rad/s")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def draw_swing_up(angles: np.ndarray, actions: np.ndarray, step_s: float, file: Path) -> None:
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(10, 5), sharex=True, layout="constrained")
    seconds = step_s * np.arange(len(angles))
    upper.plot(seconds, angles, ".", markersize=3)
    upper.axhline(0.0, color="gray", linewidth=0.5)
    upper.set_ylabel("angle from upright, rad")
    lower.step(seconds, actions[:, 0], where="post")
    lower.set(ylabel="torque, N m", xlabel="time, s")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder to write to")
    parser.add_argument("--updates", type=int, default=300, help="policy updates")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)

    env = gym.make("nopg/Pendulum-v0")
    data = TransitionDataset(**nopg_envs.grid(env, levels=(20, 20, 2)))
    print(f"{data}\n")
    hanging = np.array([-1.0, 0.0, 0.0])
    model = NOPG("MlpPolicy", env, gamma=GAMMA, dataset=data, initial_states=hanging, seed=arguments.seed, device="cpu")
    model.set_logger(configure(str(output), ["csv"]))
    before, return_before = portraits(model), model.estimated_return()

    start = time.perf_counter()
    model.learn(arguments.updates, progress_bar=True)
    seconds = time.perf_counter() - start
    after, predicted = portraits(model), model.estimated_return()

    observations, actions, rewards = swing_up(model, env)
    actual = float(np.sum(GAMMA ** np.arange(len(rewards)) * rewards))
    angles = np.arctan2(observations[:, 1], observations[:, 0])
    draw_portraits(before, after, np.column_stack([angles, observations[:, 2]]), output / "portraits.png")
    draw_swing_up(angles, actions, env.unwrapped.dt, output / "swing_up.png")
    model.save(output / "model")

    print(f"\n{arguments.updates} updates on {len(data)} transitions took {seconds:.1f} s")
    print(f"predicted discounted return   {return_before:8.1f} before learning, {predicted:.1f} after")
    print(f"actual discounted return      {actual:8.1f}")
    print(f"actual return over {len(rewards)} steps {rewards.sum():8.1f}   (the paper reports -579 for this data)")
    print(f"{output}/: portraits.png, swing_up.png, model.zip, progress.csv")


if __name__ == "__main__":
    main()
