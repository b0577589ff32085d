"""The agent loop: prompt, tool calls of a turn, structured output."""
