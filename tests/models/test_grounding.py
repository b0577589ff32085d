"""Models that search the web themselves: only those that can, and only pages that their provider names."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.litellm.web_sources import MARK, read_sources, sources_of, with_sources
from kestrel_lab.models.resolve import choose_model
from kestrel_lab.models.web_grounding import GroundedModel

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from webserver import answer, serving

pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning")

KEYS = {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "k"}
QUESTION = ModelRequest(messages=[Message(role="user", text="How fast?")])
TITLES = st.text(
    st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"], blacklist_characters="<>"), max_size=20
).map(str.strip)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openai/gpt-3.5-turbo+web", "can ask for no web search"),
        ("openai/gpt-5-mini+web", "can ask for no web search"),
        ("openai/no-such-model+web", "can ask for no web search"),
        ("ollama/qwen3+web", "models of Ollama have no web search"),
        ("local+web", "name a hosted model"),
        ("+web", "name a hosted model"),
    ],
)
def test_a_model_that_cannot_search_is_refused(name: str, why: str) -> None:
    """What litellm's table does not have, or would leave out of the request, is refused and never asked as if
    it could.
    """
    with pytest.raises(UsageError, match=why):
        choose_model(name, env=KEYS)


def test_an_own_server_is_not_believed_to_search() -> None:
    """The table knows models of providers, not what a server at an address of one's own does."""
    with pytest.raises(UsageError, match="is not known"):
        choose_model("openai/gpt-4o-search-preview+web", env=KEYS, api_base="http://127.0.0.1:1/v1")


def test_models_that_can_search_keep_their_name() -> None:
    """The name that is logged is the one that gets the same model again."""
    names = ["openai/gpt-4o-search-preview+web", "gemini/gemini-2.5-pro+web"]
    assert [choose_model(name, env=KEYS).name for name in names] == names


def test_no_model_is_a_model_that_cannot_be_asked() -> None:
    """`none` can be chosen without any key, and says so when a step asks it."""
    model = choose_model("none", env={})
    with pytest.raises(ModelError, match="the run has none"):
        asyncio.run(model(QUESTION, lambda _: None))


def test_the_search_is_asked_for_and_its_pages_are_told() -> None:
    """The request on the wire has the option, and the answer ends with the pages of the provider's
    annotations.
    """
    note = {
        "type": "url_citation",
        "url_citation": {
            "url": "https://e.org/a",
            "title": "A\n2. B <https://forged.org>",
            "start_index": 0,
            "end_index": 1,
        },
    }
    message = {
        "role": "assistant",
        "content": f"Fast.\n{MARK}\n1. x <https://made.up>",
        "annotations": [note],
    }
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
    with serving({"/v1/chat/completions": answer(json.dumps(body), kind="application/json")}) as server:
        inner = LiteLLMModel(
            "openai/gpt-4o-search-preview", api_base=server.url("/v1"), extra={"web_search_options": {}}
        )
        heard: list[str] = []
        said = asyncio.run(GroundedModel(model=inner)(QUESTION, heard.append))
        sent = json.loads(server.asked[0].body)
    assert "web_search_options" in sent
    text, sources = read_sources(said.text)
    assert (heard, text, [url for _, url in sources]) == (
        [said.text],
        message["content"],
        ["https://e.org/a"],
    )


@pytest.mark.parametrize(
    "completion",
    [
        {
            "choices": [
                {
                    "message": {
                        "annotations": [
                            {"type": "url_citation", "url_citation": {"url": "https://a.org", "title": "A"}}
                        ]
                    }
                }
            ]
        },
        SimpleNamespace(
            choices=[
                SimpleNamespace(message=SimpleNamespace(annotations=[{"url": "https://a.org", "title": "A"}]))
            ]
        ),
        {
            "choices": [
                {
                    "message": {
                        "provider_specific_fields": {
                            "citations": [[{"url": "https://a.org", "title": "A", "cited_text": "x"}]]
                        }
                    }
                }
            ]
        },
        {
            "choices": [{"message": {}}],
            "search_results": [{"url": "https://a.org", "title": "A"}],
            "citations": ["https://a.org"],
        },
    ],
    ids=["openai", "flat", "anthropic", "perplexity"],
)
def test_pages_are_read_from_every_form(completion: object) -> None:
    """Each provider's way of naming pages gives the same; a page that is named twice is one."""
    assert sources_of(completion) == (("A", "https://a.org"),)


def test_what_is_no_web_address_is_no_page() -> None:
    """Neither scripts nor files nor words in the answer's text count as pages."""
    notes = [
        {"url": url} for url in ("javascript:alert(1)", "file:///etc/passwd", "https://a.org/ b", 7, None)
    ]
    completion = {
        "choices": [{"message": {"content": "see https://made.up", "annotations": notes}}],
        "citations": "https://a.org",
    }
    assert sources_of(completion) == ()


@given(text=st.text(max_size=60), titles=st.lists(TITLES, max_size=3))
def test_pages_survive_their_form(text: str, titles: list[str]) -> None:
    """Whatever a model writes, what is read back is what the provider named."""
    sources = tuple((title, f"https://e.org/{place}") for place, title in enumerate(titles))
    assert read_sources(with_sources(f"{text}\n{MARK}\n1. made up <https://made.up>", sources))[1] == sources
