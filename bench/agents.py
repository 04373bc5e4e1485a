"""How much of what was computed for one turn of an agent the next turn reuses::

    python -m bench.agents --data ../data
    python -m bench.agents --data ../data --dialogues 20 --out bench/results

Tool-calling dialogues are replayed turn by turn against a live server, over HTTP. The model
computes everything, and then says what the assistant says in the dialogue, with reasoning in front
where the kind of model reasons, in tokens that are cut at random: a sampling model writes a text in
other tokens than its tokenizer would. Each answer goes into the history as the server gave it,
without its reasoning, as most clients do it.

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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from bench import plot
from bench.agent_templates import KINDS, Kind
from bench.machine import machine
from bench.scripted import Scripted, cut_at_random
from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
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
GEOMETRY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
PAGES = 8192


def main() -> None:
    options = _options()
    dialogues = read(options.data / "agents" / "airline_dialogues.json.gz")[: options.dialogues]
    results: Numbers = {"machine": machine(), "dialogues": len(dialogues), "kinds": {}}
    for kind in KINDS:
        results["kinds"][kind.name] = {
            way: asyncio.run(replayed(kind, dialogues, **settings))
            for way, settings in WAYS.items()
            if kind.reasons or not settings["keeps"]
        }
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "agents.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draw(results, options.out / "agents.png")
    summary = {
        kind: {way: [found["of_left"], found["of_all"]] for way, found in ways.items()}
        for kind, ways in results["kinds"].items()
    }
    sys.stdout.write(json.dumps(summary) + "\n")


def read(path: Path) -> list[list[Message]]:
    """The messages of each dialogue."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [dialogue["messages"] for dialogue in json.load(file)]


async def replayed(
    kind: Kind, dialogues: list[list[Message]], *, remembers: bool, keeps: bool
) -> Numbers:
    """Counts of all dialogues: turns from the second on, and tokens."""
    counts = {"turns": 0, "prompt": 0, "reused": 0, "left": 0, "all": 0, "reused_of_left": 0}
    async with server(kind, remembers=remembers, keeps=keeps) as (client, model):
        for seed, dialogue in enumerate(dialogues):
            for turn in await replay(kind, dialogue, client, model, seed):
                counts["turns"] += 1
                for name, value in turn.items():
                    counts[name] += value
    return {
        **counts,
        "of_left": counts["reused_of_left"] / counts["left"],
        "of_all": counts["reused"] / counts["all"],
        "hit_rate": counts["reused"] / counts["prompt"],
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
        kept = ("role", "content", "tool_calls")
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
    kind: Kind, *, remembers: bool, keeps: bool
) -> AsyncIterator[tuple[httpx2.AsyncClient, Scripted]]:
    """A server of such a model, and the model."""
    demo = prepare(EngineConfig()).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        geometry = {**GEOMETRY, "vocab_size": Tokenizer.load(demo).vocab_size}
        (directory / "config.json").write_text(json.dumps(geometry), encoding="utf-8")
        template = None
        if kind.template is not None:
            template = str(directory / "template.jinja")
            Path(template).write_text(kind.template, encoding="utf-8")
        model = Scripted(
            EngineConfig(
                model=folder,
                tokenizer=str(demo),
                load_format="dummy",
                dtype="float32",
                device="cpu",
                num_pages=PAGES,
                chat_template=template,
            )
        )
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
    parser.add_argument("--out", type=Path, help="a folder for agents.json and agents.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
