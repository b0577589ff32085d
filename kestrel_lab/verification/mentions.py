"""The files, pieces of code and identifiers that a sentence mentions, each with its place in the sentence."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.citations import PATH
from kestrel_lab.verification.claims import Said

_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_URL: Final = re.compile(r"https?://\S+")
_BARE_PATH: Final = re.compile(rf"(?<![\w`/.@:#~+-])(?:{PATH})(?![\w/])")
_MARKS: Final = re.compile(r"[`*\"'“”(){}\[\],;|<>=]")
_FOLDER: Final = re.compile(r"(?<![\w./@:#~+<-])(?:\./)?[\w.-]+(?:/[\w.-]+)+/?(?=`)")
_ENDINGS_TEXT: Final = "py pyi pyx md rst txt json jsonl csv tsv yaml yml toml cfg ini html htm css js ts tsx jsx mjs ipynb sh bash zsh sql xml log parquet db c h cc cpp hpp rs go java kt rb php lua lock conf env in typed svg png jpg pdf xlsx"
_ENDINGS: Final = frozenset(_ENDINGS_TEXT.split())
_WORD: Final = re.compile(r"[^\W\d]\w*")
_PLAIN: Final = r"(?<![\w`./])(?:[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)"
_NAME: Final = re.compile(rf"{_PLAIN}(?![\w/`-])")
_BEFORE: Final = re.compile(rf"`(?P<quoted>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:\([^`\n]*\))?`|{_PLAIN}(?:\(\))?(?![\w/`.-])")
_NEAR: Final = 80
"""Characters before a citation in which the name stands that it is about."""
_BREAK: Final = re.compile(r"[;:]|`[^`\s]*[^`\w./][^`]*`|\b(?:and|but|which|when|calls?|uses?|by|with|via|from)\b")
"""What parts a citation from the name before it."""
_USUAL: Final = frozenset(
    {"self", "cls", "args", "kwargs", "str", "int", "bool", "dict", "list", "tuple", "set", "object", "None", "True", "False"}
)
"""Names that stand anywhere."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A file or folder as a sentence names it."""

    text: str
    start: int
    end: int


def files_in(said: Said) -> Iterator[Mention]:
    """Yield the files that a sentence names, in backticks or not; addresses and blocks of code name none."""
    if said.kind == "code":
        return
    text = _MARKS.sub(" ", _URL.sub(lambda match: " " * len(match[0]), said.text))
    for match in _BARE_PATH.finditer(text):
        name = match[0]
        ending = name.rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
        if not ending or ending in _ENDINGS or "/" in name:
            yield Mention(name, match.start(), match.end())


def folders_in(said: Said) -> Iterator[Mention]:
    """Yield what stands in backticks and reads as a path without an ending, such as `src/app`."""
    for code, at in code_in(said):
        if _FOLDER.fullmatch(f"{code}`", 0, len(code) + 1) is None and _FOLDER.match(f"{code}`") is not None:
            path = code.rstrip("/")
            if "." not in path.rpartition("/")[2]:
                yield Mention(path, at, at + len(code))


def file_names(text: str) -> list[str]:
    """Return the files that a piece of prose names, each once, in order."""
    return list(dict.fromkeys(name.text for name in files_in(Said(text=text, at=0))))


def code_in(said: Said) -> Iterator[tuple[str, int]]:
    """Yield what stands in backticks, and where."""
    for match in _CODE.finditer(said.text):
        yield match[1].strip(), match.start(1)


def names_in(text: str, shown: str = "") -> list[str]:
    """Return the names of code that a sentence has, in backticks or written as none but names are, and those of the code that it `shown`."""
    plain = _URL.sub(" ", text)
    code = [*_CODE.findall(plain), shown]
    found = [name for one in code if not _is_place(one) for name in _WORD.findall(one)]
    found += _NAME.findall(_CODE.sub(" ", _BARE_PATH.sub(" ", plain)))
    return [name for name in dict.fromkeys(found) if len(name) > 2 and not keyword.iskeyword(name) and name not in _USUAL]


def _is_place(code: str) -> bool:
    found = _BARE_PATH.match(code)
    return found is not None and ("/" in found[0] or found[0].rpartition(".")[2].lower() in _ENDINGS)


def name_before(text: str, at: int) -> str:
    """Return the name of code that stands last before a place of a sentence, such as `Flask.run`; empty where there is none near."""
    found = [match for match in _BEFORE.finditer(text, max(0, at - _NEAR), at) if not keyword.iskeyword(match[0].strip("`"))]
    if not found or _BREAK.search(text[found[-1].end() : at]):
        return ""
    return (found[-1]["quoted"] or found[-1][0].removesuffix("()")).removeprefix("self.")
