"""What the clients are to ask, and to find."""

from __future__ import annotations

from typing import Any

MODEL = "tiny"
KEY = "none"
HANG = 120.0
"""Seconds; what takes longer is taken for a hang."""
QUESTION = "What is the capital of France, and how many people live in it?"
TOO_LONG = "Please read this. " * 200
"""More tokens than the model takes."""
LENGTH = 24
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TOOLS = [
    WEATHER,
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]
CALLS = [
    ("get_weather", {"city": "Rome", "days": 3}),
    ("run", {"code": 'if a["b"] == {\n}:\n\tpass \\', "exact": True}),
    ("now", {}),
]
"""What the engine that always calls says."""
