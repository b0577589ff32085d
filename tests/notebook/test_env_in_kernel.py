"""`%env` in a notebook: the key that is set last pays."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai_server import OpenAIServer, Reply
from typist import typist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RUN = '%kestrel run "Say yes." --as r --model openai/some-model'


def test_the_key_of_the_second_env_line_pays(tmp_path: Path) -> None:
    """In a real kernel, between two goals of one conversation, `%env OPENAI_API_KEY=…` changes the account."""
    with OpenAIServer([Reply(text="Yes.")]) as server, typist(tmp_path) as person:
        person.run("%load_ext kestrel_lab")
        person.run(f"%env OPENAI_BASE_URL={server.api_base}")
        for key in ("sk-first-0123456789", "sk-second-9876543210"):
            person.run(f"%env OPENAI_API_KEY={key}")
            person.run(RUN)
    keys = list(dict.fromkeys(headers.get("authorization") for headers in server.headers_seen))
    assert keys == ["Bearer sk-first-0123456789", "Bearer sk-second-9876543210"]
