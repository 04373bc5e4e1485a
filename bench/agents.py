"""How much of what was computed for one turn of an agent the next turn reuses::

    python -m bench.agents --data ../data --out bench/results
    python -m bench.agents --data ../data --dialogues 6 --model tiny

Tool-calling dialogues are replayed turn by turn against a live server, over HTTP. The model says
what the assistant says in the dialogue, with reasoning in front where the kind of model reasons, in
tokens that are cut at random: a sampling model writes a text in other tokens than its tokenizer
would. Each answer goes into the history as the server gave it, without its reasoning, as most
clients do it, unless the row says that it is sent back. Which tokens are reused depends on no
weights, so that nothing is computed for the prompts, but on request.

From the second turn on the prompt and the answer of the turn before have been computed, but for the
answer's last token: these are the tokens that *can* be reused. Where the chat template rewrites
history the prompt parts from that text; what the two texts have in common is what the template
*leaves*. Both are counted in the tokens of the turn before. The last line is the summary as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from tqdm import tqdm

from bench import plot
from bench.agent_templates import KINDS, Kind
from bench.machine import machine
from bench.scripted import Scripted, cut_at_random
from bench.tiny import CONTEXT, tiny
from radixserve.config import EngineConfig
from radixserve.server.app import create_app
from radixserve.server.run import listen
from radixserve.server.service import Settings
from radixserve.text.tokenizer import Tokenizer

Numbers = dict[str, Any]
Message = dict[str, Any]

WAYS = {
    "text alone": {"remembers": False, "keeps": False},
    "own tokens": {"remembers": True, "keeps": False},
    "own tokens, reasoning kept": {"remembers": True, "keeps": True},
}
"""What the server does: nothing, what it always does, and what ``--keep-reasoning`` adds."""
PAGES = 8192
WANTED = 0.99
"""Of what the template leaves, in each dialogue."""


def main() -> None:
    options = _options()
    dialogues = read(options.data / "agents" / "airline_dialogues.json.gz")[: options.dialogues]
    runs = [
        (kind, way)
        for way in reversed(WAYS)
        for kind in KINDS
        if kind.hides or not WAYS[way]["keeps"]
    ]
    results = begun(options.checkpoint, len(dialogues), options.model)
    found = results["kinds"]
    turns = sum(message["role"] == "assistant" for each in dialogues for message in each)
    with tqdm(total=turns * len(runs), desc="turns", unit="turn", disable=None) as bar:
        for kind, way in runs:
            if way in found[kind.name]:
                bar.update(turns)
                continue
            bar.set_postfix_str(f"{kind.name}, {way}")
            computes = options.model == "tiny"
            work = replayed(kind, dialogues, **WAYS[way], computes=computes, told=bar.update)
            found[kind.name][way] = asyncio.run(work)
            if options.checkpoint is not None:
                part = options.checkpoint.with_suffix(".part")
                part.write_text(json.dumps(results), encoding="utf-8")
                part.replace(options.checkpoint)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "agents.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draw(results, options.out / "agents.png")
    summary = {
        kind: {way: [run["of_left"], run["of_all"]] for way, run in ways.items()}
        for kind, ways in found.items()
    }
    sys.stdout.write(json.dumps(summary) + "\n")


def begun(checkpoint: Path | None, dialogues: int, model: str) -> Numbers:
    """Results that wait for what was not measured before.

    Raises:
        SystemExit: the checkpoint is one of another measurement.
    """
    asked = {"dialogues": dialogues, "model": model}
    if checkpoint is None or not checkpoint.exists():
        return {"machine": machine(), **asked, "kinds": {kind.name: {} for kind in KINDS}}
    results: Numbers = json.loads(checkpoint.read_text(encoding="utf-8"))
    if {name: results.get(name) for name in asked} != asked:
        sys.exit(f"{checkpoint} is of another measurement: remove it, or choose another name")
    return results


def read(path: Path) -> list[list[Message]]:
    """The messages of each dialogue."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [dialogue["messages"] for dialogue in json.load(file)]


async def replayed(
    kind: Kind,
    dialogues: list[list[Message]],
    *,
    remembers: bool,
    keeps: bool,
    computes: bool,
    told: Callable[[int], object],
) -> Numbers:
    """Counts of all dialogues: turns from the second on, and tokens; and of the dialogue that came
    off worst. ``told`` of the turns that are done."""
    names = ("prompt", "reused", "left", "all", "reused_of_left")
    each: list[Numbers] = []
    turns = 0
    async with server(kind, remembers=remembers, keeps=keeps, computes=computes) as served:
        for seed, dialogue in enumerate(dialogues):
            found = await replay(kind, dialogue, *served, seed)
            told(len(found) + 1)
            turns += len(found)
            if found:
                each.append({name: sum(turn[name] for turn in found) for name in names})
    counts = {name: sum(one[name] for one in each) for name in names}
    return {
        "turns": turns,
        **counts,
        "of_left": counts["reused_of_left"] / counts["left"],
        "of_all": counts["reused"] / counts["all"],
        "hit_rate": counts["reused"] / counts["prompt"],
        "worst_of_left": min(one["reused_of_left"] / one["left"] for one in each),
        "worst_of_all": min(one["reused"] / one["all"] for one in each),
        "dialogues_below": sum(one["reused_of_left"] < WANTED * one["left"] for one in each),
    }


async def replay(
    kind: Kind, dialogue: list[Message], client: httpx2.AsyncClient, model: Scripted, seed: int
) -> list[dict[str, int]]:
    """What each turn of a dialogue reused, from the second on."""
    rng = random.Random(seed)
    tokenizer = model.tokenizer
    messages: list[Message] = []
    turns, before = [], None
    ids: dict[str, str] = {}
    fields: dict[str, Any] = {"return_token_ids": True, "max_tokens": 4000}
    if kind.tools:
        fields["tools"] = tools_of(dialogue)
    for message in dialogue:
        if message["role"] != "assistant":
            known = {"tool_call_id": ids.get(message.get("tool_call_id", ""), "call")}
            told = {"role": message["role"], "content": message["content"]}
            messages.append({**told, **known} if message["role"] == "tool" else told)
            continue
        calls = message.get("tool_calls") or []
        written = kind.written(
            message["content"] or "",
            [(each["function"]["name"], each["function"]["arguments"]) for each in calls],
            f"They say: {messages[-1].get('content', '')[:300]} What is to be done now?",
        )
        model.say(cut_at_random(written, tokenizer, rng))
        answer = await client.post("/v1/chat/completions", json={"messages": messages, **fields})
        answer.raise_for_status()
        body = answer.json()
        if before is not None:
            turns.append(compared(tokenizer, before, body))
        before = body
        said = body["choices"][0]["message"]
        kept = ("role", "content", "tool_calls", *(["reasoning"] if kind.returned else []))
        messages.append({name: said[name] for name in kept if said.get(name)})
        for own, theirs in zip(said.get("tool_calls") or [], calls, strict=False):
            ids[theirs["id"]] = own["id"]
    return turns


def compared(tokenizer: Tokenizer, before: Numbers, body: Numbers) -> dict[str, int]:
    """What of the turn ``before`` could be reused, and was, in tokens."""
    tokens = [*before["prompt_token_ids"], *before["choices"][0]["token_ids"]][:-1]
    prompt = b"".join(map(tokenizer.token_bytes, body["prompt_token_ids"]))
    pieces = [tokenizer.token_bytes(token) for token in tokens]
    same = common(b"".join(pieces), prompt)
    left = sum(1 for _ in takewhile(lambda end: end <= same, accumulate(map(len, pieces))))
    reused = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return {
        "prompt": len(body["prompt_token_ids"]),
        "reused": min(reused, len(tokens)),
        "left": left,
        "reused_of_left": min(reused, left),
        "all": len(tokens),
    }


def common(one: bytes, other: bytes) -> int:
    """Bytes that both begin with. O(log of their length) comparisons."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def tools_of(dialogue: list[Message]) -> list[Numbers]:
    """The tools that are called in a dialogue; of the others nothing is known."""
    called = [call for message in dialogue for call in message.get("tool_calls") or []]
    names = sorted({call["function"]["name"] for call in called}) or ["think"]
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in names
    ]


@asynccontextmanager
async def server(
    kind: Kind, *, remembers: bool, keeps: bool, computes: bool
) -> AsyncIterator[tuple[httpx2.AsyncClient, Scripted]]:
    """A server of such a model, and the model."""
    with tempfile.TemporaryDirectory() as folder:
        small = tiny(Path(folder))
        template = None
        if kind.template is not None:
            template = str(Path(folder) / "template.jinja")
            Path(template).write_text(kind.template, encoding="utf-8")
        config = EngineConfig(
            model=str(small.config),
            tokenizer=str(small.tokenizer),
            load_format="dummy",
            dtype="float32",
            device="cpu",
            num_pages=PAGES,
            max_model_len=CONTEXT,
            chat_template=template,
        )
        model = Scripted(config, computes=computes)
        settings = Settings(
            tool_call_parser="hermes" if kind.tools else "none",
            reasoning_parser="think" if kind.reasons else "none",
            keep_reasoning=keeps,
        )
        await model.start()
        app = create_app(model, settings=settings)
        if not remembers:
            app.state.service.memory.remember = lambda *_, **__: None
        listener = listen("127.0.0.1", 0)
        http = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(http.serve([listener]))
        try:
            while not http.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                yield client, model
        finally:
            http.should_exit = True
            await serving
            await model.stop()


def draw(results: Numbers, path: Path) -> None:
    """Two panels: of what the template leaves, and of all that was computed."""
    figure, axes = plot.panels(2, columns=2, title="Tokens of the last turn that are reused")
    for panel, key, title in zip(
        axes,
        ("of_left", "of_all"),
        ("of what the template leaves of it", "of all that was computed for it"),
        strict=True,
    ):
        for place, way in enumerate(WAYS):
            found = [
                (row, ways[way][key])
                for row, ways in enumerate(results["kinds"].values())
                if way in ways
            ]
            panel.barh(
                [row + 0.27 * (place - 1) for row, _ in found],
                [100 * share for _, share in found],
                0.25,
                label=way,
            )
        panel.set_yticks(range(len(results["kinds"])), list(results["kinds"]))
        panel.invert_yaxis()
        panel.axvline(99, color=plot.LIMIT, linestyle="--", linewidth=1)
        plot.style(panel, title=title, x="%")
    named = axes[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=len(WAYS), fontsize=7, frameon=False)
    plot.save(figure, path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, required=True, help="the folder with agents/")
    parser.add_argument("--dialogues", type=int, default=100, help="how many of the dialogues")
    parser.add_argument(
        "--model",
        choices=("none", "tiny"),
        default="none",
        help="none: nothing is computed; tiny: a small model computes with random weights",
    )
    parser.add_argument("--checkpoint", type=Path, help="a file to go on from after an interrupt")
    parser.add_argument("--out", type=Path, help="a folder for agents.json and agents.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
