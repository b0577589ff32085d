"""Citations, JSON answers, spending, functions: what each passes, and what it says when it does not."""

import asyncio
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from kestrel_lab.checks.answer import AnswerSchema
from kestrel_lab.checks.behaviour import CostAtMost, SecondsAtMost, TokensAtMost
from kestrel_lab.checks.grounding import AnswerCites
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.core.errors import CheckError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ModelAnswered, Record, ToolAnswered
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score


def judge(check, tmp_path, answer="", events=(), function=None):
    """The score of `check` for a finished run; one event a second."""
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return asyncio.run(
        check(Trial(goal="g", answer=answer, records=records, workspace=tmp_path, function=function))
    )


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("It is in app.py.", True),
        ("See `app.py:12`, line 12", True),
        ("(app.py)", True),
        ("src/app.py", False),
        ("app.pyc", False),
        ("app.py.bak", False),
        ("my-app.py", False),
        ("APP.PY", False),
        ("", False),
    ],
)
def test_a_source_is_cited_whole(tmp_path, answer, cited):
    """A name within a longer name is another name."""
    assert judge(AnswerCites(sources=("app.py",)), tmp_path, answer).passed is cited


def test_citations_are_counted_and_may_have_to_be_seen(tmp_path):
    """The value is the share cited; a source no tool told of is a guess where `seen` is asked for."""
    answer = "a.py and b.py"
    assert judge(AnswerCites(sources=("a.py", "c.py")), tmp_path, answer) == Score(
        check="answer cites all of a.py, c.py", passed=False, value=0.5, reason="not cited: c.py"
    )
    assert judge(AnswerCites(sources=("a.py", "c.py"), mode="any"), tmp_path, answer).passed
    asked = ModelAnswered(
        call="m", step="s", model="m", calls=[{"id": "1", "name": "read_file", "args": {"path": "b.py"}}]
    )
    seen = [asked, ToolAnswered(call="1", step="s", tool="read_file", text="a.py:1: x")]
    assert judge(AnswerCites(sources=("a.py", "b.py"), seen=True), tmp_path, answer, seen).passed
    assert (
        judge(AnswerCites(sources=("a.py", "b.py"), seen=True), tmp_path, answer).reason
        == "cited, but in no call: a.py, b.py"
    )


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_json_answers(tmp_path):
    """JSON alone, fenced or among words is judged by the schema; no JSON is not a pass."""
    check = AnswerSchema(schema=SCHEMA)
    for answer in ('{"n": 3}', 'Here:\n```json\n{"n": 3}\n```', 'I think {"n": 3} it is'):
        assert judge(check, tmp_path, answer).passed
    assert judge(check, tmp_path, '{"n": "3"}').reason == "n: '3' is not of type 'integer'"
    assert judge(check, tmp_path, "{}").reason == "the value: 'n' is a required property"
    assert judge(check, tmp_path, "three").reason == "there is no JSON in it; answered 'three'"
    assert judge(check, tmp_path, " ").reason == "there is no answer"


def test_a_schema_is_not_fetched(tmp_path):
    """A reference to another document is an error; whoever serves that document is not asked for it."""
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(Exception, match="Unresolvable"):
            judge(
                AnswerSchema(schema={"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"}),
                tmp_path,
                "{}",
            )
        server.shutdown()
    assert asked == []


def test_spending(tmp_path):
    """Bounds hold for what the run used; stored answers cost nothing and waiting for a person takes no
    time.
    """
    events = [
        ModelAnswered(call="m1", step="s", model="m", tokens_in=90, tokens_out=10, cost_usd=0.25),
        ModelAnswered(call="m2", step="s", model="m", tokens_in=900, cost_usd=9.0, cached=True),
        ApprovalAsked(call="t", step="s", tool="bash", args={}, danger="HIGH", key="k"),
        ApprovalGiven(call="t", granted=True, by="me", how="click"),
    ]
    assert judge(CostAtMost(usd=0.25), tmp_path, events=events).passed
    assert judge(CostAtMost(usd=0.1), tmp_path, events=events) == Score(
        check="cost at most $0.1", passed=False, value=0.4, reason="it cost $0.2500"
    )
    assert judge(TokensAtMost(n=100), tmp_path, events=events).passed
    assert judge(TokensAtMost(n=50), tmp_path, events=events).reason == "it used 100 tokens"
    assert judge(SecondsAtMost(seconds=2.0), tmp_path, events=events).passed
    assert judge(SecondsAtMost(seconds=1.0), tmp_path, events=events).reason == "it took 2.00 s"


def test_an_unknown_price_is_no_bargain(tmp_path):
    """Where prices are not known nobody can tell that the cost was kept; that it was not may be known all the
    same.
    """
    events = [
        ModelAnswered(call="m1", step="s", model="m", cost_usd=0.2),
        ModelAnswered(call="m2", step="s", model="m"),
    ]
    with pytest.raises(CheckError, match="the price of 1 of 2 model calls is not known"):
        judge(CostAtMost(usd=1.0), tmp_path, events=events)
    assert not judge(CostAtMost(usd=0.1), tmp_path, events=events).passed


async def later(trial):
    """A check that has to wait for something."""
    await asyncio.sleep(0)
    return trial.answer == "42"


@pytest.mark.parametrize(
    ("function", "score"),
    [
        (lambda trial: trial.answer == "42", (True, 1.0, "")),
        (lambda _trial: False, (False, 0.0, "it said False")),
        (lambda _trial: (0.5, "half of it"), (False, 0.5, "half of it")),
        (lambda _trial: 1, (True, 1.0, "")),
        (later, (True, 1.0, "")),
        (lambda _trial: Score(check="mine", passed=False, value=0.25, reason="r"), (False, 0.25, "r")),
    ],
)
def test_functions_judge(tmp_path, function, score):
    """A function says yes, no, how much, why, or gives a whole score, at once or later."""
    found = judge(PythonCheck(function="m:f"), tmp_path, "42", function={"m:f": function}.__getitem__)
    assert (found.passed, found.value, found.reason) == score


@pytest.mark.parametrize("said", [None, "yes", 2, -1, float("nan"), (True,), (True, 3)])
def test_what_is_no_opinion_is_an_error(tmp_path, said):
    """A function that forgets to return, or returns something else, has not judged."""
    with pytest.raises(CheckError, match="a check returns True, False"):
        judge(PythonCheck(function="m:f"), tmp_path, function=lambda _name: lambda _trial: said)


def test_a_function_needs_a_suite(tmp_path):
    """Outside a suite nobody says where functions are."""
    with pytest.raises(CheckError, match="works in a suite only"):
        judge(PythonCheck(function="m:f"), tmp_path)
