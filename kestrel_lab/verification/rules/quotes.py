"""Checks of quotes: what is put in quotation marks, or shown as lines of a file, stands there word by word.

A text that is nowhere is wrong only where it is said whose words it is; code is a quote only where most of it is there, or all but one thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kestrel_lab.core.citations import Citation, citations
from kestrel_lab.verification.claims import MOST_CHARS, Said
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.names import code_in, files_in, names_in
from kestrel_lab.verification.prose.stance import PROPOSES, covered, stance
from kestrel_lab.verification.rules.files_and_lines import SLACK
from kestrel_lab.verification.rules.text_match import PYTHONS, changed_in, coded_in, nearly_in, quoted_in, spoken, tokens
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import SEARCHED

_QUOTE: Final = re.compile(r"\"([^\"\n]{8,400})\"|“([^“”\n]{8,400})”|„([^„“”\n]{8,400})[“”]|«\s?([^«»\n]{8,400}?)\s?»")
_SAYS: Final = re.compile(
    r"\b(?:says?|said|reads?|states?|stated|contains?|writes?|written|quotes?|docstring|comments?|commented|message|errors?|warns?|warning|rais(?:es?|ed)|you get|gets?|logs?|logged|prints?|returns?|reports?|fails?|"
    r"documented|documents?|docs|describes?d?|notes?|according|readme|output|header|text|line|tells?|told|labelled|calls it|puts it|mentions?|explains?|explicit\w*|exact|verbatim|recommends?|"
    r"meldet|meldung|fehler\w*|wirft|sagt|steht|lautet|laut|kommentar|message d['’]erreur|lève|lanza|dice|mensaje)\b",
    re.IGNORECASE,
)
_SUGGESTS: Final = re.compile(
    r"\b(?:write|try|type|ask|call it|name it|rename|replace|change|instead|commit message|title|prompt|search(?:es)? for|question|so-called|meant|means?|autrement dit|mit anderen Worten|in other words|approach|mode|style|in the sense|idea)\b[^\"“„«]*$",
    re.IGNORECASE,
)
_OTHERS: Final = re.compile(
    r"\b(?:RFC|PEP|POSIX|IEEE|ISO|W3C|WHATWG|Wikipedia|Unicode|et al|man page|spec|specification|CommonMark|MDN|Stack Overflow|[A-Z]+ standard|(?:Python|CPython|Linux|Django)(?:['’]s)?(?: own)? (?:docs?|documentation|manual|reference|tutorial))\b"
)
"""Whose words need not be the workspace's."""
_STATEMENT: Final = re.compile(
    r"^(?:return|raise|if|elif|while|for|assert|yield|del|import|from|class|def|with|except|not)\b|(?<![=!<>:])=(?!=)|[=!<>]=|\s[<>]\s"
)
_CALLED: Final = re.compile(r"(?:await )?[A-Za-z_][\w.]*\([^()]*(?:\([^()]*\)[^()]*)*\)(?: ?-> ?.+)?")
"""A call or a signature, which says what can be passed and not how a line reads."""
_RAISED: Final = re.compile(r"(?:raise )?(?P<error>\w*(?:Error|Exception|Warning))\([fb]?(?P<mark>[\"'])(?P<text>[^\n]*?)(?P=mark)[,)]")
_REMARK: Final = re.compile(r"^\W{0,4}(?:note|tip|hint|warning|caution|important|hinweis|achtung|tipp|remarque|nota)\b", re.IGNORECASE)
_FROM: Final = re.compile(r"\b(?:from|in|quoted?|excerpt|reads?|aus|dans)\b[^.]*:\s*$", re.IGNORECASE)
_OUTPUT: Final = frozenset({"diff", "patch", "console", "text", "txt", "output", "mermaid", "log", "plaintext"})
_DEFINED: Final = re.compile(r"^[ \t]*(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^(\w+)\s*=\s*(.+)$")
_KEY: Final = re.compile(r"^\s*[\"']?([\w.-]+)[\"']?\s*:(?:\s|$)")


def quotes_are_exact(subject: Subject) -> Iterator[Issue]:
    """What is put in quotation marks, or quoted as a block, is said word by word where it is said to be from."""
    for place, said in enumerate(subject.paid()):
        after = subject.claims[place + 1].text[:120] if place + 1 < len(subject.claims) else ""
        if said.kind == "code":
            yield from _block(subject, said, after)
            continue
        for quote, sure in _quotes(said, after):
            yield from _quote_issue(subject, said, quote, sure=sure)
        for code, at in code_in(said):
            if (raised := _RAISED.match(code)) and len(spoken(raised["text"])) >= 3 and subject.names(raised["error"]):
                yield from _quote_issue(subject, said, raised["text"], sure=stance(said.text, at, at + len(code), said.lead) == "asserted")
            elif _STATEMENT.search(code) and not _CALLED.fullmatch(code) and stance(said.text, at, at + len(code), said.lead) == "asserted":
                yield from _code_issue(subject, said, code)


def _quotes(said: Said, after: str) -> Iterator[tuple[str, bool]]:
    """What is quoted, and whether it is said whose words it is."""
    if said.kind == "quote":
        if len(said.text.split()) >= 4 and not _REMARK.match(said.text):
            yield said.text.strip('"“”*_ '), _SAYS.search(covered(f"{said.lead if said.lead.endswith(':') else ''} {after}")) is not None
        return
    plain = re.sub(r"``[^\n]+?``|`[^`\n]*`", lambda match: "`" * len(match[0]) if '"' in match[0] else match[0], said.text)
    for match in _QUOTE.finditer(plain):
        quote = next(group for group in match.groups() if group).strip()
        before = plain[: match.start()]
        if (
            len(spoken(quote)) < 3
            or _SUGGESTS.search(before[-60:])
            or quote.endswith("?")
            or " " not in quote
            or "`````" in quote
            or "://" in quote
            or re.search(r"=\s?$|\w\($", before)
        ):
            continue
        around = covered(f"{before} {plain[match.end() :]}")
        if PYTHONS.search(quote):
            continue
        said_by = _SAYS.search(around) is not None and _OTHERS.search(around) is None
        yield quote, said_by and stance(said.text, match.start(), match.end(), said.lead) == "asserted"


def _scope(subject: Subject, said: Said, more: Iterable[str] = ()) -> list[str]:
    """The texts of the files that are named, and of those that define what is named."""
    files = [path for text in (said.text, said.lead) for name in files_in(Said(text=text, at=0)) for path in subject.files.named(name.text)]
    names = [name.text.rpartition(".")[2] for name in (*names_in(said), *names_in(Said(text=said.lead, at=0)))]
    for name in dict.fromkeys((*names, *more)):
        files += [one.path for one in subject.symbols.defined(name) if one.kind != "name"][:4]
    return [subject.files.read(path) or "" for path in dict.fromkeys(files)]


def _quote_issue(subject: Subject, said: Said, quote: str, *, sure: bool) -> Iterator[Issue]:
    scope = _scope(subject, said)
    if (
        quoted_in(quote, subject.through([*scope, subject.told]))
        or coded_in(quote, subject.through(scope))
        or quoted_in(quote, subject.through(_maybe(subject, quote)))
    ):
        return
    found = nearly_in(quote, subject.through([*scope, subject.told], cost=len(spoken(quote))))
    if found or (sure and subject.files.whole):
        where = f"; what is there reads: {found}" if found else ""
        yield issue(
            "critical",
            said.text,
            f"the quote “{quote}” is neither in the workspace nor in what a tool answered{where}",
            "quote it word by word, or say it without quotation marks",
        )


def _maybe(subject: Subject, quote: str) -> Iterator[str]:
    """The texts of the workspace that have one of the quote's longest words: what is filled in may be another."""
    longest = sorted(set(re.findall(r"[^\W_]{3,}", quote)), key=len)[-3:]
    for path in dict.fromkeys(path for word in reversed(longest) for path in subject.files.having(word)[:60]):
        yield subject.files.read(path) or ""


def _code_issue(subject: Subject, said: Said, code: str) -> Iterator[Issue]:
    scope = _scope(subject, said)
    if coded_in(code, subject.through([*scope, subject.told])):
        return
    names = [token for token in tokens(code) if token.isidentifier()]
    holding = [subject.files.read(path) or "" for path in subject.files.having(max(names, key=len))[:40]] if names else []
    if coded_in(code, subject.through(holding)):
        return
    only = re.match(r"([A-Za-z_]\w*)\s*(?::[^=]*)?=(?!=)", code)
    once = only is not None and sum(len(subject.symbols.bound(path).get(only[1], ())) for path in subject.files.having(only[1])) == 1
    known = frozenset() if once else frozenset(name for name in names if subject.names(name))
    if found := changed_in(code, subject.through(scope or holding), known):
        yield issue(
            "critical", said.text, f"`{code}` is not there; what is there reads: {found}", "read the file and quote it word by word"
        )


def _block(subject: Subject, said: Said, after: str) -> Iterator[Issue]:
    """A block most of which is in a file that is named before or after it, or defines what is named, is quoted from there."""
    if said.language in _OUTPUT or PROPOSES.search(covered(said.lead.rpartition(". ")[2])):
        return
    about = f"{said.lead} {after}" if re.match(r"\s*[(—–-]", after) else said.lead
    cited = [found for found in citations(about) if found.path]
    body = [line for line in said.text.splitlines() if len(line) <= MOST_CHARS and len(tokens(_bare(line))) > 1]
    scope = _scope(subject, Said(text=about, at=0), _DEFINED.findall(said.text))
    for text in scope:
        there = [line for line in body if coded_in(_bare(line), subject.through([text], 1 / SEARCHED))]
        if not there or 2 * len(there) < len(body) or (len(there) < 2 and not _FROM.search(covered(said.lead))):
            continue
        yield from _misplaced(subject, said, there, cited)
        for line in body:
            if line not in there and (why := _wrong(subject, line, text, abridged="..." in said.text or "…" in said.text)):
                yield issue(
                    "critical", line.strip(), f"the line is quoted and is not there{why}", "read the file and quote it word by word"
                )
        return


def _bare(line: str) -> str:
    """The line without its number and without a remark at its end."""
    return re.sub(r"^\s*\d+[:|]\s?", "", re.sub(r"(?:^|(?<=\s))(?:#|//) .*$", "", line)).strip()


def _wrong(subject: Subject, line: str, text: str, *, abridged: bool) -> str:
    """Why a line that is not in a file cannot be the writer's shortening of what is: one thing is changed, or it names what is nowhere."""
    bare = _bare(line)
    names = [token for token in tokens(bare) if token.isidentifier() and len(token) > 2]
    unheard = [name for name in names if not subject.names(name)]
    if found := changed_in(bare, subject.through([text]), frozenset(set(names) - set(unheard))):
        return f"; what is there reads: {found}"
    if not abridged and (value := _ASSIGNED.match(bare)):
        known = re.findall(rf"^[ \t]*{re.escape(value[1])}[ \t]*=\s*(.+)$", text, re.MULTILINE)
        if (
            len(known) == 1
            and re.match(r"[\[{(\"'\d-]", value[2])
            and known[0][:1] == value[2][:1]
            and known[0].rstrip()[-1:] in "]})\"'"
            and value[2].rstrip()[-1:] in "]})\"'"
        ):
            return f"; what is there reads: {value[1]} = {known[0]}"
    key = _KEY.match(bare)
    if unheard and not abridged and (key or "=" in bare):
        return f": nothing is called {unheard[0]}"
    return ""


def _misplaced(subject: Subject, said: Said, there: list[str], cited: list[Citation]) -> Iterator[Issue]:
    """Where the block is cited from one place, some of it is there."""
    for one in cited if len(cited) == 1 else ():
        near = (subject.files.read(one.path) or "").splitlines()[max(0, one.first - 1 - SLACK) : one.last + SLACK]
        if not any(coded_in(_bare(line), ["\n".join(near)]) for line in there):
            yield issue("major", said.lead, f"the block is not at {one.path}:{one.first}", "name the lines it is from")
