"""An agent against a radixserve server: what each of its steps reuses, and what that saves.

    make serve
    .venv/bin/python examples/agent.py [URL] [--steps N]

The agent reads a page of Python's documentation a step. Which one it reads is written here, so that
any model can play it, the small demo model too; what it says is the model's own, and sampled. The
time until the first token is taken of every step twice: with the cache and without it.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import secrets
import sys
from time import perf_counter
from typing import Any

import httpx2

from radixserve.errors import RadixServeError
from radixserve.remote import Remote

PAGES = ["with", "try", "raise", "assert", "lambda", "del", "import", "global"]
PAGE = 1500
"""Characters that the agent reads of a page."""
ANSWER = 40
"""Tokens that it says about it at most."""
SYSTEM = (
    "You read the documentation of Python, page by page, with read(page). After each page say in "
    "one sentence what is new to you. Pages look like this:\n\n"
    + pydoc_data.topics.topics["formatstrings"][:4000]
)
LINE = "{:>4}  {:>6}  {:>6}  {:>8}  {:>7}  {:>6}  {}"


class Agent:
    """One conversation, of which the server is told what there is to know."""

    def __init__(self, remote: Remote, client: httpx2.Client):
        self._remote, self._client = remote, client
        self._name = f"reader-{secrets.token_hex(4)}"
        self._messages = [{"role": "system", "content": SYSTEM}]

    def prewarm(self) -> int:
        """Have the system prompt computed before anybody waits for it. Returns its tokens."""
        tokens: int = self._send("POST", "cache/prewarm", self._body(ttl="5m"))["tokens"]
        return tokens

    def read(self, page: str) -> None:
        """The next message: a page."""
        content = f"read({page!r}) returned:\n\n{pydoc_data.topics.topics[page][:PAGE]}"
        self._messages.append({"role": "user", "content": content})

    def seconds(self, mode: str) -> float:
        """Until the first token of the answer; with "off" all is computed, with "read-only" what is
        cached is used. Neither leaves anything in the cache."""
        start = perf_counter()
        self._send("POST", "chat/completions", self._body(max_tokens=1, cache={"mode": mode}))
        return perf_counter() - start

    def answer(self) -> dict[str, Any]:
        """Say something, which becomes part of the conversation. Returns the usage."""
        body = self._body(max_tokens=ANSWER, session_id=self._name, next_request_in=5)
        said = self._send("POST", "chat/completions", body)
        self._messages.append(
            {"role": "assistant", "content": said["choices"][0]["message"]["content"]}
        )
        usage: dict[str, Any] = said["usage"]
        return usage

    def end(self) -> int:
        """Nobody goes on with it. Returns the pages of the cache that are free again."""
        salt = {"cache_salt": self._name}
        pages: int = self._send("DELETE", f"cache/sessions/{self._name}", salt)["released_pages"]
        return pages

    def _body(self, **fields: Any) -> dict[str, Any]:
        # The salt keeps an earlier run from having cached it already.
        return {"messages": self._messages, "cache_salt": self._name, **fields}

    def _send(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._remote.explained():
            response = self._client.request(method, f"{self._remote.url}/{path}", json=body)
        if response.status_code != 200:
            self._remote.refuse(response)
        found: dict[str, Any] = response.json()
        return found


def main(url: str, steps: int = len(PAGES), api_key: str | None = None) -> dict[str, float]:
    """Play ``steps`` steps and print what each reused. Returns the sums."""
    remote = Remote(url)
    headers = remote.authorization(api_key)
    with httpx2.Client(headers=headers, timeout=600, trust_env=remote.uses_proxies) as client:
        agent = Agent(remote, client)
        print(f"Prewarmed: {agent.prewarm():,} tokens of the system prompt\n")
        print(" " * 32 + "seconds to the first token")
        print(LINE.format("step", "prompt", "reused", "of last", "without", "with", ""))
        sums = {"prompt": 0.0, "reused": 0.0, "without": 0.0, "with": 0.0}
        known = 0
        for step, page in enumerate(PAGES[:steps], 1):
            agent.read(page)
            without, cached = agent.seconds("off"), agent.seconds("read-only")
            usage = agent.answer()
            prompt = usage["prompt_tokens"]
            reused = usage["prompt_tokens_details"]["cached_tokens"]
            share = f"{min(reused / known, 1):.1%}" if known else ""
            times = (f"{without:.2f}", f"{cached:.2f}")
            print(LINE.format(step, prompt, reused, share, *times, f"read({page!r})"), flush=True)
            # The last token of an answer is said, and never computed with.
            known = prompt + usage["completion_tokens"] - 1
            for name, value in zip(sums, (prompt, reused, without, cached), strict=True):
                sums[name] += value
        print(f"\nEnded: {agent.end():,} pages released")
    print(f"{sums['reused']:,.0f} of {sums['prompt']:,.0f} prompt tokens reused")
    gain = sums["without"] / sums["with"]
    print(f"{sums['without']:.1f} s without the cache, {sums['with']:.1f} s with it: {gain:.1f}x")
    return sums


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play an agent, with the cache and without it.")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="(%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=len(PAGES), choices=range(1, len(PAGES) + 1), metavar="N"
    )
    options = parser.parse_args()
    try:
        main(options.url, options.steps)
    except RadixServeError as error:
        sys.exit(str(error))
