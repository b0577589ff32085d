"""Questions taken apart: weighted search terms without what issue templates add, and explicit mentions of
paths, modules and symbols.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kestrel_lab.language.code_tokens import COMMON, search_terms
from kestrel_lab.language.grammars import LANGUAGES

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_URL = re.compile(r"https?://\S+")
_FENCE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_GENERIC = frozenset(
    """
a actual additional and any are as attempted behavior behaviour behind bug can checklist code complete \
context current describe
description detailed details environment error example examples expected feature following for fix full help \
here how i implementation in
info information is issue it like list log logs message minimal more of option options os other output \
please possible problem project
proposed python question related relevant report reproduce reproducible request result results run sample \
screenshot screenshots setup
snippet solution solutions solve steps system summary that the this to tools traceback unexpected useful \
version versions what why with
working you your alternatives considered d we e g link media
""".split()
)
"""Words of the headings that forms of issues print."""
_MARKED = re.compile(r"^\s*(?:#{1,6}\s+(.*?)#*|\*\*(.+?)\*\*:?|__(.+?)__:?|([A-Z][\w /'-]{2,40}):?)\s*$")
_PLACE = re.compile(
    r"^\s*(?:[-*]\s*(?:\[.\]\s*)?)?(?:\*\*)?(?:OS|Operating [Ss]ystem|Python(?: "
    r"version)?|Browser|Extra tools|Versions?|Platform|[A-Za-z]+ version"
    r"|Sphinx(?: version| "
    r"extensions)?)\s*(?:\*\*)?\s*[:=].{0,120}$|^\s*[\w.\[\]-]+(?:\s*==\s*|\s{1,40})v?\d+(?:\.\w+)+(?:[-+.]\w+)*(?:\s+\S+)?\s*$"
)
_NAMED_IN_CODE = 0.7
_NAMED_IN_HEAD = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question taken apart."""

    text: str
    """As it was asked."""
    head: str
    """Its first line that is not empty."""
    telling: str
    """Without comments, addresses, headings of forms and lists of versions."""
    weights: Mapping[str, float]
    """Words as the index stores them, each with its weight."""


def parse_question(text: str) -> Question:
    """Take a question apart; all words of a short one weigh the same."""
    bare = _URL.sub(" ", _COMMENT.sub(" ", text.replace("\r\n", "\n")))
    telling = (
        "\n".join(line for line in bare.split("\n") if not _PLACE.match(line) and not _is_generic(line))
        or bare
    )
    if not telling.strip():
        telling = text
    head = next((line.strip() for line in telling.split("\n") if line.strip()), "")
    prose = _FENCE.sub("\n", telling)
    code = "\n".join(match[0] for match in _FENCE.finditer(telling))
    weights: dict[str, float] = {}
    # The head is a part of the prose, which counts it once.
    for piece, amount in ((head, _NAMED_IN_HEAD - 1), (prose, 1.0), (code, _NAMED_IN_CODE)):
        for word, many in (search_terms(piece) if piece.strip() else {}).items():
            weights[word] = weights.get(word, 0.0) + many * amount
    return Question(text=text, head=head, telling=telling, weights=weights)


def _is_generic(line: str) -> bool:
    found = _MARKED.match(line)
    if found is None:
        return False
    words = re.findall(r"[a-z]+", next(group for group in found.groups() if group is not None).lower())
    return all(word in _GENERIC for word in words)


KINDS = ("path", "frame", "module", "dotted", "identifier")
_SUFFIX = "|".join(
    sorted(
        (
            re.escape(each)
            for each in {*LANGUAGES, "toml", "cfg", "ini", "yaml", "yml", "json", "html", "css", "sh"}
        ),
        key=len,
        reverse=True,
    )
)
_PATH = re.compile(rf"(?<![\w@])((?:[\w.+~-]+[/\\]|[A-Za-z]:\\|/)*[\w.+-]*\w\.(?:{_SUFFIX}))(?![\w/\\]|\.\w)")
_FRAME = re.compile(r'File "([^"\n]+)", line \d+|^([\w./\\-]+\.\w+):\d+:', re.MULTILINE)
_DOTTED = re.compile(r"(?<![\w./\\])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CODE = re.compile(r"```.*?```|``[^`\n]+``|`[^`\n]+`", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w+")
_TELLING = re.compile(r"[a-z0-9]_[a-z0-9]|_[a-z]|[a-z][A-Z]|[A-Z]{2}[a-z]|\d", re.IGNORECASE)
_MOST_FILES = 25
"""A name that more files define is ignored."""

Definitions = Callable[[Collection[str]], Mapping[str, Mapping[int, Collection[str]]]]
"""From names in lower case to the files that define them, each with the full names of what it defines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mentions:
    """The strength of each file's mentions by kind, and the words of the mentions."""

    scores: Mapping[str, Mapping[int, float]]
    because: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class _Places:
    """Files by the ends of their paths and by module names."""

    def __init__(self, files: Mapping[int, str]) -> None:
        self._by_base: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._modules: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for number, path in files.items():
            self._by_base[path.rsplit("/", 1)[-1].lower()].append(("/" + path.lower(), number))
            if path.endswith((".py", ".pyi")):
                module = path.rsplit(".", 1)[0].removesuffix("/__init__").replace("/", ".")
                self._modules[module.rsplit(".", 1)[-1]].append(("." + module, number))

    def paths(self, written: str) -> list[int]:
        """Return files whose path ends like `written`; its front may be from another machine."""
        pieces = [
            piece for piece in written.lower().replace("\\", "/").split("/") if piece not in ("", ".", "..")
        ]
        known = self._by_base.get(pieces[-1], []) if pieces else []
        for start in range(len(pieces)):
            ending = "/" + "/".join(pieces[start:])
            if found := [number for path, number in known if path.endswith(ending)]:
                return found
        return []

    def modules(self, written: str) -> tuple[list[int], str]:
        """Return the files of the longest module that a dotted name begins with, and the rest of the name."""
        pieces = written.split(".")
        for end in range(len(pieces), 0, -1):
            ending = "." + ".".join(pieces[:end])
            found = [
                number for module, number in self._modules.get(pieces[end - 1], []) if module.endswith(ending)
            ]
            # One word alone names no module: it may be any word.
            if found and (end > 1 or end < len(pieces)):
                return found, ".".join(pieces[end:])
        return [], written


def find_mentions(query: str, telling: str, files: Mapping[int, str], definitions: Definitions) -> Mentions:
    """Find mentions of these files (paths by number) in `query`; symbols only in its `telling` part."""
    places = _Places(files)
    scores: dict[str, dict[int, float]] = {kind: defaultdict(float) for kind in KINDS}
    because: dict[int, dict[str, None]] = defaultdict(dict)

    def credit(kind: str, numbers: Iterable[int], amount: float, word: str) -> None:
        for number in numbers:
            scores[kind][number] += amount
            because[number][word] = None

    frames = [match[1] or match[2] for match in _FRAME.finditer(query)]
    for place, path in enumerate(frames, 1):
        found = places.paths(path)
        credit(
            "frame",
            found,
            # The last frame of a Python traceback is the nearest to the error.
            1 / max(1, len(found)) * (0.5 + 0.5 * place / len(frames)),
            f"{path.rsplit('/', 1)[-1]} in a traceback",
        )
    rest = _FRAME.sub(" ", query)
    for path in dict.fromkeys(match[1] for match in _PATH.finditer(rest)):
        found = places.paths(path)
        if len(found) <= _MOST_FILES:
            credit("path", found, 1 / max(1, len(found)), path)
    prose = _FRAME.sub(" ", telling)
    dotted = list(dict.fromkeys(_DOTTED.findall(prose)))
    plain = _identifiers(prose)
    lasts = {piece.lower() for name in dotted for piece in name.split(".")[-2:]}
    known = definitions({*lasts, *(name.lower() for name in plain)})
    for name in dotted:
        numbers, left = places.modules(name)
        credit("module", numbers, 1 / max(1, len(numbers)), name)
        if left:
            credit("dotted", *_defining_files(name, known), name)
    for name, strength in plain.items():
        found = [number for number, full in known.get(name.lower(), {}).items() if _same_case(name, full)]
        if 0 < len(found) <= _MOST_FILES:
            credit("identifier", found, strength / len(found), name)
    return Mentions(scores=scores, because={number: tuple(words) for number, words in because.items()})


def _defining_files(name: str, known: Mapping[str, Mapping[int, Collection[str]]]) -> tuple[list[int], float]:
    """Return the files that define a dotted name in full, else its last part, and the weight of each."""
    pieces = name.split(".")
    last = known.get(pieces[-1].lower(), {})
    ending = ".".join(pieces[-2:])
    whole = [
        number
        for number, full in last.items()
        if any(each == ending or each.endswith("." + ending) for each in full)
    ]
    if whole:
        return whole, 1 / len(whole)
    found = [number for number, full in last.items() if _same_case(pieces[-1], full)]
    # Perhaps an attribute of a class that is known.
    if not 0 < len(found) <= _MOST_FILES:
        found = [
            number
            for number, full in known.get(pieces[-2].lower(), {}).items()
            if _same_case(pieces[-2], full)
        ]
    return (found, 0.7 / len(found)) if 0 < len(found) <= _MOST_FILES else ([], 0.0)


def _same_case(name: str, full: Collection[str]) -> bool:
    return any(each.rsplit(".", 1)[-1] == name for each in full)


def _identifiers(text: str) -> dict[str, float]:
    """Return names marked as code or unmistakable, with their certainty."""
    found: dict[str, float] = {}
    for match in _CODE.finditer(text):
        block = match[0].startswith("```")
        for name in _NAME.findall(match[0]):
            if name.lower() not in COMMON:
                found[name] = max(found.get(name, 0), 0.5 if block and not _TELLING.search(name) else 1.0)
    for name in _NAME.findall(text):
        if _TELLING.search(name) and not name.isupper():
            found[name] = max(found.get(name, 0), 1.0)
    return found


def named_code(text: str) -> tuple[str, ...]:
    """Return the names of code in a text, dotted ones first; for a single word that word."""
    words = text.split()
    found = dict.fromkeys([*_DOTTED.findall(text), *_identifiers(text)])
    return tuple(found) or (tuple(words) if len(words) == 1 and _NAME.fullmatch(words[0]) else ())


def mentioned_paths(text: str, files: Collection[str]) -> set[str]:
    """Return the files that a text names by an unambiguous path."""
    named = [match[1] or match[2] for match in _FRAME.finditer(text)] + [
        match[1] for match in _PATH.finditer(_FRAME.sub(" ", text))
    ]
    ends = tuple({re.split(r"[/\\]", path.lower())[-1] for path in named})
    listed = [path for path in files if path.lower().endswith(ends)] if ends else []
    places = _Places(dict(enumerate(listed)))
    return {listed[found[0]] for path in named if len(found := places.paths(path)) == 1}
