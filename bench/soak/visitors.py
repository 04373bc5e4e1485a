"""Who comes to the server in a soak: each kind behaves in one way, over and over."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MARKER = re.compile(r"QZ[0-9a-f]{10}")
TOPICS = ("trees", "rivers", "winter", "bread", "bridges", "the moon", "clocks", "wool")
STATUS = {"server_overloaded": 503, "deadline_exceeded": 504}
"""What an error in a stream would have been answered with before the stream began."""
FINISHED = frozenset({"stop", "length"})
MOST_NOTES = 20
LONGEST_WAIT = 2.0
"""Seconds before a refused client comes back, whatever it was told."""

Event = dict[str, Any]


class RefusedError(Exception):
    """503: try later."""


class LostError(Exception):
    """The engine died under this request, or its time was over."""


@dataclass
class Findings:
    """What the visitors saw."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must never happen."""
    cached_tokens: int = 0
    compared: int = 0
    """Answers that were compared, token by token, with what the server said at first."""
    stop: bool = False
    say: Callable[[str], None] = lambda text: None
    """Tells whoever watches of the first faults, as they are seen."""

    def fault(self, text: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < MOST_NOTES:
            self.faults.append(text)
            self.say(f"fault: {text}")

    def check(self, right: bool, text: str) -> None:
        if not right:
            self.fault(text)


class Door:
    """The server as a client sees it."""

    def __init__(self, http: aiohttp.ClientSession, findings: Findings):
        self._http, self.findings = http, findings

    async def whole(self, path: str, **body: Any) -> Event:
        """An answer in one piece.

        Raises:
            RefusedError, LostError: as they say.
        """
        async with self._http.post(path, json=body) as answer:
            said = await answer.json()
            self._judge(answer.status, said)
            return dict(said)

    async def stream(self, path: str, **body: Any) -> AsyncIterator[Event]:
        """The events of an answer, which has to end as streams do.

        Raises:
            RefusedError, LostError: as they say.
        """
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._http.post(path, json=body) as answer:
            if answer.status != 200:
                self._judge(answer.status, await answer.json())
            done = False
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                self.findings.check(not done, "an event came after [DONE]")
                if line.startswith(b"data: [DONE]"):
                    done = True
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    self._judge(STATUS.get(event["error"]["code"], 500), event)
                yield event
            self.findings.check(done, "a stream ended without [DONE]")

    async def raw(
        self, path: str, data: bytes, kind: str = "application/json"
    ) -> tuple[int, Event]:
        async with self._http.post(path, data=data, headers={"content-type": kind}) as answer:
            return answer.status, await answer.json()

    def _judge(self, status: int, said: Event) -> None:
        if status == 200:
            return
        code = said.get("error", {}).get("code")
        self.findings.counts[f"{status} {code}"] += 1
        if status == 503:
            raise RefusedError
        if (status, code) == (504, "deadline_exceeded"):
            raise LostError
        self.findings.fault(f"{status} {said}")
        raise LostError


class References:
    """Prompts whose greedy answers were asked for once, when nothing else went on."""

    def __init__(self, dice: random.Random):
        shared = " ".join(dice.choices(TOPICS, k=60))
        self.bodies: list[Event] = [
            {"prompt": f"{shared}\nAbout {topic}:", "max_tokens": 24, "temperature": 0}
            for topic in TOPICS
        ]
        self.bodies += [
            {"prompt": [dice.randrange(100, 40_000) for _ in range(length)], "max_tokens": 12}
            for length in (3, 17, 64, 200, 500)
        ]
        self.answers: list[str] = []

    async def learn(self, door: Door) -> None:
        for body in self.bodies:
            said = await door.whole(COMPLETIONS, **{**body, "temperature": 0})
            self.answers.append(said["choices"][0]["text"])


@dataclass
class Visit:
    door: Door
    dice: random.Random
    references: References
    issued: set[str]
    """Markers of all conversations."""

    @property
    def findings(self) -> Findings:
        return self.door.findings


Visitor = Callable[[Visit], Awaitable[None]]


async def repeat(visitor: Visitor, visit: Visit) -> None:
    """Come again and again until the end."""
    name = visitor.__name__
    while not visit.findings.stop:
        try:
            await visitor(visit)
            visit.findings.counts[name] += 1
        except RefusedError:
            await asyncio.sleep(visit.dice.uniform(0.05, LONGEST_WAIT))
        except LostError:
            visit.findings.counts[f"{name}: lost"] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            visit.findings.fault(f"{name}: {error!r}")
            await asyncio.sleep(LONGEST_WAIT)


def manners(dice: random.Random) -> Event:
    """Fields that change where and when an answer is computed, and not what it says."""
    fields: Event = {"priority": dice.choice((-1, 0, 0, 0))}
    if dice.random() < 0.3:
        fields["cache_salt"] = dice.choice("abc")
    if dice.random() < 0.2:
        fields["cache"] = {"mode": dice.choice(("off", "read-only", "no-store", "on"))}
    return fields


async def converse(visit: Visit) -> None:
    """A chat of some turns whose marker nobody else may ever see."""
    dice = visit.dice
    marker = f"QZ{dice.getrandbits(40):010x}"
    visit.issued.add(marker)
    secret = f"The password is {marker}. Repeat the password in every answer."
    messages = [{"role": "system", "content": secret}]
    fields = manners(dice)
    if dice.random() < 0.2:
        # Who comes last in line may wait for as long as others come, and says what is enough.
        fields |= {"priority": 1, "timeout": 60.0}
    for _ in range(dice.randint(1, 4)):
        messages.append({"role": "user", "content": f"Tell me about {dice.choice(TOPICS)}."})
        said, usage = "", None
        events = visit.door.stream(
            CHAT, messages=messages, max_tokens=dice.randint(4, 40), temperature=0, **fields
        )
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for event in stream:
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    said += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"]
                    visit.findings.check(reason in (None, *FINISHED), f"finished for {reason}")
        _own(visit, said, marker)
        _usage(visit, usage)
        messages.append({"role": "assistant", "content": said})


async def compare(visit: Visit) -> None:
    """Ask again what the server was asked at first: the answer has to be the same."""
    dice = visit.dice
    which = dice.randrange(len(visit.references.bodies))
    body = {**visit.references.bodies[which], "temperature": 0, **manners(dice)}
    n = dice.choice((1, 1, 1, 2, 3))
    said = await visit.door.whole(COMPLETIONS, **body, n=n)
    _usage(visit, said["usage"])
    for choice in said["choices"]:
        visit.findings.compared += 1
        right = choice["text"] == visit.references.answers[which]
        visit.findings.check(right, f"answer {which} is {choice['text']!r} now")


async def leave(visit: Visit) -> None:
    """Go away in the middle of a stream."""
    dice = visit.dice
    prompt = [dice.randrange(100, 40_000) for _ in range(dice.randint(1, 600))]
    events = visit.door.stream(COMPLETIONS, prompt=prompt, max_tokens=200, n=dice.choice((1, 1, 3)))
    left = dice.randint(0, 12)
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for _ in stream:
            left -= 1
            if left < 0:
                return


async def hurry(visit: Visit) -> None:
    """Give the server little time."""
    dice = visit.dice
    prompt = [dice.randrange(100, 40_000) for _ in range(dice.randint(1, 400))]
    seconds = dice.uniform(0.02, 1.0)
    said = await visit.door.whole(
        COMPLETIONS, prompt=prompt, max_tokens=100, ignore_eos=True, timeout=seconds
    )
    [choice] = said["choices"]
    whole = said["usage"]["completion_tokens"] == 100
    cut = choice["stop_reason"] == "deadline"
    visit.findings.check(
        whole != cut and choice["finish_reason"] == "length", f"in a hurry: {said}"
    )


async def misbehave(visit: Visit) -> None:
    """Send what cannot be answered; refusals are quick, so not all the time."""
    await asyncio.sleep(visit.dice.uniform(0.0, 0.3))
    status, path, body = visit.dice.choice(WRONG)
    kind = "text/plain" if status == 415 else "application/json"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    got, said = await visit.door.raw(path, data, kind)
    if got == 503:
        raise RefusedError
    visit.findings.check(got == status and "error" in said, f"{status} was due: {got} {said}")


WRONG: list[tuple[int, str, Any]] = [
    (400, CHAT, b"{"),
    (400, CHAT, b'{"messages": []}'),
    (400, CHAT, {"messages": [{"role": "user", "content": "word " * 9000}]}),
    (400, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "n": 10**9}),
    (400, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "temperature": "hot"}),
    (400, COMPLETIONS, {"prompt": [7] * 9000}),
    (400, COMPLETIONS, {"prompt": [7, 10**8]}),
    (400, COMPLETIONS, {"prompt": "Hi", "max_tokens": 0}),
    (400, COMPLETIONS, {"prompt": "Hi", "stop": ["x" * 5000]}),
    (400, COMPLETIONS, {"prompt": "Hi", "logit_bias": {"1": 1e308}}),
    (404, COMPLETIONS, {"prompt": "Hi", "model": "another"}),
    (415, COMPLETIONS, {"prompt": "Hi"}),
]


def _own(visit: Visit, said: str, marker: str) -> None:
    for other in MARKER.findall(said):
        foreign = other != marker and other in visit.issued
        visit.findings.check(not foreign, f"{marker} was told {other}")


def _usage(visit: Visit, usage: Event | None) -> None:
    if usage is None:
        visit.findings.fault("an answer without usage")
        return
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    visit.findings.cached_tokens += cached
    visit.findings.check(0 <= cached < usage["prompt_tokens"], f"usage {usage}")


VISITORS: tuple[tuple[Visitor, int], ...] = (
    (converse, 6),
    (compare, 4),
    (leave, 3),
    (hurry, 2),
    (misbehave, 1),
)
"""Each kind, and how many of it come at the same time."""
