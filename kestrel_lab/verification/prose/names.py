"""The files and names that a sentence names, with the place where each is written."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kestrel_lab.core.citations import PATH
from kestrel_lab.verification.claims import Said

_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ANY_CODE: Final = re.compile(r"``[^\n]+?``|`[^`\n]+`")
_URL: Final = re.compile(r"https?://\S+")
_BARE_PATH: Final = re.compile(rf"(?<![\w`/.@:#~+-])(?:{PATH})(?![\w/])")
_ENDINGS_TEXT: Final = "py pyi pyx md rst txt json jsonl csv tsv yaml yml toml cfg ini html htm css js ts tsx jsx mjs ipynb sh bash zsh sql xml log parquet db c h cc cpp hpp rs go java kt rb php lua lock conf env in typed svg png jpg pdf xlsx"
_ENDINGS: Final = frozenset(_ENDINGS_TEXT.split())
_PROSE: Final = frozenset({"node.js", "vue.js", "next.js", "d3.js", "three.js", "express.js", "react.js", "asp.net", "e.g", "i.e"})
_DOTTED: Final = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?P<call>\((?P<args>.*)\))?$", re.DOTALL)
_ENTRY: Final = re.compile(r"^([a-z_]\w*(?:\.\w+)+):([A-Za-z_]\w*)$")
"""An entry point, as `package.module:function`."""
_KEYWORD: Final = re.compile(r"(?P<name>[a-z_]\w*)=[^=].*$", re.DOTALL)
_PARAMETER: Final = re.compile(r"\b(?:parameter|argument|option|keyword|kwarg)s?\b", re.IGNORECASE)
_IN_PROSE: Final = re.compile(
    r"(?<![\w`./:@#'-])(?:(?P<call>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\(\)|(?P<snake>_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)|(?P<camel>[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+))(?![\w/(`-])(?!\.\w)"
)
_KIND: Final = re.compile(
    r"\b(?:function|method|class|attribute|property|module|helper|constant|parameter|argument|keyword|option|exception|subclass|decorator|fixture|"
    r"variable|field|hook|context manager|coroutine|generator|dataclass|enum)s?\W*$",
    re.IGNORECASE,
)
_KIND_AFTER: Final = re.compile(
    r"^\W*(?:function|method|class|attribute|property|module|helper|constant|parameter|argument|keyword|option|exception|decorator|fixture|variable|field|hook|"
    r"context manager|coroutine|generator|dataclass|enum)\b",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(r"\"(?:symbol|function|class|method)\"\s*:\s*\"(?P<name>[A-Za-z_][\w.]*)\"")
_LITERALS: Final = frozenset(
    {"None", "True", "False", "self", "cls", "null", "true", "false", "nil", "NaN", "inf", "TODO", "main", "master", "HEAD"}
)


@dataclass(frozen=True, slots=True)
class Name:
    """A file or a name of code as a sentence has it."""

    text: str
    start: int
    end: int
    sure: bool = True
    """Whether it can only be meant as a name of code: a call, a dotted name, one with an underscore, or said to be a function."""
    call: bool = False


def files_in(said: Said) -> Iterator[Name]:
    """The files that a sentence names, in backticks or not."""
    if said.kind == "code":
        return
    text = _URL.sub(lambda match: " " * len(match[0]), said.text)
    for match in _BARE_PATH.finditer(re.sub(r"[`*\"'“”(){}\[\],;|<>=]", " ", text)):
        name = match[0]
        ending = name.rpartition(".")[2] if "." in name.rpartition("/")[2] else ""
        known = ending in _ENDINGS and name.lower() not in _PROSE
        if known or not ending or ("/" in name and ending):
            yield Name(name, match.start(), match.end())


def file_names(text: str) -> list[str]:
    """The files that a piece of prose names, each once, in order."""
    return list(dict.fromkeys(name.text for name in files_in(Said(text=text, at=0))))


@lru_cache(maxsize=512)
def names_in(said: Said) -> tuple[Name, ...]:
    """The names of code that a sentence names."""
    return tuple(_names_in(said))


def _names_in(said: Said) -> Iterator[Name]:
    if said.kind == "code":
        return
    text = _URL.sub(lambda match: " " * len(match[0]), said.text)
    for match in _CODE.finditer(text):
        inner = _ENTRY.sub(r"\1.\2", match[1].strip())
        found = _DOTTED.match(inner) or (
            _KEYWORD.match(inner) if _PARAMETER.search(f"{text[: match.start()][-30:]} {text[match.end() :][:16]}") else None
        )
        if found is None or _is_file(inner) or found["name"] in _LITERALS or keyword.iskeyword(found["name"]):
            continue
        near = _KIND.search(text[: match.start()]) is not None or _KIND_AFTER.search(text[match.end() :]) is not None
        sure = (
            found.re is _KEYWORD or bool(found.groupdict().get("call")) or "_" in inner.strip("_") or "." in inner or near or _camel(inner)
        )
        yield Name(found["name"], match.start(1), match.start(1) + len(found["name"]), sure, bool(found.groupdict().get("call")))
    for match in _VALUE.finditer(text):
        yield Name(match["name"], match.start("name"), match.end("name"), sure=True)
    covered = _ANY_CODE.sub(lambda match: " " * len(match[0]), text)
    for match in _IN_PROSE.finditer(covered):
        name = match["call"] or match["snake"] or match["camel"]
        if not _is_file(covered[match.start() :].split()[0].strip(".,;:)")) and name not in _LITERALS:
            near = _KIND.search(covered[: match.start()]) is not None or _KIND_AFTER.search(covered[match.end() :]) is not None
            quoted = covered[max(0, match.start() - 1) : match.start()] == '"'
            yield Name(
                name,
                match.start(),
                match.start() + len(name),
                sure=near or bool(match["call"]) or (bool(match["snake"]) and not quoted),
                call=bool(match["call"]),
            )


def code_in(said: Said) -> Iterator[tuple[str, int]]:
    """What stands in backticks, and where."""
    for match in _CODE.finditer(said.text):
        yield match[1].strip(), match.start(1)


def _camel(name: str) -> bool:
    return re.fullmatch(r"_*[A-Z](?=\w*[a-z])[A-Za-z0-9]*[A-Z][A-Za-z0-9]*", name) is not None


def _is_file(text: str) -> bool:
    return re.fullmatch(PATH, text) is not None and text.rpartition(".")[2].lower() in _ENDINGS
