"""What a model of the system has found in the data, in words."""

from collections.abc import Sequence
from typing import Protocol

from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.choices import Choices
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.nodes import NodeMaps
from sb3_nopg.dynamics.regression import targets_of_each
from sb3_nopg.dynamics.rewards import GivenReward, RewardModel


class Described(Protocol):
    """A model of a system, as far as there are words for it."""

    @property
    def coordinates(self) -> Coordinates: ...
    @property
    def choices(self) -> Choices: ...
    @property
    def nodes(self) -> NodeMaps: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def reward(self) -> RewardModel | None: ...


def described(model: Described, names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """
    :param model: of a system
    :param names: of the observation's columns
    :return: what each line is about, and the line
    """
    choices = model.choices
    lines = [
        ("coordinates", ", ".join(_coordinates(model, names))),
        ("bandwidth", _bandwidths(model, names)),
        ("earlier steps", _earlier(choices.n_earlier_steps)),
    ]
    if any(kernel.form.turning for kernel in choices.kernels):
        lines.append(("control", "actions follow from states: what they do is one formula, with sines and cosines of angles"))
    if choices.products:
        lines.append(("actions", "their products count too: the system is not affine in them"))
    if choices.held:
        lines.append(("dry friction", _friction(model, names)))
    if choices.stops:
        lines.append(("stops", _stops(model, names)))
    lines.append(("unexplained", _unexplained(model)))
    lines.append(("the task ends", _ends(model, names)))
    lines.append(("nodes", f"{len(model.nodes):,}"))
    return lines


def _coordinates(model: Described, names: Sequence[str] | None) -> list[str]:
    coordinates = model.coordinates
    around = [" (all around)" if whole else "" for whole in coordinates.round.tolist()]
    return [f"{name}{told}" for name, told in zip(coordinates.names(names), around, strict=True)]


def _bandwidths(model: Described, names: Sequence[str] | None) -> str:
    every, kernels = model.coordinates.names(names), model.choices.kernels
    if model.choices.is_affine:
        known = ", believed beyond the recorded range" if model.choices.exact else ""
        beside = ", but for friction" if model.choices.held else ""
        return f"∞: one affine model of all states{beside}{known}"
    found = []
    for kernel, targets in targets_of_each(kernels).items():
        of = "" if len(targets) == len(kernels) else f" for {' and '.join(every[number] for number in targets)}"
        if kernel.is_affine:
            found.append(f"∞{of}")
            continue
        local = [name for number, name in enumerate(every) if number not in kernel.form.everywhere]
        found.append(f"{kernel.bandwidth:g} standard deviations of {' and '.join(local)}{of}")
    return f"{'; '.join(found)}; affine in all else"


def _earlier(n: int) -> str:
    if not n:
        return "none counts: what follows depends on state and action alone"
    return f"{n} {'counts' if n == 1 else 'count'}, by action and change: the state alone does not say enough"


def _friction(model: Described, names: Sequence[str] | None) -> str:
    every = model.coordinates.names(names)
    return ", ".join(f"holds {every[held.coordinate]} below about {held.size:.2g}" for held in model.choices.held)


def _stops(model: Described, names: Sequence[str] | None) -> str:
    every = model.coordinates.names(names)
    return ", ".join(
        f"{every[stop.coordinate]} goes no {'higher' if stop.above else 'lower'} than {stop.value:.3g}"
        for stop in model.choices.stops
    )


def _unexplained(model: Described) -> str:
    text = f"{_percent(model.choices.unexplained)} of the changes' variance, where the episode was left out"
    if isinstance(model.reward, GivenReward):
        return f"{text}; the reward is given"
    return f"{text}; {_percent(model.choices.reward.unexplained)} of the reward's"


def _ends(model: Described, columns: Sequence[str] | None) -> str:
    bounds, names = model.bounds, model.coordinates.names(columns)
    found = []
    for side, flags, edges in (("below", bounds.ends_low, bounds.low), ("above", bounds.ends_high, bounds.high)):
        # Towards the edge from a little inside of it: an angle may count the other way round.
        inside = edges + (1e-3 if side == "below" else -1e-3)
        pairs = (model.coordinates.shown(ends.cpu().numpy(), columns).tolist() for ends in (edges, inside))
        for name, ends, edge, before in zip(names, flags.tolist(), *pairs, strict=True):
            if ends:
                found.append(f"{'below' if before > edge else 'above'} {edge:.3g} in {name}")
    limited = bounds.limit_columns[bounds.limits.isfinite().any(dim=1)].tolist()
    if limited:
        known = columns or model.coordinates.columns
        unnamed = f"{len(limited)} column{'s' if len(limited) > 1 else ''}"
        found.append(f"at the limits of {unnamed if known is None else ' and '.join(known[i] for i in limited)}")
    return ", ".join(found) if found else "nowhere, as far as the data show"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
