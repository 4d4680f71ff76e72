"""Docstrings for Sphinx: ours hold mathematics and, in environments, Gymnasium's Markdown; both confuse its parser."""

import re

# Sections of an environment's docstring, which stand on the page of environments.
_MARKDOWN_SECTION = re.compile(r"^## ")
_FIELD = re.compile(r"^:(param|return|raises)\b")
_LITERAL = re.compile(r"(``.+?``|:\w+:`[^`]+`)")
# One backquote is the name of something, two are a literal, which is how it shall look.
_SINGLE_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def to_restructured_text(lines: list[str]) -> list[str]:
    """
    :param lines: of a docstring, without its indentation
    :return: the same as reStructuredText without traps
    """
    result: list[str] = []
    in_markdown, in_table, in_formula = False, False, False
    for line in lines:
        if _MARKDOWN_SECTION.match(line):
            in_markdown = True
        elif _FIELD.match(line):
            in_markdown = False
        # A table of Markdown would be a block of lines.
        in_table = line.startswith("| ")
        if in_markdown or in_table:
            continue
        is_indented = line.startswith("    ")
        after_blank = not result or not result[-1].strip()
        if is_indented and after_blank and not in_formula and not _inside_field(result):
            # What is indented below a paragraph is a formula or a command, to be shown as it is.
            result += ["::", ""]
            in_formula = True
        elif line.strip() and not is_indented:
            in_formula = False
        result.append(line if in_formula else _escaped(line))
    return result


def _inside_field(result: list[str]) -> bool:
    """Whether the last paragraph is one of a parameter, whose continuation is indented too."""
    paragraphs = [line for line in result if line.strip() and not line.startswith(" ")]
    return bool(paragraphs) and bool(_FIELD.match(paragraphs[-1])) and bool(result[-1].strip())


def _escaped(line: str) -> str:
    parts = _LITERAL.split(line)
    return "".join(part if _LITERAL.fullmatch(part) else _escape_text(part) for part in parts)


def _escape_text(text: str) -> str:
    text = _SINGLE_QUOTED.sub(r"``\1``", text)
    pieces = re.split(r"(``.+?``)", text)
    return "".join(piece if piece.startswith("``") else piece.replace("|", r"\|").replace("_ ", r"\_ ") for piece in pieces)
