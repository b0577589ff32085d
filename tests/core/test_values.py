"""The small frozen things: calls, limits, ids, JSON, errors."""

import json
import re
from dataclasses import MISSING, asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.calls import Call, Problem, Result, Usage
from kestrel_lab.core.errors import (
    ApprovalRequired,
    LimitError,
    ModelError,
    RunError,
    ToolError,
    UsageError,
    did_you_mean,
    error_boundary,
)
from kestrel_lab.core.json_types import content_key, dumps, loads, readable, values_in
from kestrel_lab.core.run_types import TERMINAL, TRANSITIONS, Limits, RunStatus, new_run_id

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(args=st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_a_key_depends_on_content_only(args: dict[str, Any]) -> None:
    """Equal requests have equal keys, in whatever order and whichever step makes them; others do not."""
    there = Call(id="1", kind="tool", target="t", args=args, step="a")
    turned = Call(id="2", kind="tool", target="t", args=dict(reversed(args.items())), step="b")
    assert there.key == turned.key
    assert there.key != Call(id="1", kind="tool", target="t", args={**args, "more": 1}).key
    assert there.key != Call(id="1", kind="tool", target="u", args=args).key


def test_a_key_takes_any_text() -> None:
    """A lone surrogate, which UTF-8 cannot say, has a key of its own."""
    assert content_key("\ud800") != content_key("?")


@given(value=values)
def test_json_text_is_ascii_and_comes_back(value: Any) -> None:
    """What is written is ASCII and reads back equal; NaN is refused."""
    text = dumps([value, "\ud800\0"])
    assert text.isascii()
    assert json.loads(text) == [value, "\ud800\0"]
    with pytest.raises(ValueError, match="JSON"):
        dumps(float("nan"))


@given(value=values)
def test_json_for_readers_is_not_escaped(value: Any) -> None:
    """Letters of any language stand for themselves; what comes back is equal, and a lone surrogate can be
    encoded.
    """
    assert readable({"größe": "東京 ☔"}) == '{"größe":"東京 ☔"}'
    text = readable([value, "\ud800"])
    assert json.loads(text.encode().decode()) == [value, "\ud800"]


@given(
    parts=st.lists(
        st.builds(
            Usage, tokens_in=st.integers(0, 9), tokens_out=st.integers(0, 9), unpriced=st.integers(0, 2)
        ),
        max_size=5,
    )
)
def test_usage_adds_up(parts: list[Usage]) -> None:
    """Adding usages adds each count, in any order."""
    total = sum(parts, Usage())
    assert total == sum(reversed(parts), Usage())
    assert total.tokens == sum(part.tokens_in + part.tokens_out for part in parts)


def test_a_result_is_good_without_a_problem() -> None:
    """`ok` says whether there was a problem; a problem is plain JSON."""
    assert Result(value=None).ok
    assert not Result(error=Problem(kind="failed", message="no")).ok
    assert Problem(kind="failed", message="no").as_json() == {
        "kind": "failed",
        "message": "no",
        "transient": False,
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cycles": 0}, "'cycles' must be a positive whole number or None, not 0"),
        ({"cycles": 2.5}, "'cycles' must be a positive whole number"),
        ({"cost_usd": -1}, "'cost_usd' must be a positive number or None, not -1"),
        ({"seconds": float("nan")}, "'seconds' must be a positive number"),
        ({"seconds": float("inf")}, "'seconds' must be a positive number"),
        ({"seconds": "10"}, "'seconds' must be a positive number"),
        ({"tokens": True}, "'tokens' must be a positive whole number"),
        ({"calls_per_turn": None}, "'calls_per_turn' must be a positive whole number, not None"),
    ],
)
def test_a_limit_is_positive(wrong: dict[str, Any], message: str) -> None:
    """A bound that could never hold, or that cannot be counted, is refused by name."""
    with pytest.raises(UsageError, match=message):
        Limits(**wrong)


def test_limits_survive_the_log() -> None:
    """What a run's first event says of its limits makes the same limits again; `None` is not a bound."""
    limits = Limits(cycles=None, cost_usd=None, seconds=None, tokens=7, calls_per_turn=2)
    assert Limits(**json.loads(dumps(limits.as_json()))) == limits


def test_run_ids_sort_by_time() -> None:
    """Ids made later sort later, to the second, and a hundred of one second differ."""
    ids = [new_run_id(now) for now in (1_700_000_000, 1_700_000_001, 1_800_000_000)]
    assert ids == sorted(ids)
    assert len({new_run_id(1_700_000_000) for _ in range(100)}) == 100


def test_a_clock_before_2020_names_runs() -> None:
    """A machine whose clock stands at 1971, or before 1970, gives ids of the usual form, older than others."""
    for clock in (-5.0, 0.0, 36_900_000.0, 1_577_836_799.0):
        assert re.fullmatch(r"r000000-[0-9a-z]{6}", new_run_id(clock))
    assert new_run_id(0.0) < new_run_id(1_700_000_000)


def test_ended_states_lead_nowhere() -> None:
    """A state is terminal if and only if the map has no way out of it, and every state can be reached."""
    assert (
        {status for status in RunStatus if not TRANSITIONS[status]}
        == TERMINAL
        == {status for status in RunStatus if status.terminal}
    )
    assert set().union(*TRANSITIONS.values()) | {RunStatus.PLANNING} == set(RunStatus)


def test_a_boundary_classifies() -> None:
    """A foreign error becomes the kind that names what failed; our own errors and interrupts pass
    unchanged.
    """
    with (
        pytest.raises(ToolError, match=r"^tool 't' failed: KeyError: 'x'$") as caught,
        error_boundary(ToolError, "tool 't'"),
    ):
        raise KeyError("x")  # the foreign error itself
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(UsageError), error_boundary(ToolError, "tool 't'"):
        raise UsageError
    with pytest.raises(KeyboardInterrupt), error_boundary(ToolError, "tool 't'"):
        raise KeyboardInterrupt


def test_errors_carry_what_their_reader_needs() -> None:
    """Errors say which limit, whether to try again, which run; in a notebook they are one line."""
    assert LimitError("cycles", "over").limit == "cycles"
    error = ModelError("busy", transient=True, retry_after_s=2.0)
    assert (error.transient, error.retry_after_s) == (True, 2.0)
    waiting = ApprovalRequired("r1", "shell", {"command": "ls"})
    assert (waiting.run_id, waiting.tool, waiting.args_asked) == ("r1", "shell", {"command": "ls"})
    assert "kestrel approve r1" in str(waiting)
    assert UsageError("do x")._render_traceback_() == ["UsageError: do x"]
    assert issubclass(UsageError, ValueError)
    assert not issubclass(UsageError, RunError)


def test_the_nearest_word_is_named() -> None:
    """A slip is corrected, a guess is answered with all there is."""
    assert did_you_mean("modle", ["model", "home"]) == "did you mean 'model'?"
    assert did_you_mean("zzz", ["model", "home"]) == "known: home, model"
    assert did_you_mean("zzz", []) == "known: none"


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": [Infinity]}', "-Infinity", "1e999", "[" * 100_000, "{'a': 1}", "", "1 2"]
)
def test_only_json_is_read(text: str) -> None:
    """What the log could not keep is refused when it is read: no numbers that are none, nothing too deep."""
    with pytest.raises(ValueError, match=r"\w"):
        loads(text)


def test_values_are_found_among_words() -> None:
    """Each value that can be read is found, in order; what looks like one and is not is passed over."""
    assert list(values_in('see {"a": 1} and {b} and {"x": NaN}: {"c": [{"d": 2}]}')) == [
        {"a": 1},
        {"c": [{"d": 2}]},
    ]
    assert list(values_in("no [1, 2] {}", "{[")) == [[1, 2], {}]
    assert list(values_in("{" * 50_000)) == []


def test_a_step_that_waits_is_named() -> None:
    """Where an agent may not begin, the step is named and not the stand-in for a tool."""
    assert str(ApprovalRequired("r1", "start_step", {"step": "tell", "goal": "x"})).startswith(
        "run r1 wants to begin step tell and nobody"
    )


def test_structs_are_data_classes_to_those_who_take_them() -> None:
    """`fields`, `replace` and `asdict` of `dataclasses` take a struct as the frozen data class that it was;
    its values cannot be set.
    """
    call = Call(id="c", kind="tool", target="grep", args={"pattern": "x"})
    told = {one.name: one for one in fields(Call)}
    assert tuple(told) == Call.__struct_fields__
    assert (told["id"].default, told["effect"].default, told["args"].default_factory) == (
        MISSING,
        "opaque",
        dict,
    )
    changed = replace(call, id="d")
    assert (changed.id, changed.args, changed == call, replace(changed, id="c") == call) == (
        "d",
        {"pattern": "x"},
        False,
        True,
    )
    assert asdict(call)["args"] == {"pattern": "x"}
    with pytest.raises(AttributeError):
        call.id = "e"  # type: ignore[misc]  # that is what is tested
