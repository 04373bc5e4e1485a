"""Pairs of requests that should have shared a prompt and did not, each with what is to be found."""

from __future__ import annotations

import json
import random
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from radixserve.common import common_length

Body = dict[str, Any]

WORDS = [
    "harbour",
    "tide",
    "lantern",
    "rope",
    "gull",
    "anchor",
    "pilot",
    "chart",
    "beacon",
    "keel",
    "mast",
    "reef",
    "sound",
    "inlet",
    "cove",
    "drift",
    "ballast",
    "cargo",
    "ferry",
    "signal",
    "compass",
    "storm",
    "shoal",
    "pier",
    "quay",
    "net",
    "oar",
    "deck",
    "hull",
    "sail",
]
TEMPLATE = """{%- if style is defined %}<|im_start|>system
Style: {{ style }}<|im_end|>
{% endif %}
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Of chats with tools, as many models have it."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A request, and the same once more with something changed."""

    kind: str
    earlier: Body
    later: Body
    reason: str
    """Why tokens of the second were computed."""
    guess: str | None = None
    pointer: str | None = None
    """Where they part, if they do, and"""
    character: int | None = None
    """at which character."""
    between: list[Body] = field(default_factory=list)
    """What is asked between the two."""


def mutations(count: int, seed: int = 0) -> Iterator[Mutation]:
    """So many, of all kinds in turns; the same for the same seed."""
    kinds = list(KINDS.items())
    for number in range(count):
        kind, make = kinds[number % len(kinds)]
        yield make(kind, random.Random(f"{seed}-{number}"))


def sentence(chance: random.Random, words: int = 12) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words)).capitalize() + "."


def paragraph(chance: random.Random, sentences: int = 4) -> str:
    return " ".join(sentence(chance) for _ in range(sentences))


def chat(chance: random.Random, system: str | None = None, user: str | None = None) -> Body:
    return {
        "messages": [
            {"role": "system", "content": system or paragraph(chance, 8)},
            {"role": "user", "content": user or sentence(chance)},
        ],
        "max_tokens": 2,
        "temperature": 0,
    }


def tools(chance: random.Random) -> list[Body]:
    found = []
    for name in chance.sample(WORDS, 4):
        fields = {
            word: {"type": "string", "description": sentence(chance, 5)}
            for word in chance.sample(WORDS, 3)
        }
        function = {
            "name": f"find_{name}",
            "description": sentence(chance, 6),
            "parameters": {"type": "object", "properties": fields},
        }
        found.append({"type": "function", "function": function})
    return found


def _text(kind: str, guess: str, earlier: str, later: str, chance: random.Random) -> Mutation:
    """The system prompt is another one."""
    question = sentence(chance)
    return Mutation(
        kind,
        chat(chance, earlier, question),
        chat(chance, later, question),
        "diverged",
        guess,
        "/messages/0/content",
        common_length(earlier, later),
    )


def _tools(
    kind: str, guess: str, body: Body, earlier: list[Body], later: list[Body], place: str
) -> Mutation:
    """The tools are others, from ``place`` on."""
    bodies = ({**body, "tools": sent} for sent in (earlier, later))
    return Mutation(kind, *bodies, "diverged", guess, f"/tools/{place}")


def _around(chance: random.Random, *middles: str) -> list[str]:
    """Texts that differ in their middles."""
    before, behind = sentence(chance, chance.randrange(1, 40)), paragraph(chance)
    return [f"{before} {middle} {behind}" for middle in middles]


def clock(kind: str, chance: random.Random) -> Mutation:
    day, hour, minute = chance.randrange(1, 28), chance.randrange(24), chance.randrange(50)
    second, later = chance.randrange(60), minute + chance.randrange(1, 10)
    forms: list[Callable[[int], str]] = [
        lambda at: f"It is 2026-11-{day:02} {hour:02}:{at:02}:{second:02}.",
        lambda at: f"Now: 2026-11-{day:02}T{hour:02}:{at:02}:{second:02}Z;",
        lambda at: f"Current time {hour}:{at:02} o'clock.",
        lambda at: f"The date is {day} November 2026, {hour:02}:{at:02}.",
        lambda at: f"time={1_764_000_000 + 3600 * hour + 60 * at}",
    ]
    form = chance.choice(forms)
    return _text(kind, "timestamp", *_around(chance, form(minute), form(later)), chance)


def identity(kind: str, chance: random.Random) -> Mutation:
    one, other = (str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(2))
    form = chance.choice(["Session {}.", "request_id: {}", "<trace {}>"])
    return _text(kind, "uuid", *_around(chance, form.format(one), form.format(other)), chance)


def whitespace(kind: str, chance: random.Random) -> Mutation:
    parts = [sentence(chance) for _ in range(6)]
    separators = ["\n"] * 5
    place = chance.randrange(5)
    changed = [*separators[:place], chance.choice(["\n\n", "  \n", " "]), *separators[place + 1 :]]
    earlier, later = (
        parts[0] + "".join(a + b for a, b in zip(each, parts[1:], strict=True))
        for each in (separators, changed)
    )
    return _text(kind, "whitespace", earlier, later, chance)


def documents(kind: str, chance: random.Random) -> Mutation:
    found = [paragraph(chance) for _ in range(5)]
    numbered = chance.random() < 0.5
    turned = list(found)
    while turned == found:
        chance.shuffle(turned)

    def joined(texts: list[str]) -> str:
        return "\n\n".join(
            f"[{place}] {text}" if numbered else text for place, text in enumerate(texts, 1)
        )

    question = sentence(chance)
    earlier, later = f"{joined(found)}\n\n{question}", f"{joined(turned)}\n\n{question}"
    system = paragraph(chance, 4)
    return Mutation(
        kind,
        chat(chance, system, earlier),
        chat(chance, system, later),
        "diverged",
        "document_order",
        "/messages/1/content",
        common_length(earlier, later),
    )


def tool_order(kind: str, chance: random.Random) -> Mutation:
    body, sent = chat(chance), tools(chance)
    turned = list(sent)
    while turned == sent:
        chance.shuffle(turned)
    place = next(place for place in range(4) if turned[place] != sent[place])
    return _tools(kind, "tool_order", body, sent, turned, f"{place}")


def key_order(kind: str, chance: random.Random) -> Mutation:
    body, sent = chat(chance), tools(chance)
    if chance.random() < 0.5:
        state = {word: chance.randrange(100) for word in chance.sample(WORDS, 5)}
        turned = dict(reversed(state.items()))
        texts = _around(chance, json.dumps(state), json.dumps(turned))
        return _text(kind, "key_order", *texts, chance)
    other = json.loads(json.dumps(sent))
    place = chance.randrange(4)
    parameters = other[place]["function"]["parameters"]
    parameters["properties"] = dict(reversed(parameters["properties"].items()))
    where = f"{place}/function/parameters/properties"
    return _tools(kind, "key_order", body, sent, other, where)


def template(kind: str, chance: random.Random) -> Mutation:
    """Another setting of the template, which puts something in front of the same messages."""
    body = chat(chance)
    styles = chance.sample(WORDS, 2)
    earlier, later = ({**body, "chat_template_kwargs": {"style": each}} for each in styles)
    found = Mutation(kind, earlier, later, "diverged", "template", "/chat_template_kwargs")
    return found


def salt(kind: str, chance: random.Random) -> Mutation:
    body = chat(chance)
    return Mutation(kind, body, {**body, "cache_salt": f"salt-{chance.random()}"}, "cold")


def eviction(kind: str, chance: random.Random) -> Mutation:
    body = chat(chance)
    flood = [chat(chance, paragraph(chance, 36)) for _ in range(9)]
    return Mutation(kind, body, body, "evicted", between=flood)


def unicode_form(kind: str, chance: random.Random) -> Mutation:
    """Text from a client that composes accents, and from one that does not."""
    word = chance.choice(["Café", "Malmö", "São Paulo", "Łódź ó", "naïve"])
    forms = (unicodedata.normalize(form, word) for form in ("NFC", "NFD"))
    return _text(kind, "unicode_form", *_around(chance, *forms), chance)


def json_format(kind: str, chance: random.Random) -> Mutation:
    """Two libraries write the same JSON."""
    state: Body = {word: chance.randrange(100) for word in chance.sample(WORDS, 5)}
    number, text = chance.sample(sorted(state), 2)
    state[text] = "Malmö"
    if chance.random() < 0.5:
        texts = json.dumps(state), json.dumps({**state, number: float(state[number])})
    else:
        texts = json.dumps(state), json.dumps(state, ensure_ascii=False)
    return _text(kind, "json_format", *_around(chance, *texts), chance)


def list_order(kind: str, chance: random.Random) -> Mutation:
    """A set, which another process lists in another order."""
    body, sent = chat(chance), tools(chance)
    place = chance.randrange(4)
    turned = json.loads(json.dumps(sent))
    for each, order in ((sent, 1), (turned, -1)):
        parameters = each[place]["function"]["parameters"]
        parameters["required"] = sorted(parameters["properties"])[::order]
    where = f"{place}/function/parameters/required/0"
    return _tools(kind, "list_order", body, sent, turned, where)


def _talk(chance: random.Random, turns: int = 6) -> Body:
    """A conversation; the user has the last word."""
    body = chat(chance, paragraph(chance, 4))
    for place in range(turns):
        role = "user" if place % 2 else "assistant"
        body["messages"].append({"role": role, "content": sentence(chance)})
    return body


def _messages(kind: str, guess: str, body: Body, place: int, *now: Body, instead: int) -> Mutation:
    """``now`` stands in place of ``instead`` messages, from ``place`` on."""
    messages = body["messages"]
    changed = [*messages[:place], *now, *messages[place + instead :]]
    later = {**body, "messages": changed}
    return Mutation(kind, body, later, "diverged", guess, f"/messages/{place}")


def message_removed(kind: str, chance: random.Random) -> Mutation:
    """History is cut, mostly from the front."""
    body, place = _talk(chance), chance.choice([1, 1, 3])
    return _messages(kind, "message_removed", body, place, instead=2)


def message_inserted(kind: str, chance: random.Random) -> Mutation:
    body = _talk(chance)
    reminder = {"role": "user", "content": sentence(chance)}
    return _messages(kind, "message_inserted", body, chance.choice([1, 3]), reminder, instead=0)


def summarized(kind: str, chance: random.Random) -> Mutation:
    summary = {"role": "user", "content": paragraph(chance, 2)}
    return _messages(kind, "history_summarized", _talk(chance), 1, summary, instead=4)


def merged(kind: str, chance: random.Random) -> Mutation:
    """Two messages of one role in a row, and a client that makes one of them."""
    body, two = _talk(chance), [sentence(chance), sentence(chance)]
    body["messages"][1:1] = [{"role": "user", "content": text} for text in two]
    whole = {"role": "user", "content": "\n\n".join(two)}
    found = _messages(kind, "messages_merged", body, 1, whole, instead=2)
    return replace(found, pointer="/messages/1/content", character=len(two[0]))


KINDS: dict[str, Callable[[str, random.Random], Mutation]] = {
    "clock": clock,
    "uuid": identity,
    "tool order": tool_order,
    "key order": key_order,
    "whitespace": whitespace,
    "document order": documents,
    "unicode form": unicode_form,
    "json format": json_format,
    "list order": list_order,
    "message removed": message_removed,
    "message inserted": message_inserted,
    "history summarized": summarized,
    "messages merged": merged,
    "template": template,
    "salt": salt,
    "eviction": eviction,
}
