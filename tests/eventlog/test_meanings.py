"""What each event means for the state of a run, one by one: the laws of `fold` hold for any meaning."""

from typing import Any

import pytest

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    ContextCompacted,
    Event,
    FolderChanged,
    KernelChanged,
    KernelUndone,
    MacroFinished,
    MacroStarted,
    MemoryRecalled,
    MemoryStored,
    ModelAnswered,
    ModelCalled,
    PlanExtended,
    PlanProposed,
    Prompted,
    RunFinished,
    RunForked,
    RunInterrupted,
    RunResumed,
    RunStarted,
    StageFinished,
    StageStarted,
    StateTransition,
    StepFinished,
    StepRetried,
    StepStarted,
    TaskChanged,
    ToolAnswered,
    ToolCalled,
    ToolsAdded,
    ToolsShown,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import RunState

STARTED = RunStarted(
    goal="g", workspace="/w", model="m", system="be brief", tools=[{"name": "a"}], limits={"cycles": 3}
)


def after(*events: Event) -> RunState:
    """The state after these events."""
    state = RunState()
    for number, event in enumerate(events):
        state.apply(event, float(number))
    assert state.events == len(events)
    return state


def asked(**more: Any) -> ApprovalAsked:
    """A question about a call."""
    return ApprovalAsked(
        **{"call": "c", "step": "s", "tool": "t", "args": {}, "danger": "HIGH", "key": "k", **more}
    )


def given(**more: Any) -> ApprovalGiven:
    """A yes."""
    return ApprovalGiven(**{"call": "c", "granted": True, "by": "p", "how": "click", **more})


def answered(**more: Any) -> ToolAnswered:
    """An answer of a tool."""
    return ToolAnswered(**{"call": "c", "step": "s", "tool": "t", "text": "x", **more})


def says(*calls: str, text: str = "") -> ModelAnswered:
    """An answer of a model, with calls of these ids."""
    wanted: list[Any] = [{"id": call, "name": "t", "args": {"n": call}} for call in calls]
    return ModelAnswered(call="m", step="s", model="m", text=text, calls=wanted)


def test_a_run_begins_is_broken_off_taken_up_and_ends() -> None:
    """Its status is that of the last transition; who resumes or forks it takes it up."""
    state = after(STARTED, StateTransition(source="PLANNING", target="EXECUTING"), RunInterrupted())
    assert (state.status, state.interrupted, state.started) == (RunStatus.EXECUTING, True, STARTED)
    assert not after(STARTED, RunInterrupted(), RunResumed()).interrupted
    assert not after(STARTED, RunInterrupted(), RunForked(parent="r", at=1, model="n")).interrupted
    end = RunFinished(outcome="complete", answer="42")
    assert (after(end).finished, after(end).answer, after().finished) == (end, "42", None)


def test_limits_of_whoever_takes_it_up_hold() -> None:
    """Of a resumed run those given, else those that it had; a fork has its own model, tools and policy as
    well.
    """
    again = after(STARTED, RunResumed(limits={"cycles": 9})).started
    assert again is not None and (again.limits, again.model) == ({"cycles": 9}, "m")
    assert after(STARTED, RunResumed()).started == STARTED
    fork = after(
        STARTED,
        RunForked(parent="r", at=1, model="n", model_kind="scripted", tools=[{"name": "b"}], policy="deny"),
    ).started
    assert fork is not None
    assert (fork.model, fork.model_kind, fork.tools, fork.policy, fork.limits) == (
        "n",
        "scripted",
        [{"name": "b"}],
        "deny",
        {"cycles": 3},
    )
    limited = after(STARTED, RunForked(parent="r", at=1, model="n", limits={"cycles": 1})).started
    assert limited is not None and limited.limits == {"cycles": 1}


def test_a_fork_asks_for_itself() -> None:
    """Open questions are the parent's, and a turn that was begun and not answered is not counted twice; what
    was answered stays.
    """
    state = after(
        STARTED,
        ModelCalled(call="m", step="s", model="m", cycle=1, messages=1),
        asked(),
        RunForked(parent="r", at=2, model="n"),
    )
    assert (state.questions, state.conversation("s").cycles, state.conversation("s").asked) == ({}, 0, False)
    done = after(
        STARTED,
        ModelCalled(call="m", step="s", model="m", cycle=1, messages=1),
        says(),
        RunForked(parent="r", at=2, model="n"),
    )
    assert done.conversation("s").cycles == 1


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (RunResumed(model_kind="scripted"), "scripted"),
        (RunResumed(model_kind="real"), "real"),
        (StepStarted(step="s", goal="g", model="n", model_kind="scripted"), "scripted"),
        (StepStarted(step="s", goal="g", model_kind="scripted"), "real"),
        (ModelAnswered(call="m", step="s", model="m", replayed=True), "replay"),
        (says(), "real"),
    ],
)
def test_a_run_is_real_only_if_every_model_was(event: Event, kind: str) -> None:
    """What a model that is none worked on is labelled; a real one does not wash it off."""
    assert after(STARTED, event).model_kind == kind
    assert after(STARTED, event, RunResumed(model_kind="real")).model_kind == kind


def test_the_plan_is_the_one_proposed_with_what_was_added() -> None:
    """Else the one given, else one step of the goal; what is left are steps that are not done, skipped ones
    and failed ones too.
    """
    one, two = {"id": "a", "goal": "x"}, {"id": "b", "goal": "y"}
    state = after(STARTED, PlanProposed(plan={"steps": [one]}), PlanExtended(step="a", steps=[two]))
    assert [step.id for step in state.planned.steps] == ["a", "b"]
    assert [step.goal for step in after(STARTED).planned.steps] == ["g"]
    with pytest.raises(StoreError, match="no beginning"):
        _ = after().planned
    state.apply(StepFinished(step="a", ok=True, output=7), 9.0)
    assert ([step.id for step in state.left], state.outputs, state.reasons) == (["b"], {"a": 7}, {})
    state.apply(StepFinished(step="b", ok=False, skipped=True, reason="no"), 10.0)
    assert ([step.id for step in state.left], state.skipped_steps, state.reasons) == (
        ["b"],
        {"b"},
        {"b": "no"},
    )
    state.apply(StepStarted(step="b", goal="y"), 11.0)
    assert (state.skipped_steps, state.finished_steps, state.conversation("b").began) == (
        set(),
        {"a": True},
        11.0,
    )
    state.apply(StepStarted(step="b", goal="y"), 12.0)
    assert state.conversation("b").began == 11.0


def test_stages_count_their_attempts() -> None:
    """The last checkpoint of a step is what counts; after a failure a new try begins, whose attempts and
    waits count from there.
    """
    state = after(
        StageStarted(stage="one"),
        StageStarted(stage="one", attempt=2),
        StageFinished(stage="one", task="s", status="failed"),
    )
    assert (state.stages, state.checkpoints["s"].status) == ({"one": 2}, "failed")
    retried = StepRetried(step="s", attempt=4, error_class="transient", reason="x", wait_s=2.0)
    state.apply(retried, 1.0)
    conversation = state.conversation("s")
    assert (
        conversation.attempt,
        conversation.earlier,
        conversation.waited_s,
        conversation.error,
        conversation.asked,
    ) == (4, 3, 2.0, "", False)
    fresh = after(retried, retried).conversation("s")
    assert (fresh.earlier, fresh.waited_s) == (0, 4.0)


def test_a_turn_of_calls_is_complete_when_all_are_answered() -> None:
    """Then its answers are said in the order asked; one that failed leaves no turn."""
    started = StepStarted(step="s", goal="look")
    state = after(
        STARTED,
        started,
        ModelCalled(call="m", step="s", model="m", cycle=1, messages=2),
        says("a", "b", text="I look"),
    )
    conversation = state.conversation("s")
    assert (
        [message.role for message in conversation.messages],
        conversation.cycles,
        conversation.asked,
        conversation.text,
    ) == (
        ["system", "user", "assistant"],
        1,
        False,
        "I look",
    )
    assert [request.args for request in conversation.open_requests] == [{"n": "a"}, {"n": "b"}]
    state.apply(answered(call="b", text="two"), 5.0)
    assert ([one.id for one in conversation.open_requests], len(conversation.messages)) == (["a"], 3)
    state.apply(answered(call="a", text="one"), 6.0)
    assert [(message.role, message.text, message.call_id) for message in conversation.messages[3:]] == [
        ("tool", "one", "a"),
        ("tool", "two", "b"),
    ]
    assert (conversation.requests, conversation.answers, conversation.replies) == ((), {}, [])
    state.apply(says(text="done"), 7.0)
    assert (conversation.replies, conversation.text) == (["done"], "done")
    state.apply(ModelAnswered(call="m", step="s", model="m", text="half", error={"kind": "failed"}), 8.0)
    assert (conversation.text, len(conversation.messages)) == ("done", 6)


def test_an_empty_answer_may_be_asked_for_again() -> None:
    """The second question for the same answer counts once, and takes the place of the empty reply."""
    state = after(
        STARTED, StepStarted(step="s", goal="look"), says(), Prompted(step="s", text="well?", again=True)
    )
    conversation = state.conversation("s")
    assert (conversation.prompts, conversation.replies, conversation.again) == (1, [], True)
    more = after(
        STARTED, StepStarted(step="s", goal="look"), says(text="x"), Prompted(step="s", text="and?")
    ).conversation("s")
    assert (more.prompts, more.replies, more.again) == (2, ["x"], False)


def test_a_step_that_is_a_call_has_its_value_or_its_error() -> None:
    """With the kind of the problem, and whether it may pass."""
    assert after(answered(value=[1])).conversation("s").value == [1]
    conversation = after(
        answered(error={"kind": "timeout", "message": "late", "transient": True})
    ).conversation("s")
    assert (conversation.error, conversation.problem, conversation.passing) == ("late", "timeout", True)
    assert after(answered(error={"kind": "failed"})).conversation("s").error == "x"
    assert not after(answered(error={"kind": "failed"})).conversation("s").passing


def test_a_call_without_an_answer_is_open() -> None:
    """Until it is answered; a long answer is kept whole under its name."""
    called = ToolCalled(call="c", step="s", tool="t", args={})
    assert after(called).begun == {"c": called} and after(called, answered()).begun == {}
    whole = after(answered(whole="w1", chars=99)).wholes["w1"]
    assert (whole.call, whole.tool, whole.chars) == ("c", "t", 99) and after(answered()).wholes == {}


def test_what_a_step_knows_of_files() -> None:
    """What it changed it knows at once, what it read when its model is next asked; a change replaces what was
    read.
    """
    state = after(answered(knows={"f": "1", "g": "1"}, changed=["g"]))
    conversation = state.conversation("s")
    assert (conversation.files, conversation.read, state.writers) == ({"g": "1"}, {"f": "1"}, {"g": ["s"]})
    state.apply(answered(knows={"f": "2"}, changed=["f"]), 1.0)
    assert (conversation.files, conversation.read, state.writers["f"]) == ({"g": "1", "f": "2"}, {}, ["s"])
    state.apply(answered(knows={"h": "1"}), 2.0)
    state.apply(ModelCalled(call="m", step="s", model="m", cycle=1, messages=1), 3.0)
    assert (conversation.files["h"], conversation.read) == ("1", {})
    assert after(FolderChanged(step="s", folder="d", call="c")).conversation("s").folder == "d"


def test_calls_of_a_macro_belong_to_it_until_its_own_answer() -> None:
    """They are not the step's answers; its end is known before."""
    begun = MacroStarted(call="c", step="s", macro="m", version=1)
    state = after(begun, answered(call="c/1"))
    assert (list(state.macros["c"].answers), state.macros["c"].finished, state.conversation("s").answers) == (
        ["c/1"],
        False,
        {},
    )
    state.apply(MacroFinished(call="c", step="s", macro="m", ok=True), 2.0)
    assert state.macros["c"].finished
    state.apply(answered(), 3.0)
    assert state.macros == {} and after(MacroFinished(call="z", step="s", macro="m", ok=True)).macros == {}


@pytest.mark.parametrize(
    ("yes", "leave"),
    [
        ({}, (set(), set(), {})),
        ({"scope": "run"}, ({"t"}, set(), {})),
        ({"scope": "same"}, (set(), {"k"}, {})),
        ({"scope": "like"}, (set(), {"k"}, {"t": ["git diff ..."]})),
        ({"scope": "same", "args": {"x": 1}}, (set(), set(), {})),
        ({"scope": "run", "granted": False}, (set(), set(), {})),
        ({"scope": "like", "granted": False}, (set(), set(), {})),
    ],
)
def test_a_decision_closes_its_question_and_gives_leave_as_far_as_it_says(
    yes: dict[str, Any], leave: Any
) -> None:
    """For this call, for the same one, for those like it or for the tool; an edit and a no give none."""
    state = after(asked(offer="git diff ..."), given(**yes))
    assert (state.questions, state.bound, (state.always, state.same, state.like)) == ({}, {"c": "k"}, leave)
    assert state.decisions["c"] == given(**yes)
    unasked = after(given(**yes))
    assert (unasked.bound, unasked.always, unasked.same) == ({}, set(), set())
    assert after(asked(), given(scope="like")).like == {}


def test_what_a_person_saw_is_kept_with_the_yes() -> None:
    """Nothing of a no, and an empty key where they said what to run instead; a question may have a name of
    its own.
    """
    assert after(asked(shows="p"), given()).shows == {"c": "p"}
    assert after(asked(shows="p"), given(args={"x": 1})).shows == {"c": ""}
    assert after(asked(shows="p"), given(granted=False)).shows == after(asked(), given()).shows == {}
    named = after(asked(question="q"), given(question="q"))
    assert (named.questions, list(named.decisions), named.bound) == ({}, ["q"], {"q": "k"})
    assert list(after(asked(question="q"), given()).questions) == ["q"]


def test_notes_kernels_tasks_and_tools() -> None:
    """What was recalled and kept, what changed a kernel and was not undone, the tasks, and the tools that
    were added and shown.
    """
    state = after(
        STARTED,
        MemoryRecalled(step="s", notes=[{"id": "n1"}, {}]),
        MemoryStored(step="s", note={"id": "n2"}),
        MemoryStored(step="s", note={}),
        KernelChanged(call="a", step="s", how="ran", kernel="k"),
        KernelChanged(call="b", step="s", how="ran", kernel="k"),
        KernelUndone(calls=["a", "z"], kernel="k"),
        TaskChanged(task="1", title="x"),
        TaskChanged(task="1", title="x", status="done"),
        ToolsAdded(tools=[{"name": "b"}]),
        ToolsShown(tools=["x", "y"], step="s", messages=2),
        ToolsShown(tools=["y", "z"], step="s"),
    )
    assert (state.recalled, state.kept, state.kernels, state.tasks["1"].status) == (
        {"n1"},
        {"n2"},
        {"b": "k"},
        "done",
    )
    assert state.started is not None and state.started.tools == [{"name": "a"}, {"name": "b"}]
    assert (state.shown, state.questions_shown) == ({"s": ["x", "y", "z"]}, {"s": 2})
    assert after(ToolsAdded(tools=[{"name": "b"}])).started is None


def test_a_compacted_context_is_shown_shorter() -> None:
    """Results and, where there is one, a summary; the turns of whoever wrote it count for the step."""
    state = after(
        ModelCalled(call="m", step="w", model="m", cycle=1, messages=1),
        ModelCalled(call="m", step="s", model="m", cycle=1, messages=1),
    )
    whole: dict[str, Any] = {"w1": {"call": "c", "tool": "t", "chars": 5}}
    state.apply(
        ContextCompacted(step="s", window=9, before=8, after=4, results={"c": "short"}, wholes=whole), 2.0
    )
    conversation = state.conversation("s")
    assert (
        conversation.results,
        conversation.summary,
        conversation.upto,
        conversation.cycles,
        state.wholes["w1"].chars,
    ) == (
        {"c": "short"},
        "",
        0,
        1,
        5,
    )
    state.apply(
        ContextCompacted(step="s", window=9, before=8, after=4, summary="so far", upto=3, by="w"), 3.0
    )
    assert (conversation.summary, conversation.upto, conversation.cycles, "w" in state.conversations) == (
        "so far",
        3,
        2,
        False,
    )


def test_a_result_that_was_compacted_is_shown_short() -> None:
    """The conversation itself keeps it whole."""
    shorter = ContextCompacted(step="s", window=9, before=8, after=4, results={"c": "short"})
    conversation = after(
        STARTED, StepStarted(step="s", goal="look"), says("c"), answered(text="long"), shorter
    ).conversation("s")
    assert ([one.text for one in conversation.sent], conversation.messages[-1].text) == (
        ["be brief", "look", "", "short"],
        "long",
    )


def test_what_a_run_takes_over_from_the_one_that_it_follows() -> None:
    """Notes and long results at once, messages and versions of files with the first words of its agent."""
    earlier: dict[str, Any] = {
        "recalled": ["n1"],
        "wholes": {"w1": {"call": "c", "tool": "t", "chars": 5}},
        "files": {"f": "1"},
        "messages": [{"role": "user", "text": "before"}],
    }
    state = after(RunStarted(goal="g", workspace="/w", model="m", system="be brief", earlier=earlier))
    assert (state.recalled, list(state.wholes), state.conversations) == ({"n1"}, ["w1"], {})
    (step,) = state.planned.steps
    state.apply(StepStarted(step=step.id, goal="g", context="more"), 1.0)
    conversation = state.conversation(step.id)
    assert [(one.role, one.text) for one in conversation.messages] == [
        ("system", "be brief"),
        ("user", "before"),
        ("user", "g\n\nmore"),
    ]
    assert conversation.files == {"f": "1"}
    state.apply(StepStarted(step="other", goal="g", system="another"), 2.0)
    assert [(one.role, one.text) for one in state.conversation("other").messages] == [
        ("system", "another"),
        ("user", "g"),
    ]


def test_open_time_is_worked_waited_and_idle() -> None:
    """The sum of the three."""
    state = after(STARTED, asked(), given())
    assert state.open_s == state.working_s + state.meter.waiting_s + state.meter.idle_s == 2.0


def test_what_was_undone_is_told_to_whoever_has_the_answer() -> None:
    """Of a turn that is complete and of one that waits for others; with what could not be restored, and to
    nobody else.
    """
    begun = [STARTED, StepStarted(step="s", goal="look")]
    waiting = after(
        *begun,
        says("a", "b"),
        answered(call="a", text="one"),
        KernelUndone(calls=["a"], kernel="", missing={"x": "gone"}),
    )
    waiting.apply(answered(call="b", text="two"), 5.0)
    complete = after(*begun, says("a", "b"), answered(call="a", text="one"), answered(call="b", text="two"))
    complete.apply(KernelUndone(calls=["a"], kernel="", missing={"x": "gone"}), 5.0)
    for state in (waiting, complete):
        texts = [message.text for message in state.conversation("s").messages if message.role == "tool"]
        assert texts == ["one\n[the user has undone this call since; not x: gone]", "two"]


def test_a_step_has_spent_what_its_sub_agents_have() -> None:
    """And those below them; what was given or reused costs nothing, and the step beside it is not counted."""

    def paid(step: str, **more: Any) -> list[Event]:
        tokens = {"tokens_in": 2, "tokens_out": 1, "cost_usd": 0.5, "seconds": 4.0}
        return [
            ModelAnswered(**{"call": f"m{step}", "step": step, "model": "m", "text": "x", **tokens, **more})
        ]

    begun = [
        StepStarted(step=name, goal="g", parent=parent, call="c")
        for name, parent in (("s", ""), ("s/1", "s"), ("s/1/1", "s/1"), ("t", ""))
    ]
    state = after(
        STARTED, *begun, *paid("s"), *paid("s/1"), *paid("s/1/1"), *paid("t"), *paid("s", cached=True)
    )
    assert [state.spent(name).get("tokens") for name in ("s", "s/1", "s/1/1", "t")] == [9, 6, 3, 3]
    assert (state.spent("s")["cost_usd"], state.spent("s")["seconds"]) == (1.5, 12.0)


def test_what_an_answer_brings_along_is_kept_with_it() -> None:
    """Images go with the result to the model, values are kept for macros and checks, and those of a call that
    failed are none.
    """
    picture: dict[str, Any] = {"media_type": "image/png", "blob": "b1"}
    state = after(STARTED, StepStarted(step="s", goal="look"), says("a", "b", "c", "d"))
    conversation = state.conversation("s")
    for number, event in enumerate(
        (
            answered(call="a", text="one", value=[1], images=[picture]),
            answered(call="b", text="two", given=True, value=[2]),
            answered(call="c", text="three", value=[3], error={"kind": "failed"}),
        )
    ):
        state.apply(event, 5.0 + number)
    assert (
        conversation.values,
        [image.blob for image in conversation.images["a"]],
        list(conversation.images),
    ) == (
        {"a": [1], "b": "two"},
        ["b1"],
        ["a"],
    )
    state.apply(answered(call="d", text="four"), 9.0)
    assert [[image.blob for image in message.images] for message in conversation.messages[3:]] == [
        ["b1"],
        [],
        [],
        [],
    ]
    assert (conversation.values, conversation.images) == ({}, {})


def test_a_model_goes_on_with_its_own_session_and_thoughts() -> None:
    """A session borrowed from the parent of a fork is its own once it was answered in; without one the last
    one counts.
    """
    parent = [
        STARTED,
        StepStarted(step="s", goal="look"),
        ModelAnswered(call="m", step="s", model="m", text="x", session="s1"),
    ]
    forked = after(*parent, RunForked(parent="r", at=3, model="m"))
    conversation = forked.conversation("s")
    assert (conversation.session, conversation.borrowed) == ("s1", True)
    forked.apply(
        ModelAnswered(call="m", step="s", model="m", text="y", thinking=[{"text": "hm", "signature": "g"}]),
        5.0,
    )
    assert (
        conversation.session,
        conversation.borrowed,
        [part.text for part in conversation.messages[-1].thinking],
    ) == (
        "s1",
        True,
        ["hm"],
    )
    forked.apply(ModelAnswered(call="m", step="s", model="m", text="z", session="s2"), 6.0)
    assert (conversation.session, conversation.borrowed, conversation.messages[-1].thinking) == (
        "s2",
        False,
        (),
    )
    forked.apply(answered(session="s3"), 7.0)
    forked.apply(answered(), 8.0)
    assert conversation.session == "s3"


def test_a_step_says_its_goal_once_and_messages_of_before_are_known_as_such() -> None:
    """Not again when it is given another try, and nothing where it has none; what was said in earlier runs is
    marked.
    """
    state = after(
        STARTED,
        StepStarted(step="s", goal="look"),
        says(text="x"),
        StepStarted(step="s", goal="look"),
        StepStarted(step="t"),
    )
    assert [message.role for message in state.conversation("s").messages] == ["system", "user", "assistant"]
    assert state.conversation("t").messages == []
    earlier: dict[str, Any] = {"messages": [{"role": "user", "text": "before"}]}
    state = after(RunStarted(goal="g", workspace="/w", model="m", earlier=earlier))
    step = state.planned.steps[0].id
    state.apply(StepStarted(step=step, goal="g"), 1.0)
    assert [(message.text, message.earlier) for message in state.conversation(step).messages] == [
        ("before", True),
        ("g", False),
    ]


def test_a_call_takes_the_time_of_its_step_and_a_sub_agents_call_that_of_its_own() -> None:
    """The call that delegates is not counted beside what it delegates."""
    delegated = StepStarted(step="s/1", goal="g", parent="s", call="c1")
    state = after(
        STARTED,
        StepStarted(step="s", goal="g"),
        delegated,
        answered(seconds=2.0),
        answered(call="c1", seconds=9.0),
    )
    assert state.conversation("s").used == {"seconds": 2.0}


def test_artifacts_of_added_steps_join_those_of_the_plan() -> None:
    """A plan that was given none has those; where nothing is added it stays as it is."""
    first = {"steps": [{"id": "a", "goal": "x"}], "artifacts": {"out": {"path": "o"}}}
    more: list[Any] = [{"id": "b", "goal": "y"}]
    added: dict[str, Any] = {"two": {"path": "t"}}
    assert after(STARTED, PlanProposed(plan=first), PlanExtended(step="a", steps=more)).plan == {
        **first,
        "steps": [*first["steps"], *more],
    }
    both = after(STARTED, PlanProposed(plan=first), PlanExtended(step="a", steps=more, artifacts=added)).plan
    assert both["artifacts"] == {"out": {"path": "o"}, "two": {"path": "t"}}
    assert (
        "artifacts"
        not in after(STARTED, PlanProposed(plan={"steps": []}), PlanExtended(step="a", steps=more)).plan
    )
