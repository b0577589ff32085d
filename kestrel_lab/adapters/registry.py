"""Registry of adapters: the names under which other people's agents are runners, wherever a model or a runner
is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kestrel_lab.adapters.adapter import Adapter
from kestrel_lab.adapters.agent_client_protocol import ACP, AcpAdapter
from kestrel_lab.adapters.claude_code import CLAUDE_CODE
from kestrel_lab.adapters.codex import CODEX
from kestrel_lab.adapters.gemini import GEMINI
from kestrel_lab.adapters.opencode import OPENCODE
from kestrel_lab.adapters.subprocess_reader import AgentProgram, ProgramAdapter


def adapter_factories(env: Mapping[str, str]) -> dict[str, Callable[[str], Adapter]]:
    """Return what makes the adapter of each name; programs are started with `env`, in which they find their
    keys.

    Each is given what stands behind the name's colon: a model within the program, or the command of an ACP
    agent.
    """

    def of(program: AgentProgram, model: str) -> Adapter:
        return ProgramAdapter(program=program, env=env, model=model)

    found: dict[str, Callable[[str], Adapter]] = {
        one.name: partial(of, one) for one in (CLAUDE_CODE, CODEX, GEMINI, OPENCODE)
    }
    return found | {ACP: lambda command: AcpAdapter(env=env, command=command)}
