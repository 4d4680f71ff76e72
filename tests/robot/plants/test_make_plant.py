"""Which plant the connection of a rig file gets."""

from typing import get_args

import pytest
from pydantic import BaseModel

from nopg_robot.plants import make_plant, open_rig
from nopg_robot.rig.file import RigFile, shipped_rigs
from nopg_robot.rig.sections import Connection

KINDS: tuple[type[BaseModel], ...] = get_args(get_args(Connection)[0])
EXAMPLES = {rig.connection.plant: rig for rig in map(RigFile.load, shipped_rigs())}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_connection_has_an_example_and_a_plant_of_its_name(kind: type[BaseModel]):
    (name,) = get_args(kind.model_fields["plant"].annotation)
    example = EXAMPLES[name]
    assert isinstance(example.connection, kind)
    assert make_plant(example).name == name


@pytest.mark.parametrize("plant", ["rig", "auto"])
def test_a_forgotten_kind_gets_no_other_plant_and_no_simulation(plant: str):
    rig = EXAMPLES["serial"]
    unknown = rig.model_copy(update={"connection": rig.connection.model_copy(update={"plant": "pigeon"})})
    with pytest.raises(NotImplementedError, match="make_plant knows no 'pigeon'"):
        open_rig(unknown, plant)
