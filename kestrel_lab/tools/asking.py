"""Asking the person a run works for."""

from __future__ import annotations

from dataclasses import replace

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError
from kestrel_lab.tools.decorator import tool


@tool(name="ask_user", danger_level=Danger.SAFE, effect="pure", version="1", reads="", reaches="nothing")
def _nobody(question: str, options: list[str] | None = None) -> str:
    """Ask the user a question that only they can decide, and return what they say. Do not ask for what you can find out.

    Args:
        question: What you need to know, in one or two sentences.
        options: Answers to choose from, if there are a few; the user may still answer otherwise.

    """
    msg = "nobody is here to answer: decide yourself, go on, and say in your answer what you assumed"
    raise ToolError(msg)


ask_user = replace(_nobody, asks_person=True)
"""The question is put to a person like an approval; the function speaks where nobody can be asked."""
