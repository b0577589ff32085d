"""Checks that no trial of a suite can pass, because the agent is not offered the tools that they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel_lab.adapters.adapter import is_adapter
from kestrel_lab.checks.composition import out_of_reach
from kestrel_lab.core.protocols import TrialStart
from kestrel_lab.evals.execution.prepare import PreparedSuite
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suite import Config, Scenario
from kestrel_lab.views.formatting import format_count

_MOST_SHOWN: Final = 3
"""Checks that are named one by one."""


def checks_out_of_reach(ready: PreparedSuite) -> list[str]:
    """Return a sentence for each check that cannot pass, as the check itself declares, and one for those
    beyond the first few.
    """
    found = list(dict.fromkeys(_sentences(ready)))
    more = len(found) - _MOST_SHOWN
    if more <= 0:
        return found
    return [*found[:_MOST_SHOWN], f"{format_count(more, 'more check')} cannot pass for want of a tool"]


def _sentences(ready: PreparedSuite) -> Iterator[str]:
    for scenario in ready.suite.scenarios:
        for config in ready.suite.configs:
            start = _start_of(ready, scenario, config)
            if start is None:
                continue
            for check in scenario.checks:
                if reason := out_of_reach(check, start):
                    offered = ", ".join(start.tools) or "none"
                    yield (
                        f"scenario {scenario.id!r} [{config.name}]: the check {check.label!r} cannot pass: "
                        f"{reason}, and the agent is offered {offered}. Name the tools of the scenario, "
                        "tools: [default] or single ones"
                    )


def _start_of(ready: PreparedSuite, scenario: Scenario, config: Config) -> TrialStart | None:
    """Return what a trial begins with; `None` where its tools are its own, or those of another program."""
    brings_tools = scenario.environment is not None or is_adapter(ready.models[config.name])
    if brings_tools or scenario.id in ready.skipped:
        return None
    toolbox = ready.toolbox(scenario, config)
    filled = scenario.before or scenario.history or scenario.image or scenario.dockerfile
    files = scenario.place.files if isinstance(scenario.place, InlineFiles) and not filled else None
    return TrialStart(tools={tool.name: tool.effect for tool in toolbox}, files=files)
