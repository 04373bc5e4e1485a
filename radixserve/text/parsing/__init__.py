"""Reasoning and tool calls in what models write, as each family of models marks them."""
