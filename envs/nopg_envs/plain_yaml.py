"""YAML files of settings, written by people: small, every field given once, and nothing that grows when it is read."""

import os
from pathlib import Path
from typing import Any

import yaml

# The longest file that comes with the package has a kilobyte.
LARGEST_FILE_BYTES = 2**18


class _PlainLoader(yaml.SafeLoader):
    """
    YAML in which a field that is given twice is an error: with 5 V above and 50 V below, nobody knows what is meant. So are
    aliases: a dozen lines of them stand for more text than any computer holds.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()
            raise yaml.constructor.ConstructorError(
                problem=f"*{event.anchor} is an alias; write out what it stands for", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str | int | float):
                raise yaml.constructor.ConstructorError(problem="a field needs a name", problem_mark=key.start_mark)
            if name in seen:
                raise yaml.constructor.ConstructorError(problem=f"{name} is given twice", problem_mark=node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """
    :param path: of a file
    :return: what is in it
    :raises ValueError: one line that says why it cannot be used, and does not name the file
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
        if len(content) > LARGEST_FILE_BYTES:
            raise ValueError(f"longer than {LARGEST_FILE_BYTES:,} bytes, no file of settings is")
        return yaml.load(content.decode("utf-8"), _PlainLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not a readable YAML file: {error}") from error
