"""Ours, in-process, at its defaults."""

from __future__ import annotations

from typing import Any

from wire import Message, resident, serve

from radixserve.engine.llm import LLM
from radixserve.scheduling.sampling import SamplingParams


class Ours:
    packages = ("radixserve", "torch", "transformers")

    def __init__(
        self, model: str, threads: int, kv_bytes: int, weight_bytes: int, cascade: bool = True
    ):
        self._llm = LLM(model, threads=threads, kv_memory=kv_bytes, cascade_attention=cascade)
        self._weight_bytes = weight_bytes
        info, config = self._llm.core.runner.info, self._llm.core.config
        self.settings: Message = {
            "weights": info.dtype,
            "kv": info.dtype,
            "backend": info.backend,
            "cascade_attention": cascade,
            "page_size": config.page_size,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "kv_bytes": info.num_pages * config.page_size * info.kv_bytes_per_token,
        }

    def begin(self, requests: int, longest: int, shared: int) -> None:
        self._llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        outputs = self._llm.generate(prompts, sampling)
        return [output.completions[0].token_ids for output in outputs]

    def memory(self) -> Message:
        """What the process holds beyond weights and KV pool; the cache is lost."""
        self._llm.reset_prefix_cache()
        runner: Any = self._llm.core.runner
        pool = runner._storage.kv
        pool.zero_()  # pages that were never written do not count as resident otherwise
        resident_bytes = resident()
        return {
            "resident": resident_bytes,
            "weights": self._weight_bytes,
            "kv_pool": pool.nbytes,
            "beyond": resident_bytes - self._weight_bytes - pool.nbytes,
        }


if __name__ == "__main__":
    serve(Ours)
