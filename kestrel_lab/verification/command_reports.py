"""Compares what an answer reports of a command with the command's exit code and output.

A report names a command of the run in backticks, or speaks of "it" after one. A text that it says the command
printed is a quote of the log, whether it stands in quotation marks, in backticks or is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kestrel_lab.core.events.actions import Action
from kestrel_lab.verification.answered_calls import content_of
from kestrel_lab.verification.claimed_actions import DONE, SUPPOSED, failure_text
from kestrel_lab.verification.claims import Statement, code_in
from kestrel_lab.verification.effects import code_of
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import Subject

_NEGATED: Final = r"(?<!not )(?<!n['’]t )(?<!never )(?<!no longer )(?<!hardly )"
_SUCCEEDED: Final = re.compile(
    rf"{_NEGATED}\b(?:succe(?:ss\w*|eds?|eded)|pass(?:es|ed)|work(?:s|ed)|cleanly|(?:just |runs? |ran )fine"
    r"|without (?:any |an )?(?:errors?|problems?|issues?)|(?:with )?no (?:errors?|problems?|issues?))\b"
    r"(?! (?:tests?|to)\b)",
    re.IGNORECASE,
)
_SUCCESSFULLY_BEFORE: Final = re.compile(
    rf"{_NEGATED}\bsuccessfully (?:ran|run|executed|used|called)\b[^.;`]{{0,20}}`$", re.IGNORECASE
)
_FAILED: Final = re.compile(rf"{_NEGATED}\b(?:fail(?:s|ed)|crash(?:es|ed)|errored)\b", re.IGNORECASE)
_SHOWS_FAILURE: Final = re.compile(
    r"fail|error|exception|traceback|warn|fatal|abort|cannot|not |no such|denied|killed", re.IGNORECASE
)
"""Words of an output that may be what a report calls a failure."""
_SEVERAL: Final = re.compile(r"[|;&\n]")
"""A line of several commands, whose exit code is that of one."""
_EXIT: Final = re.compile(
    r"\b(?:exit(?:s|ed)?(?: with)?(?: (?:code|status))?|(?:exit|return) (?:code|status)(?: was| is| of)?)"
    r"(?: of| was| is|:)? `?(?P<code>\d{1,3})`?(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
_FILLERS: Final = (
    r"(?:(?:that|out|just|only|exactly|simply|the|a|an|value|number|text|line|result|output|string|message|is"
    r"|was|as|this|to|me|stdout|be|with)\s+|:\s*|,\s*)*"
)
_PRINTED: Final = re.compile(
    r"\b(?P<verb>print(?:s|ed)?|outputs?|outputted|return(?:s|ed)|gave|gives|show(?:s|ed)|display(?:s|ed)|says|said"
    r"|report(?:s|ed)|answer(?:s|ed)|echo(?:es|ed)|produce[sd]|yield(?:s|ed)|result(?:s|ed)?(?: in)?|wrote)"
    rf"\b:?\s*{_FILLERS}(?P<value>`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”|-?\d[\d,]*(?:\.\d+)?(?=[.,;:!?)]?(?:\s*$|\s+(?:and|but)\b|[.;]\s)))",
    re.IGNORECASE,
)
_ONLY_PRINTING: Final = frozenset({"printed", "outputted", "output", "echoed", "displayed"})
"""Verbs that are of a run even where a sentence names no command: `returns` may be of any function."""
_REFERS_BACK: Final = re.compile(
    r"^\W*(?:and\s+)?(?:it|this|that|the (?:command|script|program|output|result|call|run))\b", re.IGNORECASE
)
_FUTURE: Final = re.compile(
    r"\b(?:will|to|may|might|can|expect\w*|instead|not|never)\b|n['’]t\b", re.IGNORECASE
)
_OF_ANOTHER: Final = re.compile(r"`\s*$")
"""What stands before a verb whose subject is another piece of code."""
_TOKEN: Final = re.compile(r"\d[\d,]*(?:\.\d+)?|[^\W\d_]+")
_CUT: Final = re.compile(r"characters left out|truncated\"?: true", re.IGNORECASE)
"""An output that the log has in part."""
_FIX: Final = "report what the command printed, and how it ended"


def command_reports_are_right(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for each report of an exit or an output that the log refutes."""
    ran = [action for action in subject.acts or () if action.kind == "command" or code_of(action) is not None]
    if not ran:
        return
    before: list[Action] = []
    for said in subject.paid():
        if said.kind == "code" or SUPPOSED.search(said.text):
            continue
        reports = list(_reports_in(said, ran))
        for actions, words in reports:
            before = actions
            for what in (*_exit_refuted(subject, actions, words), *_output_refuted(subject, actions, words)):
                yield Issue("critical", said.text, what, _FIX)
        if not reports and _REFERS_BACK.match(said.text):
            for what in _output_refuted(subject, before, said.text, of_it=True):
                yield Issue("critical", said.text, what, _FIX)


def _reports_in(said: Statement, ran: Sequence[Action]) -> Iterator[tuple[list[Action], str]]:
    """Yield the commands that a sentence names, each with what the sentence says of it up to the next."""
    named = [
        (actions, code, at)
        for code, at in code_in(said)
        if (actions := [act for act in ran if _is_run(code, act)])
    ]
    for index, (actions, code, at) in enumerate(named):
        end = named[index + 1][2] if index + 1 < len(named) else len(said.text)
        succeeded = "successfully " if _SUCCESSFULLY_BEFORE.search(said.text[:at]) else ""
        yield actions, succeeded + said.text[at + len(code) + 1 : end]


def _is_run(code: str, action: Action) -> bool:
    """Return whether a call ran exactly this command or code."""
    line = code_of(action)
    if line is None:
        line = str(action.args.get("command", ""))
    return " ".join(code.split()) == " ".join(line.split())


def _output_refuted(
    subject: Subject, actions: Sequence[Action], words: str, *, of_it: bool = False
) -> Iterator[str]:
    """Yield what the outputs of some calls refute of words about them.

    Words about "it" are of the calls that were named before, or, if none was, of any call of the run.
    """
    ended = [action for action in actions or subject.acts or () if action.outcome == "done"]
    if not ended or any(_CUT.search(action.output) for action in ended):
        return
    outputs = [" ".join(content_of(action.output)) for action in ended]
    if not actions:
        outputs += [call.text for call in subject.calls or ()]
    for match in _PRINTED.finditer(words):
        value = match["value"].strip('`"“”')
        codes = {str(action.exit_code) for action in ended}
        verb = match["verb"].lower()
        is_code = verb.startswith("return") and value in codes
        lead = words[: match.start()]
        if is_code or _FUTURE.search(lead) or _OF_ANOTHER.search(lead):
            continue
        if of_it and verb not in _ONLY_PRINTING:
            continue
        subject.checked.add(value)
        if not any(_has_value(value, output) for output in outputs):
            yield f"the answer says “{match[0]}”; the output of the command does not have {match['value']}"


def _exit_refuted(subject: Subject, actions: Sequence[Action], words: str) -> Iterator[str]:
    ended = [action for action in actions if action.outcome in DONE]
    codes = {action.exit_code for action in ended}
    succeeded, failed, told = _SUCCEEDED.search(words), _FAILED.search(words), _EXIT.search(words)
    if succeeded is not None and not ended:
        yield f"the answer says “{succeeded[0]}”, but {failure_text(actions)}"
    if not codes or None in codes:
        return
    shown = ", ".join(str(code) for code in sorted(code for code in codes if code is not None))
    subject.checked.update(match[0] for match in (succeeded, failed, told) if match is not None)
    ends = {action.exit_code for action in subject.acts or () if action.outcome == "done"}
    # A code with which no command ended is told by `outcomes_are_right`.
    if told is not None and int(told["code"]) in ends - codes:
        yield f"the answer says “{told[0]}”; the exit code was {shown}"
    elif succeeded is not None and 0 not in codes:
        yield f"the answer says “{succeeded[0]}”; the command ended with exit code {shown}"
    elif failed is not None and codes == {0} and not any(map(_may_be_called_failed, ended)):
        yield f"the answer says “{failed[0]}”; the command ended with exit code 0"


def _may_be_called_failed(action: Action) -> bool:
    """Return whether a command that ended with 0 may have failed in part."""
    return bool(_SEVERAL.search(str(action.args.get("command", ""))) or _SHOWS_FAILURE.search(action.output))


def _has_value(value: str, output: str) -> bool:
    """Return whether an output has every word and number of a text, rounded where the text rounds."""
    tokens = {token.lower().replace(",", "") for token in _TOKEN.findall(output)}
    numbers = [token for token in tokens if token[0].isdigit()]
    for token in _TOKEN.findall(value):
        wanted = token.lower().replace(",", "")
        if wanted in tokens:
            continue
        decimals = len(wanted.partition(".")[2])
        if not wanted[0].isdigit() or not any(
            abs(float(number) - float(wanted)) <= 0.5000001 * 10**-decimals
            for number in numbers
            if "." in number
        ):
            return False
    return True
