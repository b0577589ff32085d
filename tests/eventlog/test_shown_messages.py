"""What a model is shown of a conversation whose context was compacted, against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.messages import Message, ToolRequest
from kestrel_lab.eventlog.conversation import Conversation

turns = st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=8)


def conversation(roles: list[str], *, system: bool) -> Conversation:
    """A conversation of these messages, tool results named after their place."""
    said = [Message(role="system", text="be brief")] if system else []
    for place, role in enumerate(roles):
        said.append(Message(role=role, text=f"{role} {place}", call_id=f"c{place}" if role == "tool" else ""))  # type: ignore[arg-type]
    return Conversation(messages=said)


@given(turns, st.booleans(), st.integers(0, 8), st.sets(st.integers(0, 7)), st.sampled_from(["", "so far"]))
def test_a_compacted_conversation_is_its_system_message_a_summary_and_the_rest(
    roles: list[str], system: bool, upto: int, short: set[int], summary: str
) -> None:
    """Results that were shortened stand in the place of the whole ones, whether the log says so or they are
    only tried.
    """
    whole = conversation(roles, system=system)
    results = {f"c{place}": f"short {place}" for place in short}
    upto = min(upto, len(whole.messages))
    first = whole.messages[:1] if upto and system else []
    told = [Message(role="user", text=f"Summary of the conversation so far:\n{summary}")] if summary else []
    rest = [
        Message(
            role=one.role,
            text=results.get(one.call_id, one.text) if one.role == "tool" else one.text,
            call_id=one.call_id,
        )
        for one in whole.messages[upto:]
    ]
    wanted = [*first, *told, *rest]
    assert whole.sent == whole.messages
    assert whole.sent_with(results, summary, upto) == wanted
    whole.results, whole.summary, whole.upto = results, summary, upto
    assert whole.sent == (wanted if results or upto else whole.messages)
    further = whole.sent_with({"c0": "shorter"}, "later", len(whole.messages))
    assert [one.text for one in further] == [
        *(["be brief"] if system and whole.messages else []),
        "Summary of the conversation so far:\nlater",
    ]


def test_requests_are_open_until_they_are_answered() -> None:
    """In the order asked."""
    asked = tuple(ToolRequest(id=name, name="t") for name in "abc")
    assert [one.id for one in Conversation(requests=asked, answers={"b": "x"}).open_requests] == ["a", "c"]
