"""Names of tools, as models write them."""

from __future__ import annotations

import re

LONGEST_NAME = 256
"""Characters; what is longer is no name."""

NAME = re.compile(r"[^\s<>{}\[\]()\"'`,;=]+")


def is_name(text: str) -> bool:
    """Whether ``text`` can be the name of a tool."""
    return len(text) <= LONGEST_NAME and bool(NAME.fullmatch(text)) and _is_unicode(text)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
