"""Registry of adapters: names of agents that can be used as a model or runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kestrel_lab.adapters.adapter import Adapter
from kestrel_lab.adapters.agent_client_protocol import ACP, ACP_2, AcpAdapter
from kestrel_lab.adapters.claude_code import CLAUDE_CODE
from kestrel_lab.adapters.codex import CODEX
from kestrel_lab.adapters.gemini import GEMINI
from kestrel_lab.adapters.opencode import OPENCODE
from kestrel_lab.adapters.subprocess_reader import AgentProgram, ProgramAdapter


def adapter_factories(env: Mapping[str, str]) -> dict[str, Callable[[str], Adapter]]:
    """Return a factory of the adapter for each name; programs get their keys from `env`.

    A factory takes the text after the colon of the name: a model of the program, or the command of an ACP
    agent.
    """

    def of(program: AgentProgram, model: str) -> Adapter:
        return ProgramAdapter(program=program, env=env, model=model)

    found: dict[str, Callable[[str], Adapter]] = {
        one.name: partial(of, one) for one in (CLAUDE_CODE, CODEX, GEMINI, OPENCODE)
    }
    for word, version in ((ACP, 1), (ACP_2, 2)):
        found[word] = partial(_acp, env, version)
    return found


def _acp(env: Mapping[str, str], version: int, command: str) -> Adapter:
    return AcpAdapter(env=env, command=command, version=version)
