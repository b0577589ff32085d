"""Files of other tools that are no recordings: whose they are, by name or content, and how to bring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherTool:
    """A file that another tool writes and this one does not read."""

    title: str
    way: str
    """How to bring what is in it."""
    named: tuple[str, ...] = ()
    """How its files are called, with stars."""
    keys: frozenset[str] = frozenset()
    """What the object in it has, or the first object of a list."""
    fits: Callable[[Mapping[str, Any]], bool] = lambda _: True


_SUITE: Final = "kestrel eval import-suite {file}"
_ROWS: Final = "write a suite that makes scenarios of its rows (scenarios_from, with file: {file})"
_MESSAGES: Final = "write its conversations as chat logs, one object with `messages` a line"

OTHER_TOOLS: Final = (
    OtherTool(
        title="promptfoo: a configuration",
        way=_SUITE,
        named=("promptfooconfig.*",),
        keys=frozenset({"prompts", "providers"}),
    ),
    OtherTool(
        title="promptfoo: results of `promptfoo eval -o`",
        way="kestrel eval import-suite for its configuration; its answers are judged again there",
        keys=frozenset({"evalId", "results"}),
    ),
    OtherTool(title="pydantic-evals: a dataset", way=_SUITE, keys=frozenset({"cases", "evaluators"})),
    OtherTool(title="pydantic-evals: a dataset", way=_SUITE, keys=frozenset({"cases"})),
    OtherTool(
        title="SWE-bench: predictions",
        way="import the trajectories of the agent that wrote them",
        named=("preds.json", "all_preds.jsonl", "predictions.jsonl"),
        keys=frozenset({"instance_id", "model_patch"}),
    ),
    OtherTool(
        title="SWE-bench: a report",
        way="import the trajectories of the agent; a report has no conversations",
        keys=frozenset({"resolved_ids", "submitted_instances"}),
    ),
    OtherTool(
        title="lm-evaluation-harness: samples",
        way=_ROWS,
        named=("samples_*.jsonl",),
        keys=frozenset({"doc", "filtered_resps"}),
    ),
    OtherTool(
        title="lm-evaluation-harness: results",
        way="import its samples_*.jsonl: run it with --log_samples",
        keys=frozenset({"results", "n-shot"}),
    ),
    OtherTool(
        title="OpenAI Evals: a log of events",
        way=_MESSAGES,
        keys=frozenset({"run_id", "event_id", "sample_id"}),
    ),
    OtherTool(
        title="OpenAI: a file of fine-tuning preferences", way=_MESSAGES, keys=frozenset({"preferred_output"})
    ),
    OtherTool(title="DeepEval: test cases", way=_ROWS, keys=frozenset({"actual_output", "input"})),
    OtherTool(title="DeepEval: results", way=_ROWS, keys=frozenset({"testCases", "metricsScores"})),
    OtherTool(title="Ragas: rows", way=_ROWS, keys=frozenset({"user_input", "response"})),
    OtherTool(
        title="Braintrust: rows of an experiment",
        way=_ROWS,
        keys=frozenset({"span_attributes", "root_span_id"}),
    ),
    OtherTool(
        title="Weights & Biases Weave: calls",
        way=_MESSAGES,
        keys=frozenset({"op_name", "trace_id", "inputs"}),
    ),
    OtherTool(
        title="MLflow: a trace",
        way="export it as OpenTelemetry (OTLP JSON)",
        keys=frozenset({"info", "data"}),
        fits=lambda value: isinstance(value["data"], Mapping) and "spans" in value["data"],
    ),
    OtherTool(
        title="Cline or Roo Code: a task",
        way="name its api_conversation_history.json",
        named=("ui_messages.json", "task_metadata.json"),
    ),
    OtherTool(title="Aider: a chat", way=_MESSAGES, named=(".aider.chat.history.md", ".aider*.json")),
    OtherTool(
        title="lm-evaluation-harness: a task",
        way="write the rows of its dataset as scenarios: scenarios_from",
        keys=frozenset({"dataset_path", "doc_to_text"}),
    ),
    OtherTool(
        title="Terminal-Bench: a task",
        way="convert it with Harbor, and import the task's folder by kestrel eval import-suite",
        keys=frozenset({"instruction", "parser_name"}),
    ),
    OtherTool(
        title="Terminal-Bench: results",
        way="run its tasks with Harbor and import the folder of jobs",
        keys=frozenset({"n_resolved", "n_unresolved"}),
    ),
    OtherTool(
        title="Harbor: a configuration", way="import the folder of the job", keys=frozenset({"jobs_dir"})
    ),
    OtherTool(
        title="ShareGPT: a list of conversations with no turns",
        way=_MESSAGES,
        keys=frozenset({"conversation"}),
    ),
    OtherTool(title="Vercel AI SDK: a result", way=_MESSAGES, keys=frozenset({"finishReason", "steps"})),
    OtherTool(
        title="a notebook", way="open it in Jupyter: kestrel reads no conversations of it", named=("*.ipynb",)
    ),
)
"""The first that fits is told: the narrower forms come before the wider ones."""


def name_other_tool(path: Path, value: Any = None) -> str:
    """Return whose file it is and how to bring it, in a sentence; empty for one that nothing is known of."""
    first = value[0] if isinstance(value, list) and value else value
    for tool in OTHER_TOOLS:
        by_name = any(path.match(pattern) for pattern in tool.named)
        by_content = bool(tool.keys) and isinstance(first, Mapping) and tool.keys <= first.keys()
        if by_name or (by_content and isinstance(first, Mapping) and tool.fits(first)):
            return f"a file of {tool.title}: {tool.way.format(file=path.name)}"
    return ""
