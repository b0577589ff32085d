"""Claims about trying a model call again."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waits import FOREVER_S

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta
from kestrel_lab.models.retry import LONGEST_WAIT_S, with_retries


class Flaky:
    """Fails with these errors in turn, then answers."""

    name = "test/flaky"
    kind: ModelKind = "scripted"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return ModelAnswer(text="ok")


def run(model: Model) -> str:
    """The text of one answer."""
    return asyncio.run(
        model(ModelRequest(messages=[Message(role="user", text="hi")]), lambda piece: None)
    ).text


def passing(retry_after_s: float | None = None) -> ModelError:
    """An error that may pass."""
    return ModelError("busy", transient=True, retry_after_s=retry_after_s)


def test_attempts_are_counted() -> None:
    """With three attempts two passing failures are overcome and a third one is the result."""
    overcome, lost = Flaky(passing(), passing()), Flaky(passing(), passing(), passing())
    assert (run(with_retries(overcome, first_wait_s=0.01)), overcome.asked) == ("ok", 3)
    with pytest.raises(ModelError, match="busy"):
        run(with_retries(lost, first_wait_s=0.01))
    assert lost.asked == 3


@pytest.mark.parametrize(
    "error",
    [ModelError("bad key"), ValueError("a bug"), passing(LONGEST_WAIT_S + 1)],
    ids=["lasting", "bug", "too long"],
)
def test_other_failures_are_not_repeated(error: Exception) -> None:
    """Lasting failures, faults of the program and pauses that are too long to wait for are passed on at once,
    unchanged.
    """
    model = Flaky(error)
    with pytest.raises(type(error)) as caught:
        run(with_retries(model, first_wait_s=0.01))
    assert (caught.value, model.asked) == (error, 1)


def test_the_providers_pause_is_kept() -> None:
    """The next attempt waits as long as the provider asks, not as long as it would wait by itself."""
    started = time.monotonic()
    assert run(with_retries(Flaky(passing(0.3)), first_wait_s=FOREVER_S)) == "ok"
    assert time.monotonic() - started >= 0.29


def test_a_retry_prints_nothing() -> None:
    """Where a program has not configured logging, a retry leaves standard error empty: the run shows its
    failures itself.
    """
    script = (
        f"from {Path(__file__).stem} import *; print(run(with_retries(Flaky(passing()), first_wait_s=0.01)))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=folder,
        env=env,
    )
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_it_stands_for_the_model_it_wraps() -> None:
    """Name and kind are the wrapped model's."""
    model = with_retries(Flaky())
    assert (model.name, model.kind) == ("test/flaky", "scripted")
