"""A key that is changed while a lab is open is the key that pays from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from openai_server import OpenAIServer

from kestrel_lab import Lab
from kestrel_lab.host.consulted_environment import ConsultedEnvironment


def test_the_second_key_pays(tmp_path: Path, serve: Callable[..., OpenAIServer]) -> None:
    """The lab chooses its model anew; a follow-up, whose model is that of its conversation, uses the new key,
    too. Without a change it is the same model.
    """
    first, second = serve(), serve()
    env = {"OPENAI_API_KEY": "sk-first-0123456789", "OPENAI_BASE_URL": first.api_base}

    async def body() -> None:
        with Lab(home=tmp_path / "lab", model="openai/some-model", env=env) as lab:
            run = await lab.start("one", workspace=tmp_path).wait()
            assert lab.registry.resolve_model(None) is lab.registry.resolve_model(None)
            env["OPENAI_API_KEY"] = "sk-second-9876543210"
            run = await lab.start("two", follow=run).wait()
            env["OPENAI_BASE_URL"] = second.api_base
            await lab.start("three", follow=run).wait()

    asyncio.run(body())
    keys = [headers.get("authorization") for headers in first.headers_seen]
    assert keys == ["Bearer sk-first-0123456789", "Bearer sk-second-9876543210"]
    assert [headers.get("authorization") for headers in second.headers_seen] == [
        "Bearer sk-second-9876543210"
    ]


def test_a_better_choice_by_default_is_made_when_its_key_is_set(tmp_path: Path) -> None:
    """Where no model is named, a key that is set later decides, and the reason says so."""
    env = {"GEMINI_API_KEY": "some-key-0123456789", "OLLAMA_HOST": "127.0.0.1:9"}
    with Lab(home=tmp_path / "lab", env=env) as lab:
        first = lab.registry.resolve_model(None).name
        assert "GEMINI_API_KEY" in lab.registry.why_model(None)
        del env["GEMINI_API_KEY"]
        env["OPENAI_API_KEY"] = "sk-0123456789"
        assert (lab.registry.resolve_model(None).name == first) is False
        assert "OPENAI_API_KEY" in lab.registry.why_model(None)


def test_only_what_was_looked_at_counts() -> None:
    """A variable that nobody asked for may change; one that was not set and is set now counts."""
    env = {"A": "1", "B": "2"}
    consulted = ConsultedEnvironment(env)
    assert (consulted["A"], consulted.get("C"), "D" in consulted) == ("1", None, False)
    env["B"] = "3"
    assert not consulted.changed
    env["C"] = "4"
    assert consulted.changed
    del env["C"]
    assert not consulted.changed
    env["A"] = "5"
    assert consulted.changed
    assert {**ConsultedEnvironment(env)} == env
