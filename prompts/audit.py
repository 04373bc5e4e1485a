"""A prompt for a chat model that reviews a prompt template for what keeps it from being reused."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from radixserve.prompts.layout import Message

INSTRUCTIONS = (files("radixserve.prompts") / "audit.md").read_text(encoding="utf-8").strip()


def audit_messages(template: str, *, requests: Sequence[str] = ()) -> list[Message]:
    """Chat messages that ask for a review of ``template``.

    Args:
        requests: Prompts that it has made, if some are at hand: what differs between them is no
            guess then.
    """
    parts = [f"<template>\n{template}\n</template>"]
    parts += [f"<request>\n{request}\n</request>" for request in requests]
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": "\n\n".join(parts)},
    ]
