"""Checks of values: what an answer says that a name is set to, or is by default, is what the code binds it to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.bindings import UNKNOWN, Binding, folded, literal
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.names import Name, code_in, files_in, names_in
from kestrel_lab.verification.prose.stance import covered
from kestrel_lab.verification.subject import Subject

_NUMBER = r"-?(?:0x[0-9a-fA-F]+|\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+)?(?:e-?\d+)?)(?: ?\*\*? ?\d+)*"
_STRING = r"[bru]?\"[^\"`\n]*\"|[bru]?'[^'`\n]*'"
_VALUE = rf"(?:`(?P<code>{_NUMBER}|True|False|None|{_STRING})`|\*{{0,2}}(?P<plain>{_NUMBER}|True|False|None)\b)"
_UNIT: Final = re.compile(r"\*{0,2} ?(?P<unit>[A-Za-zµ%°]+)")
_CODED: Final = re.compile(
    r"`+(?P<all>(?P<quote>[\"']?)(?:self\.|cls\.)?(?P<name>[A-Za-z_][\w.]*)(?P=quote)(?P<type>\s*:[^=`]+?)?(?P<sign>\s*=\s*|:\s+)(?P<value>[^`=][^`]*?))`+"
)
_NAMED: Final = r"`(?P<name>[A-Za-z_][\w.]*)(?:\(\))?`"
_IN: Final = r"(?: (?:in|of|from) `[^`\n]+`)?"
_FORMS: Final = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        rf"{_NAMED}{_IN}\S{{0,2}},? (?:which |that |always |it )?(?:(?:is |are )?(?:by )?defaults?(?: is)?(?: to)?|is set to|is by default|ist standardmäßig|est par défaut|es por defecto) (?:to )?{_VALUE}",
        rf"\bdefault(?: value)?(?: for| of)(?: the)?(?: \w+)? {_NAMED}(?: \w+ `[\w.]+`)? (?:is|=|ist) {_VALUE}",
        rf"{_NAMED} \((?:by default|defaults? to|default:?|standardmäßig|par défaut|=) {_VALUE}",
        rf"{_NAMED}{_IN}(?: =| is| ist|:| –| —| -) {_VALUE}",
    )
)
_VALUE_OF: Final = re.compile(rf"\bvalue of {_VALUE}")
_LOOSE: Final = _FORMS[-1]
"""Said of a constant or of a default only: otherwise it may be what something is at some time."""
_DEFAULT: Final = re.compile(r"\bdefaults?\b|standardmäßig|Vorgabe|par défaut|por defecto", re.IGNORECASE)
_CHANGED: Final = re.compile(
    r"\b(?:set(?:s|ting)?|pass(?:es|ing|ed)?|rais(?:e|ing)|lower\w*|increas\w*|decreas\w*|bump\w*|with|given|when|if|unless|use|using|try|until|once|while|after|same as|e\.g|example|call(?:ing)?|say|mit|wenn|setz\w*|avec|con)\b",
    re.IGNORECASE,
)
_EFFECT: Final = re.compile(
    r"\s+(?!(?:is|was|has|as|this|its|lines|defaults|sets|means|stands)\b)(?:\w{3,}s|will|would|can|should|to|\w{3,}iert|schaltet|macht|bewirkt|verhindert|erlaubt)\b",
    re.IGNORECASE,
)
"""What it would do: `trust_env = False` ignores the environment."""
_RATIOS: Final = (1, 1_000, 1_024, 1_000_000, 1_048_576, 1_000_000_000, 1_073_741_824, 60, 3_600, 86_400, 100)


@dataclass(frozen=True, slots=True)
class Stated:
    """That a name has a value, as a sentence says it."""

    name: Name
    value: object
    written: str
    default: bool
    """Whether it is said to be so by default."""
    unit: str = ""


def values_hold(subject: Subject) -> Iterator[Issue]:
    """What a name is said to be set to is among what the code sets it to, where the code says that in plain literals."""
    for said in subject.paid():
        if said.kind == "code":
            continue
        every = [(stated, "") for stated in _stated(said)] + list(_of_signatures(said))
        for stated, function in every:
            if subject.stance(said, stated.name) != "asserted":
                continue
            found = _parameters(subject, said, stated, function) if function else _bindings(subject, said, stated)
            if found and all(one.value is not UNKNOWN for one in found) and not any(_same(stated, one.value) for one in found):
                first = found[0]
                shown = ", ".join(dict.fromkeys(repr(one.value) for one in found[:3]))
                yield issue(
                    "major",
                    said.text,
                    f"{stated.name.text} is {shown} at {first.path}:{first.line}, not {stated.written}",
                    "read the value there and say that",
                )


def _stated(said: Said) -> Iterator[Stated]:
    text = said.text
    speaks_of_defaults = _DEFAULT.search(covered(text)) is not None or _DEFAULT.search(said.header) is not None
    for match in _CODED.finditer(text):
        keyword = match["sign"] == "="
        if (value := literal(match["value"])) is UNKNOWN or (keyword and not _of_default(text, match.start(), match.end())):
            continue
        if not _CHANGED.search(_before(text, match.start())) and not _EFFECT.match(text, match.end()):
            yield Stated(_name(match), value, match["value"], default=keyword or match["type"] is not None)
    for form in _FORMS:
        for match in form.finditer(text):
            if form is _LOOSE and not (speaks_of_defaults or match["name"].rpartition(".")[2].isupper()):
                continue
            written = match["code"] or match["plain"]
            unit = _UNIT.match(text, match.end())
            if (value := literal(written)) is not UNKNOWN and not _CHANGED.search(_before(text, match.start())):
                yield Stated(
                    _name(match), value, written, default=form is not _LOOSE or speaks_of_defaults, unit=unit["unit"] if unit else ""
                )
    coded = [match for match in _CODED.finditer(text) if match["sign"] != "="]
    for match in _VALUE_OF.finditer(text) if len(coded) == 1 else ():
        written = match["code"] or match["plain"]
        yield Stated(_name(coded[0]), literal(written), written, default=False)
    if said.kind == "row" and said.header:
        yield from _of_row(said)


def _of_row(said: Said) -> Iterator[Stated]:
    """A row of a table with a column of defaults or values and just one name before it that has it."""
    heads, cells = (text.strip().strip("|").split("|") for text in (said.header, said.text))
    if len(heads) != len(cells):
        return
    for place, head in enumerate(heads):
        if re.search(r"\b(?:defaults?|value|wert|standard|vorgabe|valeur|valor)\b", head, re.IGNORECASE) and place:
            written = cells[place].strip().strip("`*")
            names = [name for name in names_in(Said(text="|".join(cells[:place]), at=0)) if name.end > len("|".join(cells[: place - 1]))]
            if len(names) == 1 and (value := literal(written)) is not UNKNOWN:
                start = said.text.find(names[0].text)
                yield Stated(Name(names[0].text, start, start + len(names[0].text)), value, written, default=True)


_SIGNATURE: Final = re.compile(r"(?:async )?(?:def )?(?P<name>[A-Za-z_][\w.]*)\((?P<all>(?:self|cls)\s*,.*)\)(?:\s*->.*)?:?")


def _of_signatures(said: Said) -> Iterator[tuple[Stated, str]]:
    """The defaults in signatures, which unlike calls begin with `self`, each with the name of the function."""
    for code, at in code_in(said):
        if (match := _SIGNATURE.fullmatch(code)) is None:
            continue
        try:
            args = tree_of(f"def _({match['all']}): ...").body[0].args  # type: ignore[attr-defined]  # a function
        except (SyntaxError, ValueError, RecursionError):
            continue
        plain = [*args.posonlyargs, *args.args]
        pairs = [
            *zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]
        for arg, default in pairs:
            if default is not None and (value := folded(default)) is not UNKNOWN:
                yield Stated(Name(arg.arg, at, at + len(code)), value, ast.unparse(default), default=True), match["name"]


def _parameters(subject: Subject, said: Said, stated: Stated, function: str) -> list[Binding]:
    """The defaults of the parameter in the function, or in those of that name that the sentence can mean."""
    holder, _, last = function.rpartition(".")
    owners = {holder.rpartition(".")[2]} if holder else {name.text.rpartition(".")[2] for name in names_in(said)}
    found = [
        one
        for path in subject.files.having(stated.name.text)[: 10 * _MOST]
        for one in subject.symbols.bound(path).get(stated.name.text, ())
        if one.parameter and one.owners and one.owners[-1] == last
    ]
    within = [one for one in found if owners & set(one.owners[:-1])]
    return within if within or holder else found


def _name(match: re.Match[str]) -> Name:
    return Name(match["name"], match.start("name"), match.end("name"))


def _before(text: str, at: int) -> str:
    return re.split(r"[;:—|]|\.\s|, (?=\w+ \w+)", covered(text[:at]))[-1]


def _of_default(text: str, start: int, end: int) -> bool:
    before, after = _before(text, start), covered(text[end : end + 30])
    return (
        _DEFAULT.search(before) is not None
        or re.match(r"\W{0,3}(?:by default|standardmäßig|par défaut|por defecto)", after) is not None
        or re.search(r"\b(?:has|hat|have)\W{0,3}$", before) is not None
    )


def _bindings(subject: Subject, said: Said, stated: Stated) -> list[Binding]:
    """What the name is bound to in what the sentence speaks of: a class or function, else a file, else anywhere."""
    holder, _, last = stated.name.text.rpartition(".")
    owners = {name.text.rpartition(".")[2] for text in (said.text, said.lead) for name in names_in(Said(text=text, at=0))}
    owners |= {holder.rpartition(".")[2]} if holder else set()
    having = subject.files.having(last)
    homes = {one.path for name in owners - {last} for one in subject.symbols.defined(name)}
    named = {path for text in (said.text, said.lead) for file in files_in(Said(text=text, at=0)) for path in subject.files.named(file.text)}
    for paths in ([path for path in having if path in homes or path in named], having if len(having) <= _MOST else ()):
        every = _at(subject, paths, stated)
        if within := [one for one in every if owners & set(one.owners)]:
            return within
        if every := [one for one in every if one.path in named] or (every if paths is having else []):
            return every
    return []


_MOST: Final = 8
"""Files that have a name for which all are looked through; one that is in more is too common to tell anything."""


def _at(subject: Subject, paths: Iterable[str], stated: Stated) -> list[Binding]:
    full, last = stated.name.text, stated.name.text.rpartition(".")[2]
    tables = [subject.symbols.bound(path) for path in paths]
    every = [one for table in tables for one in table.get(full, ())] or [one for table in tables for one in table.get(last, ())]
    return [one for one in every if one.parameter] or every if stated.default else every


def _same(stated: Stated, value: object) -> bool:
    if isinstance(stated.value, bool) or isinstance(value, bool) or stated.value is None or value is None:
        return stated.value is value
    if isinstance(stated.value, int | float) and isinstance(value, int | float):
        ratios = _RATIOS if stated.unit else (1,)
        return any(
            abs(stated.value * ratio - value) <= 1e-9 * abs(value) or abs(stated.value - value * ratio) <= 1e-9 * abs(value)
            for ratio in ratios
        )
    return str(stated.value) == str(value) or stated.value == value
