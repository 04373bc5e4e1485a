"""Usage says on request where the prompt's tokens came from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.stack import stack, usage


@pytest.mark.parametrize("stream", [False, True])
def test_reused_copied_and_computed_tokens_add_up_to_the_prompt(tmp_path, stream: bool):
    fields: dict[str, Any] = {"max_tokens": 1, "return_cached_tokens_details": True}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}

    async def scenario() -> None:
        async with stack(tmp_path, page_size=4) as server:
            prompt = list(range(20, 40))
            cold = usage(await server.ask(prompt=prompt, **fields))
            assert cold["radixserve"] == {
                "reused_tokens": 0,
                "copied_tokens": 0,
                "computed_tokens": 20,
            }
            parted = [*prompt[:10], 90, 91, 92, 93]
            warm = usage(await server.ask(prompt=parted, **fields))
            assert warm["radixserve"] == {
                "reused_tokens": 8,
                "copied_tokens": 2,
                "computed_tokens": 4,
            }
            assert warm["prompt_tokens_details"]["cached_tokens"] == 10
            both = usage(await server.ask(prompt=[parted, prompt], **fields))
            assert sum(both["radixserve"].values()) == both["prompt_tokens"] == 34
            plain = usage(await server.ask(prompt=prompt, max_tokens=1))
            assert "radixserve" not in plain

    asyncio.run(scenario())
