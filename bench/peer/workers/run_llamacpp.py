"""llama.cpp through its C interface, as its batched benchmark calls it, with a prefix cache."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import llama_cpp as lib
import numpy as np
from wire import Message, serve

BATCH = 2048
KV_TYPES = {"f16": 1, "bf16": 30}
"""Numbers of ``enum ggml_type``."""
ROOM = 512
"""Cells beyond what a run needs, since cells are handed out in groups."""


class LlamaCpp:
    """Sequence i holds the KV of prompt i of the run before.

    Of a new prompt i only that is computed in which it differs from it, or from sequence 0 when
    that one has more of it. Requests that share a prefix share its cells (a unified KV cache);
    without a shared prefix each sequence has cells of its own, which is then faster.
    """

    packages = ("llama-cpp-python",)

    def __init__(self, model: str, threads: int, flash: bool, kv: str):
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            os.fsencode(model), lib.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"{model} cannot be loaded")
        self._threads, self._flash = threads, flash
        self._kv = KV_TYPES[kv]
        self._vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._token = np.ctypeslib.as_array(self._batch.token, (BATCH,))
        self._position = np.ctypeslib.as_array(self._batch.pos, (BATCH,))
        self._wanted = np.ctypeslib.as_array(self._batch.logits, (BATCH,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (BATCH,))[:] = 1
        self._context = None
        self._held: list[list[int]] = []
        self.settings: Message = {
            "weights": "bf16",
            "kv": kv,
            "flash_attention": flash,
            "kv_unified": "where requests share a prefix",
            "n_batch": BATCH,
            "system": lib.llama_print_system_info().decode(),
        }

    def begin(self, requests: int, longest: int, shared: int) -> None:
        if self._context is not None:
            lib.llama_free(self._context)
        parameters = lib.llama_context_default_params()
        self._unified = shared > 0 or requests == 1
        own = longest - shared
        parameters.kv_unified = self._unified
        parameters.n_ctx = shared + requests * own + ROOM if self._unified else requests * longest
        parameters.n_batch = BATCH
        parameters.n_seq_max = parameters.n_outputs_max = requests
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.type_k = parameters.type_v = self._kv
        parameters.flash_attn_type = int(self._flash)
        self._context = lib.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError(f"no context for {requests} requests of {longest} tokens")
        self._memory = lib.llama_get_memory(self._context)
        self._held = [[] for _ in range(requests)]

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        kept = [self._keep(number, prompts[number]) for number in reversed(range(len(prompts)))]
        kept.reverse()
        work = [
            (token, position, number, position == len(prompt) - 1)
            for number, (prompt, start) in enumerate(zip(prompts, kept, strict=True))
            for position, token in enumerate(prompt[start:], start)
        ]
        first = [
            token for at in range(0, len(work), BATCH) for token in self._decode(work[at:][:BATCH])
        ]
        answers = [[token] for token in first]
        for step in range(max_tokens - 1):
            row = [
                (answer[-1], len(prompt) + step, number, True)
                for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
            ]
            for answer, token in zip(answers, self._decode(row), strict=True):
                answer.append(token)
        for number, prompt in enumerate(prompts):
            lib.llama_memory_seq_rm(self._memory, number, len(prompt), -1)
            self._held[number] = prompt
        return answers

    def memory(self) -> Message:
        return {}

    def _keep(self, number: int, prompt: list[int]) -> int:
        """How many tokens of ``prompt`` its sequence holds now; the rest of it is dropped."""
        most = len(prompt) - 1
        own = min(_common(self._held[number], prompt), most)
        trunk = min(_common(self._held[0], prompt), most) if self._unified else 0
        if trunk > own:
            lib.llama_memory_seq_rm(self._memory, number, -1, -1)
            lib.llama_memory_seq_cp(self._memory, 0, number, 0, trunk)
            return trunk
        lib.llama_memory_seq_rm(self._memory, number, own, -1)
        return own

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (token, position, sequence, wanted) rows: a greedy token for each wanted one."""
        count = len(rows)
        tokens, positions, numbers, wanted = zip(*rows, strict=True)
        self._token[:count] = tokens
        self._position[:count] = positions
        self._wanted[:count] = wanted
        for at, number in enumerate(numbers):
            self._batch.seq_id[at][0] = number
        self._batch.n_tokens = count
        status = lib.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        outputs = sum(wanted)
        lib.llama_synchronize(self._context)
        if not outputs:
            return []
        logits = ctypes.cast(lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        shaped = np.ctypeslib.as_array(logits, (outputs, self._vocabulary))
        return shaped.argmax(axis=1).tolist()


def _common(one: list[int], other: list[int]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


if __name__ == "__main__":
    serve(LlamaCpp)
