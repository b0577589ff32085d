"""Makes the test server importable and hands it out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from openai_server import OpenAIServer, Reply  # the path above has to be set first


@pytest.fixture
def serve() -> Iterator[Callable[..., OpenAIServer]]:
    """Starts a server that gives these replies in order; stopped after the test."""
    with ExitStack() as stack:
        yield lambda *replies, latency_s=0.0: stack.enter_context(
            OpenAIServer(replies or [Reply(text="hello")], latency_s=latency_s)
        )
