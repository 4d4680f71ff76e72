"""Memory that is used again: fresh pages cost more than the arithmetic whose results they are for."""

import math

import torch as th


class Workspace:
    """
    Arrays by name, for work that is done block by block. What is written to one stays until somebody asks for the same name:
    two threads must not share a workspace. A copy starts empty.

    :param like: has their type and device
    """

    def __init__(self, like: th.Tensor):
        self._like = like
        self._arrays: dict[str, th.Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_like": self._like.new_empty(0), "_arrays": {}}

    def array(self, name: str, *shape: int) -> th.Tensor:
        """
        :param name: of what is kept there
        :param shape: as wanted
        :return: with anything in it
        """
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.numel() < size:
            array = self._arrays[name] = th.empty(size, dtype=self._like.dtype, device=self._like.device)
        return array[:size].view(shape)
