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
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.language.definitions import definitions_in
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
        cited = {one.path for one in citations_in(said.text) if one.path}
        for name in (*files_in(said), *folders_in(said)):
            missing = _is_missing(subject, said, name, cited=name.text in cited)
            if missing or subject.files.exists(name.text):
                subject.checked.add(name.text)
            if missing:
                fix = f"name a file that exists{_similar_path(subject, name.text)}"
                yield Issue("critical", said.text, f"{name.text} does not exist", fix)


def _is_missing(subject: Subject, said: Statement, name: Mention, *, cited: bool) -> bool:
    files, path = subject.files, name.text
    around = set(said.text[max(0, name.start - 1) : name.end + 1])
    # Citations are in brackets.
    if not files.whole_listing or around & (_PATTERN - {"["} if cited else _PATTERN) or files.exists(path):
        return False
    if not (cited or _is_of_workspace(subject, path) or _is_located(subject, said, name)):
        return False
    before = said.text[: name.start] or said.lead
    rest = _CODE.sub(" ", f"{said.text[: name.start]} {said.text[name.end :]}")
    if _ABSENT.search(rest) or _PROPOSED.search(before) or _is_of_run(subject, path):
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
    if any(name.text in span.text for span in subject.whole_spans if span.call not in here):
        return False
    quoted = said.text[name.start - 1 : name.start] == "`" == said.text[name.end : name.end + 1]
    return _LOCATES.search(said.text[: name.start - quoted]) is not None


def _is_of_run(subject: Subject, path: str) -> bool:
    """Return true if the goal names the file, or a call of the run used it."""
    ends = re.compile(rf"(?:^|[\s/'\"`(=]){re.escape(path.removeprefix('./'))}(?:$|[\s'\"`),:;]|\.(?:\s|$))")
    return ends.search(subject.goal) is not None or any(
        isinstance(value, str) and ends.search(value) is not None
        for made in subject.calls or ()
        for value in made.args.values()
    )


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
            if cited.call and subject.calls is not None:
                subject.checked.add(cited.call)
            if (
                cited.call
                and subject.calls is not None
                and cited.call not in {made.call for made in subject.calls}
            ):
                what = f"there was no tool call {cited.call}"
                yield Issue("critical", said.text, what, "cite a call of this run, or say where it is from")


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
