"""OpenVINO GenAI's continuous batching pipeline, in this process."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino_genai as genai
from wire import Message, serve


class OpenVino:
    packages = ("openvino-genai", "openvino", "optimum-intel", "transformers")

    def __init__(self, model: str, threads: int, kv_bytes: int, kv: str):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = max(1, kv_bytes >> 30)
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_seqs = 64
        # Said always: an exported model names one of its own, which overrides the engine's default.
        properties: Message = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": kv}
        self._pipeline = genai.ContinuousBatchingPipeline(
            model, scheduler_config=scheduler, device="CPU", properties=properties
        )
        self.settings: Message = {
            "weights": "16 bits, as exported",
            "kv": kv,
            "properties": properties,
            "scheduler": scheduler.to_string(),
        }

    def begin(self, requests: int, longest: int, shared: int) -> None:
        """Its cache cannot be emptied from outside, and makes room by itself."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        config = genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        tensors = [ov.Tensor(np.array([each], dtype=np.int64)) for each in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def memory(self) -> Message:
        return {}


if __name__ == "__main__":
    serve(OpenVino)
