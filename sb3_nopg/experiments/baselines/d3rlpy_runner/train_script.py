"""
Run by the interpreter that has d3rlpy: ``python train_script.py FOLDER`` reads ``data.npz`` and ``settings.json`` there,
trains, and writes the actor's layers to ``actor.npz``. It knows nothing of the rest of this package.
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

# As d3rlpy calls what DEVICES has.
_DEVICES = {"cpu": "cpu", "cuda": "cuda:0"}


def main(folder: pathlib.Path) -> None:
    """
    :param folder: with ``data.npz``, observations normalised and actions scaled to [-1, 1], and ``settings.json``
    """
    import d3rlpy  # type: ignore[import-not-found]

    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    if settings["device"] == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} of d3rlpy's environment sees no GPU")
    torch.set_num_threads(settings["n_threads"])
    with np.load(folder / "data.npz") as file:
        data = {name: file[name].astype(np.float32) for name in file.files}
    d3rlpy.seed(settings["seed"])
    algorithm = _make(d3rlpy, settings)
    algorithm.create_impl(data["observations"].shape[1:], data["actions"].shape[1])
    rng = np.random.default_rng(settings["seed"])
    n_steps, known = settings["n_steps"], data.pop("rows", np.arange(len(data["rewards"]))).astype(np.int64)
    on_gpu = _UpdatesOnGpu(d3rlpy, algorithm, data, settings["batch_size"]) if settings["device"] == "cuda" else None
    for step in range(1, n_steps + 1):
        rows = known[rng.integers(len(known), size=settings["batch_size"])]
        losses = on_gpu(rows) if on_gpu is not None else algorithm.update(_batch(d3rlpy, data, rows))
        if step % max(1, n_steps // 20) == 0:
            told = ", ".join(f"{name} {float(value):.4g}" for name, value in losses.items())
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


class _UpdatesOnGpu:
    """
    d3rlpy's updates, each recorded once and played back: one starts hundreds of small kernels, which keeps the processor
    busy for longer than the GPU. d3rlpy's own ``compile_graph`` records half of that, and needs a compiler.
    """

    def __init__(self, d3rlpy: Any, algorithm: Any, data: dict[str, np.ndarray], batch_size: int):
        from d3rlpy.algos.qlearning.torch import ddpg_impl  # type: ignore[import-not-found]

        # Losses stay tensors, and distributions are not checked: to read numbers would be to wait for them.
        ddpg_impl.asdict_as_float = lambda losses: {name: value.detach() for name, value in vars(losses).items()}
        torch.distributions.Distribution.set_default_validate_args(False)
        # d3rlpy lets a GPU round factors to ten bits; a processor does not.
        torch.set_float32_matmul_precision("highest")
        for part in vars(algorithm.impl.modules).values():
            if isinstance(part, d3rlpy.optimizers.OptimizerWrapper):
                for group in part.optim.param_groups:
                    group["capturable"] = True
        self.algorithm, self.make_batch, self.n_done = algorithm, d3rlpy.torch_utility.TorchMiniBatch, 0
        self.data = {name: torch.as_tensor(array, device=_DEVICES["cuda"]) for name, array in data.items()}
        self.rows = torch.zeros(batch_size, dtype=torch.int64, device=_DEVICES["cuda"])
        # TD3 and what follows from it leave the actor alone in some updates: one recording with it, and one without.
        self.actor_interval: int = getattr(algorithm.config, "update_actor_interval", 1)
        self.recordings: dict[bool, tuple[Any, dict[str, Any]]] = {}
        # Recording wants a stream other than the default, and for the updates before it the same one.
        self.stream = torch.cuda.Stream()

    def __call__(self, rows: np.ndarray) -> dict[str, Any]:
        """
        :param rows: of the batch, (batch_size,)
        :return: losses, which the next call overwrites
        """
        self.rows.copy_(torch.from_numpy(rows))
        with_actor = self.n_done % self.actor_interval == 0
        if self.n_done < 2 * self.actor_interval:
            # Makes gradients and the optimizers' moments, whose places in memory a recording holds.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                losses = self._update()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if with_actor not in self.recordings:
                self.recordings[with_actor] = self._record()
            graph, losses = self.recordings[with_actor]
            graph.replay()
        self.n_done += 1
        return losses

    def _update(self) -> dict[str, Any]:
        batch = {name: values[self.rows] for name, values in self.data.items()}
        batch |= {name: batch[name][:, None] for name in ("rewards", "terminals")}
        batch.setdefault("next_actions", torch.zeros_like(batch["actions"]))
        rest = {"returns_to_go": torch.zeros_like(batch["rewards"]), "intervals": torch.ones_like(batch["rewards"])}
        return self.algorithm.impl.update(self.make_batch(**batch, **rest, device=_DEVICES["cuda"]), self.n_done)

    def _record(self) -> tuple[Any, dict[str, Any]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream), _NumbersMadeOnGpu():
            losses = self._update()
        return graph, losses


class _NumbersMadeOnGpu(TorchFunctionMode):
    """Numbers that ``torch.tensor`` would copy there from the processor, which cannot be recorded, are made there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.tensor and args and isinstance(args[0], float):
            return torch.full((), *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _layers(policy: Any) -> dict[str, np.ndarray]:
    """Weights and biases of a network that ends in tanh, first layer first."""
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
    # Where the layers themselves give no numbers the training diverged, which whoever reads them says.
    if np.isfinite(values).all() and not difference < 1e-4:
        raise RuntimeError(f"the actor's layers do not act as d3rlpy's policy does: they differ by {difference}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
