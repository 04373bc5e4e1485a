"""The form of an answer that has to be a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from radixserve.text.parsing.formats import ToolFormat
from radixserve.text.parsing.tagged_call import Schemas

ANY_ARGUMENTS = {"type": "object"}
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""That of the JSON which models learn; a free choice could go on in white space for ever."""


def calls_grammar(
    style: ToolFormat,
    schemas: Schemas,
    special: Mapping[str, int],
    *,
    parallel: bool = True,
    reasoning_end: str | None = None,
) -> str | None:
    """A grammar in Lark, in llguidance's dialect, of an answer that is nothing but calls.

    Args:
        style: How the model writes calls.
        schemas: The schema of the arguments of each tool that may be called.
        special: Ids of the model's special tokens by their texts: a grammar of characters has none.
        parallel: Whether there may be more than one call.
        reasoning_end: What ends the reasoning that the prompt has begun, if it has.

    Returns:
        None if such a form cannot be told for this style.
    """
    if not style.call:
        return None
    rules = [f"call: {' | '.join(f'call_{place}' for place in range(len(schemas)))}"]
    for place, (name, schema) in enumerate(schemas.items()):
        head, tail = style.call.replace("$name", name).split("$arguments")
        parts = [_spelled(head, special), f"arguments_{place}", _spelled(tail, special)]
        rules.append(f"call_{place}: {' '.join(filter(None, parts))}")
        spaced: dict[str, Any] = {**(schema or ANY_ARGUMENTS), "x-guidance": SPACING}
        rules.append(f"arguments_{place}: %json {json.dumps(spaced)}")
    more = f"({_spelled(style.between, special)} call)*" if parallel else ""
    parts = [_spelled(style.before, special), "call", more, _spelled(style.after, special)]
    if reasoning_end is not None:
        parts.insert(0, f"reasoning {_spelled(reasoning_end, special)} /\\n*/")
        rules.append("reasoning: /(?s:.*)/")
    return "\n".join([f"start: {' '.join(filter(None, parts))}", *rules])


def _spelled(text: str, special: Mapping[str, int]) -> str:
    """``text`` as terms of a grammar: literals, and special tokens by their ids."""
    if not special:
        return _literal(text)
    longest_first = sorted(special, key=lambda each: (-len(each), each))
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    terms = [f"<[{special[each]}]>" if each in special else _literal(each) for each in pieces]
    return " ".join(filter(None, terms))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
