"""Everybody gets answers of their own, and nobody reads what others sent."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re

import pytest
from starlette.routing import Route

from radixserve.server.service import Settings
from radixserve.server.tenants.audit import Audit
from radixserve.tenants.keys import hash_of
from radixserve.tokens import unpack
from tests.engine.saying import TEXT
from tests.engine.timing import under_way
from tests.server.asking import CHAT, COMPLETIONS, HANG
from tests.server.stack import Stack, cached, said
from tests.server.tenants.people import FILE, KEYS, bearer, registry
from tests.server.tenants.sharing import GENERATE, ROUTES, ask, body, reused, shared


def test_two_tenants_with_one_request_id_both_get_their_own_answers(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            server.model.hold()
            sent = {"x-request-id": "the same"}
            tasks = [
                asyncio.create_task(
                    server.client.post(
                        COMPLETIONS,
                        json=body(COMPLETIONS, f"{name} asks", most=length),
                        headers={**bearer(name), **sent},
                    )
                )
                for name, length in (("alice", 10), ("bob", 20))
            ]
            await under_way(server.engine, 2)
            server.model.free()
            answers = await asyncio.gather(*tasks)
            assert [said(answer) for answer in answers] == [TEXT[:10], TEXT[:20]]
            assert {answer.headers["x-request-id"] for answer in answers} == {"the same"}
            await server.settle()

    asyncio.run(scenario())


def test_the_same_question_is_answered_anew_for_everybody(tmp_path):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            identities = set()
            for number, name in enumerate(("alice", "bob", "alice"), 1):
                sent = body(COMPLETIONS, most=20)
                answer = await server.ask(key=KEYS[name], **sent, temperature=0, seed=1)
                identities.add(answer.json()["id"])
                assert said(answer) == TEXT[:20]
                assert server.engine.stats().generated_tokens == number * 20
            assert len(identities) == 3
            assert cached(answer) > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, GENERATE])
def test_an_answer_to_a_prompt_that_ends_within_a_character_shows_none_of_the_prompt(
    tmp_path, path: str, stream: bool
):
    async def scenario() -> None:
        async with shared(tmp_path) as server:
            whole = unpack(server.engine.tokenizer.encode("marker-in-prompt €"))
            for cut in (1, 2):
                sent = body(path, stream=stream, most=20)
                sent["prompt" if path == COMPLETIONS else "input_ids"] = whole[:-cut]
                sent.pop("text", None)
                for _ in range(2):  # the second time it is cached
                    answer = await server.ask(path, key=KEYS["alice"], **sent)
                    assert answer.status_code == 200, answer.text
                    assert "marker" not in answer.text
                    assert "\ufffd" not in answer.text
                    if path == COMPLETIONS:
                        assert said(answer) == TEXT[:20]
                assert reused(path, answer) > 0

    asyncio.run(scenario())


def test_secrets_stand_in_no_log_and_in_no_status(tmp_path, caplog: pytest.LogCaptureFixture):
    secrets = {"prompt": "marker-in-prompt", "salt": "marker-in-salt", "key": "rsk_marker-in-key"}
    text = FILE.replace(registry().tenants["alice"].keys[0], hash_of(secrets["key"]))
    path = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        with Audit(path) as audit:
            async with shared(tmp_path / "model", registry(text), audit=audit) as server:
                for route, salt in itertools.product(ROUTES, ("cache_salt", "extra_key")):
                    for stream in (False, True):
                        sent = body(route, secrets["prompt"], stream=stream)
                        await server.ask(
                            route, key=secrets["key"], **sent, **{salt: secrets["salt"]}
                        )
                        sent = {**sent, "n": "wrong", salt: secrets["salt"]}
                        await server.ask(route, key=secrets["key"], **sent)
                        await server.ask(route, key=secrets["key"] + "x", **sent)
                assert server.engine.stats().cached_tokens > 0
                shown = []
                for each in server.app.routes:
                    if isinstance(each, Route) and "GET" in (each.methods or ()):
                        url = re.sub(r"\{[^}]*\}", "tiny", each.path)
                        answer = await server.client.get(url, headers=bearer("boss"))
                        assert answer.status_code in (200, 404, 501)
                        shown.append(answer.text)
                assert len(shown) >= 15
                texts = "\n".join(shown)
                assert 'tenant="alice"' in texts
                for secret in secrets.values():
                    assert secret not in texts

    (tmp_path / "model").mkdir()
    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert "POST /v1/completions 200" in caplog.text
    written = path.read_text(encoding="utf-8")
    assert len(written.splitlines()) >= 3 * 2 * 2 * 3
    for secret in secrets.values():
        assert secret not in caplog.text
        assert secret not in written


async def batch_of(server: Stack, name: str) -> list[int]:
    """Tokens reused by each line of a batch with the same question, asked by ``name``."""
    line = {"custom_id": "one", "method": "POST", "url": CHAT, "body": body(CHAT)}
    sent = await server.client.post(
        "/v1/files",
        files={"file": ("in.jsonl", json.dumps(line).encode())},
        data={"purpose": "batch"},
        headers=bearer(name),
    )
    made = await server.client.post(
        "/v1/batches",
        json={"input_file_id": sent.json()["id"], "endpoint": CHAT, "completion_window": "24h"},
        headers=bearer(name),
    )
    batch = made.json()
    for each in ("alice", "bob"):
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{sent.json()['id']}"):
            seen = await server.client.get(path, headers=bearer(each))
            assert seen.status_code == (200 if each == name else 404)
    while batch["status"] not in ("completed", "failed"):
        await asyncio.sleep(0)
        path = f"/v1/batches/{batch['id']}"
        batch = (await server.client.get(path, headers=bearer(name))).json()
    path = f"/v1/files/{batch['output_file_id']}/content"
    text = (await server.client.get(path, headers=bearer(name))).text
    bodies = [json.loads(each)["response"]["body"] for each in text.splitlines()]
    return [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in bodies]


def test_batches_are_the_tenants_whose_they_are(tmp_path):
    async def scenario() -> None:
        settings = Settings(files_dir=tmp_path / "files")
        tenants = registry()
        async with shared(tmp_path / "model", tenants, server=settings) as server:
            assert await batch_of(server, "alice") == [0]
            assert await batch_of(server, "bob") == [0]
            [reused] = await batch_of(server, "alice")
            assert reused > 0
            assert await ask(server, "bob", CHAT) == reused
            counted = {tenant.name: meter.totals.requests for tenant, meter in tenants.meters()}
            assert (counted["alice"], counted["bob"]) == (2, 2)

    (tmp_path / "model").mkdir()
    asyncio.run(asyncio.wait_for(scenario(), HANG))
