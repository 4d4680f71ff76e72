"""What the tests of the documentation read: pages, and the blocks in them."""

import re
import textwrap

from helpers.repository import REPOSITORY

README = REPOSITORY / "README.md"
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
# Blocks may be indented, as within a list.
_BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)


def blocks(text: str, *languages: str) -> list[str]:
    """
    :param text: Markdown
    :param languages: of the blocks wanted; ``""`` for blocks that name none
    """
    return [textwrap.dedent(match[3]) for match in _BLOCK.finditer(text) if match[2] in languages]


def command_lines(text: str) -> list[str]:
    """
    :param text: Markdown
    :return: lines of its console blocks and of blocks without a language, without prompts and comments
    """
    lines = [line.removeprefix("$ ") for block in blocks(text, "console", "") for line in block.splitlines()]
    return [line.split("  #")[0].split(" # ")[0].strip() for line in lines if line.strip()]
