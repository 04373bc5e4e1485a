"""What to do about a place that varies."""

from __future__ import annotations

ADVICE = {
    "timestamp": "Put the time into the last message, or round it to what the task needs.",
    "uuid": "Leave the id out of the prompt, or put it into the last message.",
    "random_id": "Leave the id out of the prompt, or put it into the last message.",
    "number": "Put what counts up into the last message.",
    "tool_order": "Sort the tools by name; radixserve serve --canonical tools does.",
    "tools_changed": "Send the same tools in every request, and say which may be called by "
    "tool_choice.",
    "key_order": "Write JSON with its keys in one order; radixserve serve --canonical json does.",
    "list_order": "Sort what has no order of its own: a set has another one in each process.",
    "json_format": "Write JSON in one place only, with the same spaces, escapes and numbers.",
    "unicode_form": "Bring text to one form (NFC), without characters that are not shown.",
    "whitespace": "Write the same text with the same spaces: build it in one place only.",
    "document_order": "Put documents in an order that does not depend on the question.",
    "text_inserted": "Add what is new at the end.",
    "text_removed": "Leave what was said before as it was.",
    "unwrapped": "Send the turn again as it was sent first, with all that was put around it.",
    "message_inserted": "Add messages at the end.",
    "message_removed": "Do not cut single messages from the front: summarize rarely and much.",
    "message_order": "Keep messages in the order in which they were sent first.",
    "messages_merged": "Send messages as they were sent first, each on its own.",
    "message_split": "Send a message as it was sent first, in one.",
    "history_summarized": "Summarize rarely and much: what follows a summary is computed again.",
    "role": "Keep the role of each message.",
    "reasoning_omitted": "Send the model's reasoning back as it was.",
    "fields": "Send the same fields with the same values.",
    "template": "Send the same template arguments in each turn.",
    "text": "Put what differs behind what is the same.",
}
IDS_ONLY = "Send the ids of calls back as they came, instead of making new ones."


def advice(guess: str, *, ids_only: bool) -> str:
    return IDS_ONLY if ids_only else ADVICE.get(guess, ADVICE["text"])
