"""OpenTelemetry export: runs become spans by the GenAI conventions, in files and at a collector, stored or
live.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from waits import PATIENCE_S

from kestrel_lab import Lab, tool
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunStarted,
    StepRetried,
    StepStarted,
    ToolAnswered,
    ToolCalled,
    VerifierFinished,
    VerifierStarted,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.runtime.run import interrupt_run, is_working
from kestrel_lab.telemetry.spans import spans_of, vendor_name
from kestrel_lab.testing import ScriptedModel, Turn

SECRET = "the launch code is 4711"


@tool(effect="pure")
async def add(x: int, y: int) -> str:
    """Add two numbers."""
    return str(x + y)


class Collector:
    """A receiver of OTLP/HTTP: what it was sent, read by the protocol's own classes."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def spans(self) -> list[Span]:
        scopes = [
            scope for request in self.requests for one in request.resource_spans for scope in one.scope_spans
        ]
        return [span for scope in scopes for span in scope.spans]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def facts(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [inner.string_value for inner in value.values] if kind == "array_value" else value
    return found


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def adds(request: ModelRequest) -> Turn:
    """Two calls in turn, then an answer."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return [[("add", {"x": 1, "y": 2})], [("add", {"x": 3, "y": 4})], f"{SECRET}: 3 and 7"][turn]


def lab_of(home: Path, model: ScriptedModel | None = None, **options: Any) -> Lab:
    return Lab(home, model or ScriptedModel(adds), "auto", tools=[add], env={}, **options)


def test_a_collector_gets_the_run_by_the_conventions(tmp_path: Path, collector: Collector) -> None:
    """Names, kinds, attributes and parents of run, step, model calls and tool calls are those of the GenAI
    conventions.
    """
    with lab_of(tmp_path / "home") as lab:
        run = lab.run_sync("add", workspace=tmp_path)
        assert lab.evals.export_otel(run.id, collector.address) == 7
        happened = run.events()
    assert collector.paths == ["/v1/traces"]
    spans = collector.spans
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == 7
    names = by_name(spans)
    root, step = names["invoke_agent kestrel_lab"], names["step answer"]
    assert (root.parent_span_id, step.parent_span_id) == (b"", root.span_id)
    assert all(
        span.parent_span_id == step.span_id
        for span in spans
        if span.name.startswith(("chat", "execute_tool"))
    )
    assert [span.kind for span in (root, names["chat scripted"], names["execute_tool add"])] == [
        Span.SPAN_KIND_INTERNAL,
        Span.SPAN_KIND_CLIENT,
        Span.SPAN_KIND_INTERNAL,
    ]
    told = facts(root)
    assert (told["gen_ai.operation.name"], told["gen_ai.agent.name"], told["gen_ai.conversation.id"]) == (
        "invoke_agent",
        "kestrel_lab",
        run.id,
    )
    assert (told["kestrel.outcome"], told["kestrel.model_kind"]) == ("complete", "scripted")
    answers = [event for event in happened if isinstance(event, ModelAnswered)]
    chats = [facts(span) for span in spans if span.name == "chat scripted"]
    assert [chat["gen_ai.usage.input_tokens"] for chat in chats] == [answer.tokens_in for answer in answers]
    assert [chat["gen_ai.usage.output_tokens"] for chat in chats] == [answer.tokens_out for answer in answers]
    assert [chat["gen_ai.response.finish_reasons"] for chat in chats] == [
        ["tool_call"],
        ["tool_call"],
        ["stop"],
    ]
    calls = [facts(span)["gen_ai.tool.call.id"] for span in spans if span.name == "execute_tool add"]
    assert calls == [event.call for event in happened if isinstance(event, ToolCalled)]
    assert all(
        root.start_time_unix_nano
        <= span.start_time_unix_nano
        <= span.end_time_unix_nano
        <= root.end_time_unix_nano
        for span in spans
    )


def test_what_was_said_leaves_only_when_it_is_asked_for(tmp_path: Path, collector: Collector) -> None:
    """Goal, messages, arguments, results and errors are in no span without `content`, and in the spans with
    it.
    """

    def says(request: ModelRequest) -> Turn:
        turn = sum(message.role == "assistant" for message in request.messages)
        return [[("echo", {"text": SECRET}), ("add", {"x": SECRET, "y": 2})], SECRET][turn]

    @tool(effect="pure")
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    with lab_of(tmp_path / "home", ScriptedModel(says)) as lab:
        run = lab.run_sync(f"repeat: {SECRET}", tools=[echo, add], workspace=tmp_path)
        lab.evals.export_otel(run, collector.address)
        bare = b"".join(request.SerializeToString() for request in collector.requests)
        lab.evals.export_otel(run, collector.address, content=True)
    assert b"4711" not in bare
    assert len(collector.spans) == 12
    whole = collector.spans[6:]
    assert [span.span_id for span in whole] == [
        span.span_id for span in collector.spans[:6]
    ]  # the same ids again
    held = {key for span in whole for key, value in facts(span).items() if "4711" in str(value)}
    assert {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    } <= held


def test_a_fork_links_to_where_it_parts(tmp_path: Path, collector: Collector) -> None:
    """A fork is a trace of its own, without what it shares; its root links to the parent's span in which it
    parts.
    """
    with lab_of(tmp_path / "home") as lab:
        run = lab.run_sync("add", workspace=tmp_path)
        seq = [record.seq for record in run.records() if record.event.type == "model_called"][1]
        fork = asyncio.run(lab.fork(run.id, at=seq))
        lab.evals.export_otel(run, collector.address)
        parent = list(collector.spans)
        lab.evals.export_otel(fork, collector.address)
    forked = collector.spans[len(parent) :]
    root = by_name(forked)["invoke_agent kestrel_lab"]
    (link,) = root.links
    asked = [span for span in parent if span.name == "chat scripted"][1]
    assert (link.trace_id, link.span_id) == (asked.trace_id, asked.span_id)
    assert root.trace_id != asked.trace_id
    assert [span.name for span in forked].count("chat scripted") == 2  # the first is the parent's


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_resumed_run_links_its_sessions(
    mode: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first session left open is marked unfinished; the second begins a root of its own in the same
    trace, with a link.

    Sent live by two sessions, or from the log afterwards: the spans are the same.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)

    async def stopped(lab: Lab) -> str:
        asked = asyncio.Event()

        @tool(effect="pure")
        async def stall() -> str:
            """Wait."""
            asked.set()
            await asyncio.sleep(PATIENCE_S)
            return "never"

        async with lab:
            lab.change(model=ScriptedModel([[("stall", {})], "done"]))
            run = lab.start("wait", tools=[stall], workspace=tmp_path)
            await asked.wait()
            interrupt_run(run)
            while is_working(run):
                await asyncio.sleep(0)
            return run.id

    name = asyncio.run(stopped(lab_of(tmp_path / "home", otel=mode)))

    @tool(effect="pure")
    async def stall() -> str:
        """Wait."""
        return "waited"

    with Lab(
        tmp_path / "home", ScriptedModel([[("stall", {})], "done"]), "auto", tools=[stall], env={}, otel=mode
    ) as lab:
        run = asyncio.run(lab.resume(name))
        assert run.status is RunStatus.COMPLETE
        wanted = spans_of(run.id, run.records())
        if mode == "off":
            lab.evals.export_otel(run, collector.address)
    assert [(span.span_id, span.name) for span in collector.spans] == [
        (span.id.to_bytes(8), span.name) for span in wanted
    ]
    first, second = [span for span in collector.spans if span.name == "invoke_agent kestrel_lab"]
    assert facts(first)["kestrel.unfinished"] is True
    assert [(link.trace_id, link.span_id) for link in second.links] == [(first.trace_id, first.span_id)]
    assert second.trace_id == first.trace_id
    assert second.span_id != first.span_id
    steps = [span.parent_span_id for span in collector.spans if span.name == "step answer"]
    assert steps == [first.span_id, second.span_id]
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)


def test_a_sub_agent_is_below_the_call_that_delegated(tmp_path: Path, collector: Collector) -> None:
    """The span of a sub-agent is a child of the `delegate` call, and its own calls are below it."""

    def says(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        turn = sum(message.role == "assistant" for message in request.messages)
        if goal.startswith("build"):
            return [[("delegate", {"agent": "worker", "goal": "look at the roof"})], "built"][turn]
        return [[("add", {"x": 1, "y": 1})], "red"][turn]

    with lab_of(tmp_path / "home", ScriptedModel(says)) as lab:
        run = lab.run_sync("build", tools=["delegate", add], workspace=tmp_path)
        assert run.answer == "built"
        lab.evals.export_otel(run, collector.address)
    names = by_name(collector.spans)
    agent = names["invoke_agent answer.1.1/worker"]
    assert agent.parent_span_id == names["execute_tool delegate"].span_id
    assert names["execute_tool add"].parent_span_id == agent.span_id


def test_scores_of_a_trial_are_evaluation_results(tmp_path: Path, collector: Collector) -> None:
    """The run of a trial has a span below its root with an event `gen_ai.evaluation.result` for each
    score.
    """
    scenario = Scenario(
        id="s",
        goal="talk",
        checks=(AnswerContains(texts=("bye",)), AnswerContains(texts=("hello",))),
        place=InlineFiles(files={}),
    )
    suite = Suite(name="demo", scenarios=(scenario,), configs=(Config(name="c", model="m"),))
    with Lab(tmp_path / "home", env={}) as lab:
        result = lab.eval_sync(suite, configs={"c": ScriptedModel(["hello"])})
        lab.evals.export_otel(str(result.rows[0].result["run"]), collector.address)
    (found,) = [span for span in collector.spans if span.name.startswith("evaluate demo/s/")]
    assert found.parent_span_id == by_name(collector.spans)["invoke_agent kestrel_lab"].span_id
    events = [(event.name, {one.key: one.value for one in event.attributes}) for event in found.events]
    assert {name for name, _ in events} == {"gen_ai.evaluation.result"}
    labels = [
        (
            told["gen_ai.evaluation.score.label"].string_value,
            told["gen_ai.evaluation.score.value"].double_value,
        )
        for _, told in events
    ]
    assert labels == [("fail", 0.0), ("pass", 1.0)]


def said(events: Sequence[Event]) -> list[Any]:
    """Turns with their tokens, calls with their arguments, and results, in order."""
    turns = [(one.text, one.tokens_in, one.tokens_out) for one in events if isinstance(one, ModelAnswered)]
    calls = [(one.tool, one.args) for one in events if isinstance(one, ToolCalled)]
    return [turns, calls, [one.text for one in events if isinstance(one, ToolAnswered)]]


def test_the_file_comes_back_as_the_same_run(tmp_path: Path) -> None:
    """A run that is exported with content and imported again has the same goal, answer, calls, arguments,
    results and tokens.
    """
    for name in ("trace.json", "trace.jsonl"):
        with lab_of(tmp_path / f"home {name}") as lab:
            run = lab.run_sync("add", workspace=tmp_path)
            before = run.events()
            lab.evals.export_otel(run, tmp_path / name, content=True)
        with Lab(tmp_path / f"other {name}", env={}) as other:
            (again,) = asyncio.run(other.evals.import_runs(tmp_path / name)).runs
            found = other.get(again)
            assert (found.goal, found.answer) == (run.goal, run.answer)

            after = found.events()
        assert said(after) == said(before)


def test_half_a_character_loses_no_answer(tmp_path: Path) -> None:
    """An answer cut within a surrogate pair comes back; the SDK leaves out what is no UTF-8, and the run
    would have no answer.
    """
    with lab_of(tmp_path / "first", ScriptedModel(["half \ud83d"])) as lab:
        lab.evals.export_otel(lab.run_sync("Draw \ud83d"), tmp_path / "run.json", content=True)
    with lab_of(tmp_path / "second") as lab:
        lab.evals.import_runs_sync(tmp_path / "run.json")
        run = lab.get(lab.runs().index[0])
    assert (run.goal, run.answer) == ("Draw \ud83d", "half \ud83d")


@pytest.mark.parametrize("mode", ["on", "content"])
def test_live_spans_are_those_of_the_log(
    mode: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `otel` on, a run, its fork and its follow-up are sent as they end: the same spans as are computed
    from the log afterwards.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)

    def answers(request: ModelRequest) -> Turn:
        said = [message for message in request.messages if message.role == "user"]
        return "yes" if len(said) > 1 else adds(request)

    with lab_of(tmp_path / "home", ScriptedModel(answers), otel=mode) as lab:
        run = lab.run_sync("add", workspace=tmp_path)
        fork = asyncio.run(lab.fork(run.id))
        again = lab.run_sync("sure?", follow=run.id, workspace=tmp_path)
        wanted = [
            span
            for one in (run, fork, again)
            for span in spans_of(
                one.id,
                one.records(),
                conversation=(one if one is fork else run).id,
                content=mode == "content",
            )
        ]
    assert {span.span_id for span in collector.spans} == {span.id.to_bytes(8) for span in wanted}
    assert len(collector.spans) == len(wanted)
    told = {span.span_id: facts(span) for span in collector.spans}
    for span in wanted:
        assert told[span.id.to_bytes(8)] == {key: value for key, value in span.attributes.items()}
    (link,) = next(
        span
        for span in collector.spans
        if span.trace_id == wanted[-1].trace.to_bytes(16) and not span.parent_span_id
    ).links
    assert link.trace_id == wanted[0].trace.to_bytes(16)


def test_a_failed_run_has_the_status_error(tmp_path: Path, collector: Collector) -> None:
    """A run that a limit ends, and a call with wrong arguments, have the status ERROR and a class of
    error.
    """
    with lab_of(tmp_path / "home", ScriptedModel(lambda _: [("add", {"x": "no"})])) as lab:
        run = lab.run_sync("add", workspace=tmp_path, limits=Limits(cycles=2))
        lab.evals.export_otel(run, collector.address)
    names = by_name(collector.spans)
    assert names["invoke_agent kestrel_lab"].status.code == Status.STATUS_CODE_ERROR
    assert facts(names["invoke_agent kestrel_lab"])["error.type"] == "cycles"
    assert facts(names["execute_tool add"])["error.type"] == "invalid_arguments"
    assert names["execute_tool add"].status.message == ""


def test_a_collector_that_refuses_is_an_error(tmp_path: Path) -> None:
    """What is not taken is said, with the address."""
    refusing = Collector(status=400)
    with lab_of(tmp_path / "home") as lab:
        run = lab.run_sync("add", workspace=tmp_path)
        with pytest.raises(UsageError, match="did not take the spans") as caught:
            lab.evals.export_otel(run, refusing.address)
    refusing.close()
    assert refusing.address in str(caught.value)


def test_off_loads_nothing(tmp_path: Path) -> None:
    """A session without the option imports neither the SDK nor the export, and has no listener."""
    code = (
        "import sys; from kestrel_lab import Lab; from kestrel_lab.testing import ScriptedModel\n"
        f"lab = Lab({str(tmp_path / 'home')!r}, model=ScriptedModel(['done']), env={{}}); lab.run_sync('go', "
        f"workspace={str(tmp_path)!r})\n"
        "print(lab.options['listeners'], [n for n in sys.modules if "
        "n.startswith(('opentelemetry.sdk', 'kestrel_lab.telemetry.'))]); lab.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == "() []\n"


def test_the_absent_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK both ways say what to install, and a word that is no mode is refused."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"pip install 'kestrel-lab\[otel\]'"):
        Lab(tmp_path / "home", env={}, otel="on")
    with lab_of(tmp_path / "home") as lab:
        run = lab.run_sync("add", workspace=tmp_path)
        with pytest.raises(UsageError, match=r"pip install 'kestrel-lab\[otel\]'"):
            lab.evals.export_otel(run, tmp_path / "a.json")
    with pytest.raises(UsageError, match="otel is off, on"):
        Lab(tmp_path / "home", env={}, otel="loud")


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("gemini/gemini-3.8-flash", "gcp.gemini", "gemini-3.8-flash"),
        ("bedrock/anthropic.claude", "aws.bedrock", "anthropic.claude"),
        ("claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
        ("scripted:a/b.yaml", "_OTHER", "scripted:a/b.yaml"),
    ],
)
def test_providers_have_the_names_of_the_conventions(model: str, provider: str, name: str) -> None:
    """The provider's name is the conventions' and the model's name is the provider's."""
    assert vendor_name(model) == (provider, name)


def test_a_plan_is_a_workflow_of_agents(tmp_path: Path, collector: Collector) -> None:
    """The run of a plan is `invoke_workflow`, its steps with a goal are agents below it, with their model
    calls.
    """
    plan = Plan(
        steps=(
            Step(id="find", goal="find it", produces=("found",)),
            Step(id="tell", goal="tell it", consumes=("found",)),
        )
    )
    with lab_of(tmp_path / "home", ScriptedModel(lambda _: "done")) as lab:
        run = lab.run_sync("go", plan=plan, workspace=tmp_path)
        lab.evals.export_otel(run, collector.address)
    names = by_name(collector.spans)
    root = names["invoke_workflow"]
    assert "gen_ai.agent.name" not in facts(root)
    agents = [names["invoke_agent find"], names["invoke_agent tell"]]
    assert [(span.parent_span_id, facts(span)["gen_ai.agent.name"]) for span in agents] == [
        (root.span_id, "find"),
        (root.span_id, "tell"),
    ]
    chats = [span.parent_span_id for span in collector.spans if span.name == "chat scripted"]
    assert chats == [agent.span_id for agent in agents]


def test_verdicts_and_attempts_are_told_apart() -> None:
    """A verdict is an event of a span of its own; a step that is tried again has a second span; what never
    ended is marked, with the last event's time.
    """
    started = RunStarted(goal="g", workspace="", model="m", plan={"steps": []})
    events = [
        started,
        StepStarted(step="s", goal="g"),
        ModelCalled(call="s.m1", step="s", model="m", cycle=1, messages=1),
        StepRetried(step="s", attempt=2, error_class="transient", reason=SECRET),
        StepStarted(step="s", goal="g"),
        VerifierStarted(step="s", verifier="own"),
        VerifierFinished(step="s", verifier="own", passed=False, issues=[SECRET]),
    ]
    records = [
        Record(run_id="r", seq=number, eid="", at=float(number), event=event)
        for number, event in enumerate(events, 1)
    ]
    spans = spans_of("r", records)
    assert [(span.name, span.began, span.ended, span.error) for span in spans] == [
        ("chat m", 3.0, 4.0, None),
        ("invoke_agent s", 2.0, 4.0, ""),
        ("evaluate own", 6.0, 7.0, None),
        ("invoke_agent s", 5.0, 7.0, None),
        ("invoke_workflow", 1.0, 7.0, None),
    ]
    assert len({span.id for span in spans}) == len(spans)
    assert [span.attributes.get("kestrel.unfinished", False) for span in spans] == [
        False,
        False,
        False,
        True,
        True,
    ]
    ((_, verdict),) = spans[2].results
    assert verdict == {"gen_ai.evaluation.name": "own", "gen_ai.evaluation.score.label": "fail"}
    ((_, verdict),) = spans_of("r", records, content=True)[2].results
    assert verdict["gen_ai.evaluation.explanation"] == SECRET


def test_a_chat_is_one_conversation(tmp_path: Path, collector: Collector) -> None:
    """A follow-up has the id of the first run as its conversation and links to the run that it follows."""
    with lab_of(tmp_path / "home", ScriptedModel(lambda _: "hello")) as lab:
        runs = [lab.run_sync("one", workspace=tmp_path)]
        for goal in ("two", "three"):
            runs.append(lab.run_sync(goal, follow=runs[-1].id, workspace=tmp_path))
        for run in runs:
            lab.evals.export_otel(run, collector.address)
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert {facts(root)["gen_ai.conversation.id"] for root in roots} == {runs[0].id}
    assert [[link.span_id for link in root.links] for root in roots] == [
        [],
        [roots[0].span_id],
        [roots[1].span_id],
    ]


def test_a_run_that_waits_is_sent_when_its_session_ends(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waits for an approval that nobody can give leaves nothing unsent: what is open is marked
    unfinished.
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)

    @tool(danger_level="high")
    async def launch() -> str:
        """Launch."""
        return "launched"

    with Lab(
        tmp_path / "home", ScriptedModel([[("launch", {})], "done"]), "ask", tools=[launch], env={}, otel="on"
    ) as lab:
        with pytest.raises(ApprovalRequired):
            lab.run_sync("go", workspace=tmp_path)
    unfinished = {span.name for span in collector.spans if facts(span).get("kestrel.unfinished")}
    assert unfinished == {"invoke_agent kestrel_lab", "step answer"}
