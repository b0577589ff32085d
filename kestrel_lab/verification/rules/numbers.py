"""Checks of numbers: counts that can be taken again, and numbers that a line which speaks of the same contradicts.

A number that is merely nowhere is said beside the answer: it may be derived, rounded, an example or common knowledge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from kestrel_lab.core.citations import citations, resolve
from kestrel_lab.language.python_ast import expression_of, tree_of
from kestrel_lab.language.words import claim_stem, claim_terms
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.bindings import folded
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.names import code_in, files_in, names_in
from kestrel_lab.verification.prose.stance import clause, covered, stance
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import PARSED, TOKEN

_NUMBER: Final = re.compile(
    r"(?<![\w.,/:#@=+*^-])\*{0,2}(?P<number>\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)\*{0,2}(?![\w/^]|[.,:]\d|-\w|\s?[·×])"
)
_ROUGH: Final = re.compile(
    r"(?:\babout|\baround|\broughly|\bapprox\w*|\bsome|\bover|\bunder|\bless than|\bmore than|\bat least|\bat most|\bup to|\bnearly|\balmost|\bsay,?|~|≈|\bexceed\w*|\babove|\bbelow|\bbeyond|\b(?:great|few|larg|long|short|small|high|low)er than|\bmehr als|\bweniger als|\bmindestens|\bhöchstens|\büber|\bunter|\bbis zu|\bplus de|\bmoins de|\bau moins|\bau plus|\bmás de|\bmenos de|\betwa|\brund|\bknapp|\bca\.|\benviron|\bunos)\W*$",
    re.IGNORECASE,
)
_SUM: Final = re.compile(r"[\d.]+(?:\s*[+×*/]\s*[\d.]+)+\s*=\s*[\d.,]+")
_WORDS_TEXT: Final = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
_GERMAN_TEXT: Final = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn zwanzig"
NUMERALS: Final = {word: value for text in (_WORDS_TEXT, _GERMAN_TEXT) for value, word in enumerate(text.split())}
_COUNT: Final = rf"(?P<n>\d[\d,]*|{'|'.join(NUMERALS)})"
_LINES: Final = re.compile(
    r"(?<![\w.–-])(?P<n>\d[\d,]*) lines\b(?! (?:of output|later|above|below|after|before|apart|further|up|down))|(?<![\w.–-])(?P<m>\d[\d.]*) Zeilen\b",
    re.IGNORECASE,
)
_KINDS: Final = re.compile(rf"(?<![\w.]){_COUNT}\*{{0,2}} (?:top-level |public )?(?P<what>classes|functions)\b", re.IGNORECASE)
_HOLDS: Final = re.compile(
    r"\b(?:defines?|has|contains?|holds?|there (?:is|are)|with|consists of)\W*(?:exactly |just |only |\*\*)*$", re.IGNORECASE
)
_PRINTS: Final = re.compile(
    rf"\b(?:prints?|printed|gives?|gave|returns?|returned|reports?|reported|outputs?|shows?|yields?|says|liefert|ergibt|donne)\b\W{{0,6}}(?:exactly )?\*{{0,2}}{_COUNT}\b(?!\.\d)",
    re.IGNORECASE,
)


def counted(word: str) -> int:
    """The number that a numeral or digits say."""
    return NUMERALS[word.lower()] if word.lower() in NUMERALS else int(word.replace(",", "").replace(".", ""))


def counts_are_right(subject: Subject) -> Iterator[Issue]:
    """Lines, classes and functions of a file are as many as is said, and so is what a command printed."""
    for said in subject.paid():
        if said.kind == "code":
            continue
        yield from _printed(subject, said)
        paths = {path for file in files_in(said) for path in subject.files.named(file.text)}
        if len(paths) != 1 or any("*" in code for code, _ in code_in(said)):  # a pattern names more than one
            continue
        path = next(iter(paths))
        if not any(found.path for found in citations(said.text)):
            yield from _lines(subject, said, path)
        yield from _definitions(subject, said, path)


def _printed(subject: Subject, said: Said) -> Iterator[Issue]:
    """Where a command that was run printed one number and nothing else, that number is what it printed."""
    for code, at in code_in(said):
        made = next((one for one in subject.calls or () if " " in code and one.args.get("command") == code), None)
        output = "" if made is None else next((span.text.strip() for span in subject.whole_spans if span.call == made.call), "")
        match = _PRINTS.search(said.text, at + len(code))
        wc = re.fullmatch(r"wc -l (\S+)", code)
        if made is None and wc and subject.files.exists(wc[1]) and (text := subject.files.read(wc[1])) is not None:
            output = str(text.count("\n"))
        printed = re.match(r"(\d{1,18})(?:\s+\S+)?$", output)
        if match and printed and counted(match["n"]) != int(printed[1]):
            yield issue("major", said.text, f"{code} prints {printed[1]}, not {match['n']}", "say what it prints")


def _lines(subject: Subject, said: Said, path: str) -> Iterator[Issue]:
    for match in _LINES.finditer(said.text):
        count, stated = len((subject.files.read(path) or "").splitlines()), counted(match["n"] or match["m"])
        about = re.search(r"\b(?:has|is|counts|file|long|total|with|hat)\b", covered(said.text)) or re.search(
            r"\([^()]*$", said.text[: match.start()]
        )
        if (
            abs(count - stated) > 1
            and about
            and not _ROUGH.search(said.text[: match.start()])
            and stance(said.text, match.start(), match.end()) == "asserted"
        ):
            yield issue("major", said.text, f"{path} has {count} lines, not {stated}", "count again")


def _definitions(subject: Subject, said: Said, path: str) -> Iterator[Issue]:
    module = subject.symbols.module(path)
    if module is None:
        return
    for match in _KINDS.finditer(said.text):
        if not _HOLDS.search(said.text[: match.start()]) or stance(said.text, match.start(), match.end(), said.lead) != "asserted":
            continue
        text = subject.files.read(path) or ""
        subject.pay(PARSED * len(text))
        kind = "class" if match["what"].lower() == "classes" else "function"
        top = [name for name, found in module.members.items() if found.kind == kind]
        every = sum(
            isinstance(node, ast.ClassDef if kind == "class" else ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(tree_of(text))
        )
        if counted(match["n"]) not in (len(top), every, sum(not name.startswith("_") for name in top)):
            yield issue("major", said.text, f"{path} defines {len(top)} {match['what']}, not {match['n']}", "count again")


def numbers_are_there(subject: Subject) -> Iterator[Issue]:
    """No line that speaks of the same has another number; one that is nowhere is mentioned."""
    for said in subject.paid():
        if said.kind in ("code", "row"):
            continue
        plain = _without_places(said.text)
        sums = [found.span() for found in _SUM.finditer(plain)]
        for match in _NUMBER.finditer(plain):
            number = match["number"].replace(",", "").replace("_", "")
            if number in ("0", "1", "2") or (len(number) == 4 and number.startswith(("19", "20"))):
                continue
            if any(start <= match.start() < end for start, end in sums):
                continue  # the answer works it out
            rough = _ROUGH.search(plain[: match.start()])
            texts = _cited(subject, said) if rough else [*_cited(subject, said), *_named(subject, said)]
            subject.pay(TOKEN * sum(map(len, (*texts, subject.told))))
            if any(_has(text, number) for text in (*texts, subject.told)) or stance(said.text, match.start(), match.end(), said.lead) in (
                "to be made",
                "supposed",
            ):
                continue
            if line := _measured(plain, match, _cited(subject, said)) or (
                "" if rough else _other(said, plain, match, texts or [subject.told])
            ):
                yield issue("major", said.text, f"the number {match['number']} is not what is there: {line.strip()}", "look the number up")
            elif texts and not rough:
                yield issue("minor", said.text, f"the number {match['number']} is not in what the sentence names", "look the number up")


def _without_places(text: str) -> str:
    for found in citations(text):
        text = text.replace(found.text, " " * len(found.text))
    text = re.sub(
        r"\b(?:lines?|L|ll?\.|zeilen?|lignes?|l[ií]neas?) ?\d+(?:\s?(?:-|–|to|and|bis|und|à|a|y)\s?L?\d+)?",
        lambda match: " " * len(match[0]),
        text,
        flags=re.IGNORECASE,
    )
    return re.sub(r"^\s*\d+[.)]\s", lambda match: " " * len(match[0]), covered(text))


def _cited(subject: Subject, said: Said) -> list[str]:
    """What the places that the sentence cites hold."""
    return [span.text for one in citations(said.text) if (span := resolve(one, subject.spans, subject.files.read)) is not None]


def _named(subject: Subject, said: Said) -> list[str]:
    """The texts of the files that the sentence names, and of those with the functions and classes that it does."""
    found = [path for file in files_in(said) for path in subject.files.named(file.text)]
    found += [one.path for name in names_in(said) for one in subject.symbols.defined(name.text.rpartition(".")[2]) if one.kind != "name"]
    return [subject.files.read(path) or "" for path in dict.fromkeys(found)]


def _has(text: str, number: str) -> bool:
    """Whether the number stands in the text, or is what a product in it comes to."""
    shown = f"{int(number):,}" if number.isdigit() else number
    pattern = re.compile(
        rf"(?<![\w.])(?:{re.escape(number)}|{re.escape(shown)}|{re.escape(shown.replace(',', '_'))}|{re.escape(number.removesuffix('.0'))})(?:\.0)*(?!\w|\.\d)"
    )
    return pattern.search(text) is not None or float(number) in _values(text)


@lru_cache(maxsize=64)
def _values(text: str) -> frozenset[float]:
    """What the products and powers in a text come to, and its numbers in hexadecimal."""
    found: set[float] = set()
    for match in re.finditer(r"\b(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:\s*(?:\*\*?|<<)\s*\d+)+)\b", text):
        try:
            value = folded(expression_of(match[0]))
        except (SyntaxError, ValueError, RecursionError):
            continue
        if isinstance(value, int | float):
            found.add(float(value))
    return frozenset(found)


def _measured(plain: str, match: re.Match[str], cited: list[str]) -> str:
    """A cited line on the same subject that has another number of the same unit, behind the same `above` or `at most` if there is one."""
    unit = re.match(r"\*{0,2}\s?(?P<unit>[A-Za-zµ°][\w/°]*|%)", plain[match.end() :])
    if unit is None:
        return ""
    rough = _ROUGH.search(plain[: match.start()])
    before = rf"{re.escape(rough[0].strip())}\W+" if rough else ""
    pattern = re.compile(rf"{before}\d[\d.,_]*\s?{re.escape(unit['unit'])}(?!\w)", re.IGNORECASE)
    about = claim_terms(plain)
    return next(
        (line for text in cited for line in text.splitlines() if pattern.search(line) and len(claim_terms(line) & about) >= 2),
        "",
    )


def _other(said: Said, plain: str, match: re.Match[str], texts: list[str]) -> str:
    """A line in which the words right before the number stand before another number."""
    before, after = clause(plain, match.start(), match.end())
    words = [word for word in re.findall(r"[A-Za-z_]\w{3,}", before[-40:]) if claim_terms(word)]
    if not words:
        return ""
    keys = "|".join(re.escape(claim_stem(word.lower())) for word in words[-2:])
    about = claim_terms(f"{before} {after}") | {part for name in names_in(said) for part in claim_terms(name.text)}
    pattern = re.compile(rf"(?P<begin>^\W*)?(?<![a-z])(?:{keys})\w*\W{{1,3}}(?:[A-Za-z]+\W{{1,3}}){{0,2}}\d", re.IGNORECASE)
    for text in texts:
        for line in text.splitlines():
            found = pattern.search(line)
            if found and (len(claim_terms(line) & about) >= 2 or found["begin"] is not None):
                return line
    return ""
