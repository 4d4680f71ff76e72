"""Comma-separated text with named columns; numbers are written so that reading gives the same bits."""

import contextlib
import csv
import pathlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

import numpy as np

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.files import replacing
from sb3_nopg.data.files.files import unreadable
from sb3_nopg.data.files.limits import check_columns, check_size
from sb3_nopg.data.files.table_columns import Columns, find_columns
from sb3_nopg.data.files.tables import from_table, parse_description, to_table
from sb3_nopg.data.transitions import Transitions

#: first line of a file that `write` wrote, before its description; most programs can be told to skip it as a comment
MARK = "# sb3-nopg "
_LONGEST_LINE = 2**20
# Fields that are held as text at a time: some 60 MB, however many of them a row has.
_CHUNK = 10**6
# No name of an episode is longer; an array of texts would be as wide as its longest one, in every row.
_LONGEST_NAME = 1000
_ITEMSIZE = 8
# What other programs write for yes, no and nothing.
_WORDS = {"true": 1.0, "false": 0.0, "": np.nan}


def read(path: pathlib.Path, delimiter: str | None = None, **columns: Any) -> dict[str, Any]:
    """
    :param path: of a UTF-8 text whose first line names the columns
    :param delimiter: between fields, one character; None for comma, semicolon or tabulator, by the first
        line. Where it is no comma, numbers may have a decimal comma
    :param columns: see `sb3_nopg.data.files.table_columns.Columns`
    :return: arguments of `TransitionDataset`
    """
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"'):
        raise InputError("delimiter", f"{delimiter!r} is not one character", 'Use "," or ";" or a tabulator')
    try:
        check_size(path, "the text", path.stat().st_size)
        with open(path, encoding="utf-8-sig", newline="") as file:
            description, header, n_lines, delimiter = _read_head(path, file, delimiter)
            layout = find_columns(path, header, Columns(**columns), description)
            text_column = layout.single.get("episode_ids")
            guess = layout.time if layout.time_is_guess else None
            table = _read_columns(path, file, delimiter, header, n_lines, layout.needed, text_column, guess)
    except UnicodeError as error:
        raise InputError(str(path), f"not UTF-8 text ({one_line(error)})", "Save it as UTF-8") from error
    except InputError:
        raise
    except (OSError, csv.Error) as error:
        raise unreadable(path, "CSV table", error) from error
    return from_table(path, table, layout, description)


def _read_columns(
    path: pathlib.Path,
    file: TextIO,
    delimiter: str,
    header: list[str],
    n_lines: int,
    needed: list[str],
    text_column: str | None,
    guess: str | None,
) -> dict[str, np.ndarray]:
    """
    Rows are turned into columns of numbers a few at a time: as text, they would take ten times the memory. A column that is
    only guessed is left out where it holds none.
    """
    lines = _Lines(path, file)
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    rows = _whole_rows(path, reader, lines, len(header), n_lines)
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in needed}
    # Each name once, and the same text for all rows of its episode.
    names: dict[str, str] = {}
    n_rows, chunk_rows = 0, max(1, _CHUNK // (len(header) + 1))
    while chunk := list(islice(rows, chunk_rows)):
        fields = list(zip(*chunk, strict=True))
        if n_rows == 0 and guess is not None and not _any_number(fields[header.index(guess)], decimal_comma=delimiter != ","):
            needed = [name for name in needed if name != guess]
        for name in needed:
            texts = fields[header.index(name)]
            if name == text_column:
                pieces[name].append(_names(path, name, texts, fields[-1], names))
            else:
                pieces[name].append(_parse(path, name, texts, fields[-1], decimal_comma=delimiter != ","))
        n_rows += len(chunk)
        # "0," is two bytes of text and a number of eight.
        check_size(path, f"the first {n_rows:,} rows", n_rows * len(needed) * _ITEMSIZE)
    table = {name: np.concatenate(pieces.pop(name)) if pieces[name] else np.empty(0) for name in needed}
    if text_column is not None:
        # Names of episodes are mostly numbers, and those are kept as they are.
        with contextlib.suppress(ValueError, OverflowError):
            table[text_column] = table[text_column].astype(np.int64)
    return table


class _Lines:
    """
    Lines of a text, as long as a row has so much text as any row may.

    :param path: of the text, for the message
    :param file: the text, behind its head
    """

    def __init__(self, path: pathlib.Path, file: TextIO):
        self._path, self._file = path, file
        self._length = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(_LONGEST_LINE):
            # A row may have several lines, where quotes hold a line's end.
            self._length += len(line)
            if self._length >= _LONGEST_LINE:
                raise InputError(
                    str(self._path), f"a row is longer than {_LONGEST_LINE:,} characters", "Give one row for each transition"
                )
            yield line

    def end_row(self) -> None:
        """The next line is another row's."""
        self._length = 0


def _whole_rows(path: pathlib.Path, reader: Any, lines: _Lines, n_fields: int, n_lines: int) -> Iterator[list[str]]:
    """Rows with the number of their line as one more field; blank lines are left out."""
    for row in reader:
        lines.end_row()
        if not row:
            continue
        line = n_lines + reader.line_num
        if len(row) != n_fields:
            commas = "Write decimal points, or put semicolons between the fields" if len(row) > n_fields else ""
            raise InputError(
                str(path),
                f"line {line} has {len(row)} fields where the first line names {n_fields}",
                commas or "Repair or remove it",
            )
        row.append(str(line))
        yield row


def _names(path: pathlib.Path, name: str, texts: Sequence[str], lines: Sequence[str], known: dict[str, str]) -> np.ndarray:
    """References to texts, eight bytes each."""
    found = np.empty(len(texts), dtype=object)
    for index, text in enumerate(texts):
        if len(text) > _LONGEST_NAME:
            raise InputError(
                str(path),
                f"column {name!r} names an episode by {len(text):,} characters, in line {lines[index]}",
                f"Use names of at most {_LONGEST_NAME:,}",
            )
        found[index] = known.setdefault(text, text)
    return found


def _parse(path: pathlib.Path, name: str, texts: Sequence[str], lines: Sequence[str], *, decimal_comma: bool) -> np.ndarray:
    """Numbers exactly as Python reads them; an empty field is NaN, and refused later with all others."""
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        pass
    numbers = np.empty(len(texts))
    for index, text in enumerate(texts):
        try:
            numbers[index] = _number(text, decimal_comma)
        except ValueError as error:
            raise InputError(
                str(path),
                f"column {name!r} holds {text!r:.60} where a number should be, in line {lines[index]}",
                "Repair or remove it",
            ) from error
    return numbers


def _number(text: str, decimal_comma: bool) -> float:
    word = text.strip().lower()
    # 1,5 is a number where commas do not separate; 1,234.5 is none.
    with_point = word.replace(",", ".") if decimal_comma and "." not in word else word
    return _WORDS[word] if word in _WORDS else float(with_point)


def _any_number(texts: Sequence[str], *, decimal_comma: bool) -> bool:
    for text in texts:
        with contextlib.suppress(ValueError):
            if not np.isnan(_number(text, decimal_comma)):
                return True
    return False


def _read_head(path: pathlib.Path, file: TextIO, delimiter: str | None) -> tuple[dict[str, Any], list[str], int, str]:
    """Description, column names, how many lines they took, and what is between the fields."""
    line, n_lines, description = _line(path, file), 1, {}
    if line.startswith(MARK):
        description = parse_description(path, line.removeprefix(MARK))
        line, n_lines = _line(path, file), 2
    if delimiter is None:
        delimiter = max(",;\t", key=line.count)
    header = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    if not any(header):
        raise InputError(str(path), "the file is empty, or its first line names no columns", "Name each column there")
    check_columns(path, "the first line", len(header))
    if len(header) == 1:
        for other in ";\t":
            if other in line and other != delimiter:
                raise InputError(str(path), f"fields are separated by {other!r}", f"Pass delimiter={other!r} (--delimiter)")
    if all(_is_number(name) for name in header):
        raise InputError(str(path), f"its first line, {line.strip()[:40]!r}, holds numbers", "Put a line of names above it")
    twice = sorted({name for name in header if header.count(name) > 1}) if len(set(header)) < len(header) else []
    if twice:
        raise InputError(str(path), f"more than one column is named {twice[0]!r}", "Give each column a name of its own")
    return description, header, n_lines, delimiter


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _line(path: pathlib.Path, file: TextIO) -> str:
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE:
        raise InputError(
            str(path),
            f"its first line is longer than {_LONGEST_LINE:,} characters",
            "Give one row for each transition; a transposed table looks like this",
        )
    return line


def write(dataset: Transitions, path: pathlib.Path) -> None:
    """
    :param dataset: the data
    :param path: file to write
    """
    table, description = to_table(dataset)
    # tolist() makes Python's numbers, whose text is the shortest that reads as the same bits.
    columns = [(column.astype(np.int64) if column.dtype == bool else column).tolist() for column in table.values()]
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        file.write(f"{MARK}{description}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*columns, strict=True))
