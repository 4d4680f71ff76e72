"""
Run by the interpreter that has d3rlpy: ``python train_script.py FOLDER`` reads ``data.npz`` and ``settings.json`` there,
trains, and writes the actor's layers to ``actor.npz``. It knows nothing of the rest of this package.
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np

# As d3rlpy calls what DEVICES has.
_DEVICES = {"cpu": "cpu", "cuda": "cuda:0"}


def main(folder: pathlib.Path) -> None:
    """
    :param folder: with ``data.npz``, observations normalised and actions scaled to [-1, 1], and ``settings.json``
    """
    import d3rlpy  # type: ignore[import-not-found]
    import torch

    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    torch.set_num_threads(settings["n_threads"])
    with np.load(folder / "data.npz") as file:
        data = {name: file[name].astype(np.float32) for name in file.files}
    d3rlpy.seed(settings["seed"])
    algorithm = _make(d3rlpy, settings)
    algorithm.create_impl(data["observations"].shape[1:], data["actions"].shape[1])
    rng = np.random.default_rng(settings["seed"])
    n_steps, known = settings["n_steps"], data.pop("rows", np.arange(len(data["rewards"]))).astype(np.int64)
    for step in range(1, n_steps + 1):
        rows = known[rng.integers(len(known), size=settings["batch_size"])]
        losses = algorithm.update(_batch(d3rlpy, data, rows))
        if step % max(1, n_steps // 20) == 0:
            told = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
            sys.stdout.write(f"step {step} of {n_steps}: {told}\n")
            sys.stdout.flush()
    layers = _layers(algorithm.impl.policy)
    _check(layers, algorithm, data["observations"][:256])
    np.savez(folder / "actor.npz", **layers)  # type: ignore[arg-type]


def _make(d3rlpy: Any, settings: dict[str, Any]) -> Any:
    name = {"iql": "IQLConfig", "td3_bc": "TD3PlusBCConfig", "cql": "CQLConfig", "rebrac": "ReBRACConfig"}
    config, units = getattr(d3rlpy.algos, name[settings["algorithm"]]), list(settings["hidden_units"])
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=units)
    of_critics = d3rlpy.models.VectorEncoderFactory(hidden_units=units, use_layer_norm=settings["critic_layer_norm"])
    encoders = {"actor_encoder_factory": encoder, "critic_encoder_factory": of_critics}
    if settings["algorithm"] == "iql":
        encoders["value_encoder_factory"] = encoder
    own = {"batch_size": settings["batch_size"], "gamma": settings["gamma"], **settings["changes"]}
    # compile_graph stays off: its graphs of a GPU's work need torch.compile, and a compiler there.
    return config(**encoders, **own).create(device=_DEVICES[settings["device"]])


def _batch(d3rlpy: Any, data: dict[str, np.ndarray], rows: np.ndarray) -> Any:
    """Made here from rows: d3rlpy's own data sets want episodes, and drop the last step of each that was cut."""
    from d3rlpy.dataset import TransitionMiniBatch  # type: ignore[import-not-found]

    column = {name: data[name][rows, None] for name in ("rewards", "terminals")}
    return TransitionMiniBatch(
        observations=data["observations"][rows],
        actions=data["actions"][rows],
        next_observations=data["next_observations"][rows],
        # Of no use to one-step methods.
        next_actions=data["next_actions"][rows] if "next_actions" in data else np.zeros_like(data["actions"][rows]),
        intervals=np.ones_like(column["rewards"]),
        transitions=[],
        **column,
    )


def _layers(policy: Any) -> dict[str, np.ndarray]:
    """Weights and biases of a network that ends in tanh, first layer first."""
    import torch

    linear = [
        module
        for name, module in policy.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith("_logstd")
    ]
    layers: dict[str, np.ndarray] = {}
    for index, layer in enumerate(linear):
        layers[f"weight_{index}"] = layer.weight.detach().cpu().numpy()
        layers[f"bias_{index}"] = layer.bias.detach().cpu().numpy()
    return layers


def _check(layers: dict[str, np.ndarray], algorithm: Any, observations: np.ndarray) -> None:
    """The layers alone must act as d3rlpy says that its policy acts."""
    values, n_layers = observations, len(layers) // 2
    for index in range(n_layers):
        values = values @ layers[f"weight_{index}"].T + layers[f"bias_{index}"]
        values = np.tanh(values) if index == n_layers - 1 else np.maximum(values, 0.0)
    difference = float(np.abs(values - algorithm.predict(observations)).max())
    if not difference < 1e-4:
        raise RuntimeError(f"the actor's layers do not act as d3rlpy's policy does: they differ by {difference}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
