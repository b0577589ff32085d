"""Checks the places in an answer: files exist, files have the cited lines, cited calls were made.

Only the workspace decides whether a file exists; text that mentions it does not. No issue for files that the
goal names, the run wrote or deleted, or the sentence proposes or calls missing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kestrel_lab.core.citations import Citation, citations_in
from kestrel_lab.core.events.tool_kinds import tool_kind
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.language.definitions import definitions_in
from kestrel_lab.verification.answered_calls import (
    AnsweredCall,
    answered_for,
    asks_for,
    outcome_of,
    says_nothing_is_there,
)
from kestrel_lab.verification.claims import Mention, Statement, files_in, folders_in, names_in, preceding_name
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.quotes import contains_quote, quotes_in, with_context_lines
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import ALIKE, PARSED, whole_word

_ABSENT: Final = re.compile(
    r"\b(?:missing|absent|removed|deleted|renamed|nonexistent|gone)\b"
    r"|(?:\b(?:no|not|never|neither|nor|without|cannot)\b|n['’]t\b).*\b(?:exist\w*|there|have|has|had|find|found|contain\w*|includ\w*|ship\w*|present|file|files|module|such)\b"
    r"|\b(?:exist\w*|there|find|found|present|such)\b.*(?:\b(?:no|not|never)\b|n['’]t\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Sentences that may say that a file does not exist."""
_PROPOSED: Final = re.compile(
    r"\b(?:creat(?:e|es|ing)|add(?:ing)?|new|sav(?:e|es|ing)|writ(?:e|es|ing)|put|plac(?:e|ing)"
    r"|generat(?:e|es|ing)|touch|mkdir|rename|call "
    r"it|name it|output)\b(?:\W+[\w'’-]+){0,7}\W*$",
    re.IGNORECASE,
)
"""Text before a file that is to be created."""
_LOCATES: Final = re.compile(
    r"\b(?:in|see|from|at|inside|file|module)\s+(?:the\s+)?(?:file\s+)?$", re.IGNORECASE
)
_EXAMPLE: Final = re.compile(
    r"\b(?:you|your|yours|you're|if|example|e\.g|such as|like|say|suppose\w*|imagine|would|could)\b",
    re.IGNORECASE,
)
"""Sentences whose bare file names need not be in the workspace."""
_CODE: Final = re.compile(r"`[^`\n]*`")
_PATTERN: Final = frozenset("*<{[")


def files_exist(subject: Subject) -> Iterator[Issue]:
    """Every file that is cited, or that is placed in a folder of the workspace, exists."""
    for said in subject.paid():
        cited = {citation.path: citation.text for citation in citations_in(said.text) if citation.path}
        for name in (*files_in(said), *folders_in(said)):
            citation = cited.get(name.text) or _bracketed(subject, said, name)
            missing = _is_missing(subject, said, name, citation)
            if missing or subject.files.exists(name.text):
                subject.checked.add(name.text)
            if missing:
                fix = f"name a file that exists{_similar_path(subject, name.text)}"
                yield Issue("critical", said.text, f"{name.text} does not exist", fix)


def _bracketed(subject: Subject, said: Statement, name: Mention) -> str:
    """Return a file in brackets as the citation that it is where a call asked for that file; else empty."""
    text = said.text[max(0, name.start - 1) : name.end + 1]
    is_link = said.text[name.end + 1 : name.end + 2] == "("
    if text != f"[{name.text}]" or is_link:
        return ""
    asked = any(asks_for(call, _ends_with(name.text)) for call in subject.calls or ())
    return text if asked else ""


def _is_missing(subject: Subject, said: Statement, name: Mention, citation: str) -> bool:
    """Return whether a file that a sentence names, or cites as `citation`, is not there and has to be."""
    files, path = subject.files, name.text
    around = set(said.text[max(0, name.start - 1) : name.end + 1])
    # Citations are in brackets.
    if not files.whole_listing or around & (_PATTERN - {"["} if citation else _PATTERN) or files.exists(path):
        return False
    if not (citation or _is_of_workspace(subject, path) or _is_located(subject, said, name)):
        return False
    before = said.text[: name.start] or said.lead
    rest = _CODE.sub(" ", f"{said.text[: name.start]} {said.text[name.end :]}")
    if _ABSENT.search(rest) or _PROPOSED.search(before):
        return False
    if _is_explained(subject, said, path, citation):
        return False
    return not any(
        one.spaced and one.path == path and files.exists(one.spaced) for one in citations_in(said.text)
    )


def _is_of_workspace(subject: Subject, path: str) -> bool:
    """Return true if the path starts with a workspace folder in any case, or is absolute in an existing
    folder.
    """
    folder, _, _ = path.removeprefix("./").rpartition("/")
    if path.startswith(("~", "../")):
        return False
    if path.startswith("/"):
        return folder not in ("", "/") and Path(folder).is_dir()
    return bool(folder) and subject.files.has_folder(folder.partition("/")[0], any_case=True)


def _is_located(subject: Subject, said: Statement, name: Mention) -> bool:
    """Return true if a sentence locates something in a bare file name; the reader's and example files do not
    count.
    """
    if "/" in name.text or _EXAMPLE.search(said.text) or _EXAMPLE.search(said.lead):
        return False
    # A module, such as `flask.json`.
    if subject.files.has_folder(name.text.partition(".")[0]):
        return False
    here = {span.call for span in subject.spans if span.path}
    # A file of another place, such as a drive.
    named = re.compile(re.escape(name.text))
    if any(
        named.search(line) is not None and not says_nothing_is_there(line)
        for call in subject.calls or ()
        if call.call not in here
        for line in call.content
    ):
        return False
    quoted = said.text[name.start - 1 : name.start] == "`" == said.text[name.end : name.end + 1]
    return _LOCATES.search(said.text[: name.start - quoted]) is not None


def _is_explained(subject: Subject, said: Statement, path: str, citation: str) -> bool:
    """Return whether the run explains why a file that is not in the workspace is named or cited.

    A call explains it by its answer alone. Where calls asked for the file and none got it, a sentence that
    cites it has to say so itself; one that only names it may leave that to another sentence. Where no call
    asked for it, the goal may speak of any file.
    """
    name = _ends_with(path)
    asking = [call for call in subject.calls or () if asks_for(call, name)]
    if any(answered_for(call, name) for call in asking):
        return True
    in_goal = name.search(subject.goal) is not None
    if not asking or (citation and citation in subject.goal):
        return in_goal
    if citation:
        return _TELLS_FAILURE.search(said.text) is not None
    # A file that was to be made, and was not.
    meant = in_goal and all(tool_kind(call.tool, call.args) == "edit" for call in asking)
    return meant or _TELLS_FAILURE.search(subject.answer) is not None


def _ends_with(path: str) -> re.Pattern[str]:
    """Return a pattern for a path, or the end of one, within a text."""
    name = re.escape(path.removeprefix("./"))
    return re.compile(rf"(?:^|[\s/'\"`(=:\[]){name}(?:$|[\s'\"`),:;?!\]]|\.(?:\s|$))")


ADMITS: Final = re.compile(
    r"\b(?:not|never|nothing|none|neither|nobody|cannot|unable|den(?:y|ied|ies|ial)|refus\w+|declin\w+"
    r"|reject\w+|block\w+|fail\w*|errors?|unchanged|permissions?|approv\w+|allowed|skipped|cancel\w+"
    r"|without|instead|no (?:change|row|file|cell|call|effect)s?)\b|n['’]t\b",
    re.IGNORECASE,
)
"""Words of an answer that mention a refusal, a failure, or undone work."""
_TELLS_FAILURE: Final = re.compile(
    rf"{ADMITS.pattern}|\w+(?:Error|Exception|Warning)\b|\b(?:missing|absent|tr(?:y|ied|ies|ying)|attempt\w*"
    r"|rather than|no longer|former\w*|legacy|exit\w*|rais\w+|crash\w*|tim(?:ed|es) out|timeouts?|empty|blank"
    r"|no|only|zero|0)\b",
    re.IGNORECASE,
)
"""Words of a sentence that may rest on a call that failed or answered nothing."""


def _similar_path(subject: Subject, path: str) -> str:
    last = path.rpartition("/")[2]
    subject.pay(ALIKE * len(subject.files.paths))
    known = {known.rpartition("/")[2]: known for known in subject.files.paths}
    near = difflib.get_close_matches(last, known, n=1, cutoff=0.6) or [
        name for name in known if name.lower() == last.lower()
    ]
    return f", such as {known[near[0]]}" if near else ""


def citations_resolve(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for cited lines that do not exist or lack what the sentence names, and for unknown
    calls.

    A bare file name means any file of that name: one of them must match.
    """
    for said in (one for one in subject.paid() if one.kind != "code"):
        found = citations_in(said.text)
        right = {cited.path for cited in found if cited.path and not _wrong_lines(subject, said, cited)}
        for cited in found:
            if cited.path and (wrong := _wrong_lines(subject, said, cited, others=cited.path in right)):
                yield Issue("critical", said.text, wrong, "read the file and cite the right lines")
            if unshown := _shows_nothing(subject, said, cited):
                yield Issue("critical", said.text, unshown, "cite what shows it, or say that it is unknown")


def _shows_nothing(subject: Subject, said: Statement, cited: Citation) -> str:
    """Return why a cited call or page shows nothing of what a sentence says; empty if it may show it.

    A call that failed or found nothing shows just that, and a page is shown by any answer that names it.
    """
    if subject.calls is None or not (cited.call or cited.page):
        return ""
    admits = _TELLS_FAILURE.search(said.text) is not None
    if cited.call:
        subject.checked.add(cited.call)
        call = next((call for call in subject.calls if call.call == cited.call), None)
        if call is None:
            return f"there was no tool call {cited.call}"
        return (
            "" if admits or not call.is_empty else f"the call {cited.call} of {call.tool} {outcome_of(call)}"
        )
    page = re.compile(re.escape(cited.page.rstrip("/").partition("#")[0]))
    fetching = [call for call in subject.calls if asks_for(call, page)]
    # Pages that could not be read are listed without a word each: that one answer admits it is enough.
    admits = admits or ADMITS.search(subject.answer) is not None
    if not fetching or admits or page.search(subject.goal) or _POINTS_AT.search(said.text):
        return ""
    subject.checked.add(cited.page)
    if any(answered_for(call, page) or _names_page(call, page) for call in subject.calls):
        return ""
    return f"{cited.page} was not read: the call of {fetching[-1].tool} {outcome_of(fetching[-1])}"


def _names_page(call: AnsweredCall, page: re.Pattern[str]) -> bool:
    """Return whether the answer of a call, such as a search, names a page."""
    return any(page.search(line) is not None and not says_nothing_is_there(line) for line in call.content)


_POINTS_AT: Final = re.compile(
    r"\b(?:see|visit|more|try|check|open|link\w*|page|site|url|address|download|available|at)\b",
    re.IGNORECASE,
)
"""A sentence that names a page for its reader rather than as what it rests on."""


def _wrong_lines(subject: Subject, said: Statement, cited: Citation, *, others: bool = False) -> str:
    """Return what is wrong with cited lines; empty if nothing is or it is unknown.

    If `others` in the same file contain what the sentence names, these lines may be about anything.
    """
    texts = {
        path: text
        for path in subject.files.named(cited.path)
        if (text := subject.files.read(path)) is not None
    }
    # `files_exist` reports a file that is not there.
    if not texts:
        return ""
    where = f"{cited.path}:{cited.first}" + (f"-{cited.last}" if cited.last != cited.first else "")
    subject.checked.add(where)
    counts = {path: len(split_lines(text)) for path, text in texts.items()}
    longest = max(counts.values())
    if cited.first > longest:
        return f"{where} is not there: the file has {longest} lines"
    if others:
        return ""
    subject.pay(PARSED * sum(map(len, texts.values())))
    if words := _words_elsewhere(said, cited, texts):
        return f"{where} does not have “{words}”, which is elsewhere in the file"
    if (name := preceding_name(said.text, cited.at)) and (at := _defined_elsewhere(name, cited, texts)):
        return f"{where} has nothing of {name}, which is defined at {at}"
    names = [
        name
        for name in names_in(said.text, said.shown)
        if not any(name in part for part in cited.path.split("/"))
    ]
    known = {
        name: f"{path}:{line}"
        for path, text in texts.items()
        for name in reversed(names)
        if (line := _first_line(name, text))
    }
    around = [_text_near(cited, path, text) for path, text in texts.items()]
    if not known or any(whole_word(name).search(near) for near in around for name in known):
        return ""
    if any(contains_quote(quote, around) for quote in quotes_in(said)):
        return ""
    first = next(iter(reversed(known)))
    return f"{where} has nothing of {', '.join(list(known)[:3])}; {first} is at {known[first]}"


def _defined_elsewhere(name: str, cited: Citation, texts: Mapping[str, str]) -> str:
    """Return where a name is defined if the cited lines neither contain nor are inside it; else empty."""
    short, places = (
        name.rpartition(".")[2],
        [(path, one) for path, text in texts.items() for one in definitions_in(path, text)],
    )
    fits = [(path, one) for path, one in places if f".{one.qualified}".endswith(f".{name}")]
    fits = fits or [
        (path, one) for path, one in places if "." in name and not name[0].isupper() and one.name == short
    ]
    near = any(one.first <= cited.last and cited.first <= one.last for _, one in fits)
    if (
        not fits
        or near
        or any(whole_word(short).search(_text_near(cited, path, text)) for path, text in texts.items())
    ):
        return ""
    return f"{fits[0][0]}:{fits[0][1].first}"


def _text_near(cited: Citation, path: str, text: str) -> str:
    """The cited lines with those near them and with the definitions that they are in: a line speaks for its
    whole function or class.
    """
    around = [
        one for one in definitions_in(path, text) if one.first <= cited.last and cited.first <= one.last
    ]
    first = min((one.first for one in around), default=0)
    lines = split_lines(text)[first - 1 : max(one.last for one in around)] if around else ()
    return "\n".join((with_context_lines(cited, text), *(one.qualified for one in around), *lines))


def _first_line(name: str, text: str) -> int:
    found = whole_word(name).search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _words_elsewhere(said: Statement, cited: Citation, texts: Mapping[str, str]) -> str:
    """Return a quote of a sentence's only citation that the file has elsewhere than the cited lines; else
    empty.
    """
    if sum(bool(one.path) for one in citations_in(said.text)) != 1:
        return ""
    for quote in quotes_in(said):
        found = [(path, text) for path, text in texts.items() if contains_quote(quote, [text])]
        near = any(contains_quote(quote, [_text_near(cited, path, text)]) for path, text in found)
        if found and len(found) == len(texts) and not near:
            return quote
    return ""
