"""radixserve: an LLM server whose prefix cache is a radix tree over paged KV."""

__version__ = "0.1.0"
