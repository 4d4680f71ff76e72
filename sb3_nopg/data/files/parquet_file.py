"""Parquet tables with named columns."""

import pathlib
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.files.files import optional_module, unreadable
from sb3_nopg.data.files.limits import check_columns, check_size
from sb3_nopg.data.files.table_columns import Columns, find_columns
from sb3_nopg.data.files.tables import from_table, parse_description, to_table
from sb3_nopg.data.transitions import Transitions

_KEY = b"sb3_nopg"
_ITEMSIZE = 8


def read(path: pathlib.Path, **columns: Any) -> dict[str, Any]:
    """
    :param path: of a table
    :param columns: see `sb3_nopg.data.files.table_columns.Columns`
    :return: arguments of `TransitionDataset`
    """
    pyarrow = optional_module("pyarrow", path)
    parquet = optional_module("pyarrow.parquet", path)
    try:
        with open(path, "rb") as stream, parquet.ParquetFile(stream) as file:
            check_columns(path, "the table", file.metadata.num_columns)
            names = list(file.schema_arrow.names)
            described = (file.schema_arrow.metadata or {}).get(_KEY)
            description = {} if described is None else parse_description(path, described)
            layout = find_columns(path, names, Columns(**columns), description)
            # A column that holds one value all along takes a few bytes on disk, whatever its length.
            check_size(path, "the table", file.metadata.num_rows * len(layout.needed) * _ITEMSIZE)
            content = file.read(columns=layout.needed)
            table = {name: np.asarray(content.column(name).to_numpy()) for name in layout.needed}
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, "Parquet table", error) from error
    return from_table(path, table, layout, description)


def write(dataset: Transitions, path: pathlib.Path) -> None:
    """
    :param dataset: the data
    :param path: file to write
    """
    pyarrow = optional_module("pyarrow", path)
    parquet = optional_module("pyarrow.parquet", path)
    table, description = to_table(dataset)
    content = pyarrow.table({name: np.ascontiguousarray(column) for name, column in table.items()})
    with replacing(path) as partial:
        parquet.write_table(content.replace_schema_metadata({_KEY: description.encode()}), partial)
