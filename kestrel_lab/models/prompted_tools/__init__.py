"""Tool calling by text, for models that have no tool calling of their own."""
