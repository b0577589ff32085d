"""Splits an answer into claims (sentences, items, table rows, code blocks) and finds the files and names in
them.

The rules are our own: in Markdown answers dots occur in paths, names and calls, which prose libraries take
for sentence ends. Text in backticks and addresses is masked before sentences are split.
"""

from __future__ import annotations

import io
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

from kestrel_lab.core.citations import PATH

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

Kind = Literal["sentence", "row", "code", "quote", "heading", "item", "paragraph"]
"""Items and paragraphs are given sentence by sentence."""

_TASK: Final = re.compile(r"\[[ xX]\]\s+")
_BULLET: Final = re.compile(r"^([ \t]*)•(?=[ \t])", re.MULTILINE)
_COVERED: Final = re.compile(
    r"`[^`\n]*`|https?://\S+|\[[^\]\n]{1,80}\]|\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|\([^()\n]{1,200}\)"
)
_END: Final = re.compile(r"[.!?…](?:[\"”')\]*_]+)?\s+(?=\S)|[。！？](?:[”」』）\]]+)?\s*(?=\S)")
_CITES: Final = re.compile(r"(?:\[[^\]\n]{1,80}\](?!\()[.,;]?\s*)+(?=\Z|[^a-z\s])")
"""Citations after a full stop: they belong to the sentence before it, unless the next sentence begins with
them.
"""
_CODE_NAME: Final = re.compile(r"\w*[a-z\d]_\w|\w+(?:\.\w+)*\(")
_LABEL: Final = re.compile(
    r"[*_]{0,3}[^\W\d_]+(?:[ '’-][^\W\d_]+){0,2}[ '’-]?(?:[*_]{0,3}:[*_]{0,3}|(?<=\w)[*_]{2,3})"
)
_POLITE: Final = re.compile(
    r"(?:(?:all )?(?:done|finished)|ok(?:ay)?|sure(?: thing)?|certainly|of course|thanks|thank "
    r"you|you(?:'|’)re welcome|"
    r"(?:i )?hope (?:this|that|it) helps|let me know if .{0,80}|(?:i(?:'|’)m )?happy to help)[.!,]*",
    re.IGNORECASE,
)
"""Courtesies, and reports that the work is done: there can be no evidence for them."""
MOST_CHARS: Final = 1_000
"""Most characters of one claim. Longer text is split, because the time to check a claim grows with the square
of its length.
"""
_SHORT: Final = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|approx|no|nos|fig|sec|ch|vol|pp|p|ca|mr|mrs|ms|dr|prof|st|resp|incl|excl|max|min|esp)|(?:^|[\s(])(?-i:[A-HJ-Z]))\.$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One claim of an answer."""

    text: str
    at: int
    """Offset in the answer, in characters."""
    kind: Kind = "sentence"
    lead: str = ""
    """Introduction: the line before a list or block, or the heading."""
    language: str = ""
    """Language of a code block, by its fence."""
    header: str = ""
    """Of a row, the first of its table."""
    shown: str = ""
    """The block of code that it introduces."""


def claims_of(answer: str) -> tuple[Statement, ...]:
    """Return the claims of `answer` in order; headings, list labels and courtesies are none."""
    every = [*answer_pieces(answer)]
    for place, said in enumerate(every[1:]):
        # `every[place]` is the piece before `said`.
        if said.kind == "code" and every[place].kind != "code":
            every[place] = replace(every[place], shown=said.text)
    idle = [
        said.kind == "sentence" and bool(_LABEL.fullmatch(said.text) or _POLITE.fullmatch(said.text))
        for said in every
    ]
    return tuple(
        said
        for said, no in zip(every, idle, strict=True)
        if said.kind != "heading" and any(map(str.isalnum, said.text)) and not no
    )


VERBS: Final[dict[str, str]] = {
    "write": "wrote|written|created|added|saved|generated|inserted|appended",
    "edit": "edited|changed|updated|modified|fixed|refactored|renamed|replaced|implemented|patched",
    "delete": "deleted|removed",
    "run": "ran|run|executed|tested",
    "send": "sent|emailed|mailed|posted|published|submitted|transferred|paid"
    "|booked|scheduled|deployed|pushed",
}
"""Past tenses of English that claim an action, by its kind."""
ANY_VERB: Final = "|".join(VERBS.values())
_SPEAKS: Final = re.compile(
    rf"\b(?:{ANY_VERB}|pass|passed|fail|failed|failures?|errors?|skipped|warnings?|exit|exited"
    r"|print(?:s|ed)|outputs?|returned|succe(?:eds?|eded|ss\w*))\b",
    re.IGNORECASE,
)


def mentions_actions(answer: str) -> bool:
    """Return true if an answer has a word that the action checks read; if not, the log need not be read."""
    return _SPEAKS.search(answer) is not None


_PLAIN_PROSE: Final = re.compile(r"(?:[^\W_]|[,;:!?'’()-]|\.(?=\s|\Z)|(?<! ) |\n(?! ))*")
"""Words and the marks of sentences. What a check looks for needs another mark: backticks, quotation marks,
brackets, slashes, a dot inside of a word, and indentation or `>` and `|` for blocks.
"""
_ANY_PATH: Final = re.compile(PATH)


def is_plain_prose(answer: str) -> bool:
    """Return whether an answer is short prose that names no file, quote, code, address or citation.

    False proves nothing. True means that no check of files, citations or quotes finds anything in it.
    """
    # An answer no longer than one claim may be cannot have more claims than are checked. `PATH` is searched
    # without what `files_in` asks of its surroundings, which can only find more: `LICENSE` is a file, too.
    return (
        len(answer) <= MOST_CHARS
        and _PLAIN_PROSE.fullmatch(answer) is not None
        and _ANY_PATH.search(answer) is None
    )


def answer_pieces(answer: str) -> Iterator[Statement]:
    """`answer` in pieces, headings too."""
    lead = heading = shown = ""
    for block in _blocks(answer):
        if block.kind == "heading":
            heading = lead = block.text
            yield block
        elif block.kind in ("item", "paragraph"):
            before = (
                (lead or heading) if block.kind == "item" else shown if block.text[:1].islower() else heading
            )
            found = [*_sentences(block.text, block.at, before)]
            shown = ""
            lead = found[-1].text if found and block.kind == "paragraph" else lead
            yield from found
        elif block.kind == "code":
            yield replace(block, lead=lead or heading)
            # A paragraph that continues the sentence after the block has the same introduction.
            shown = lead
        else:
            yield from _split_long(replace(block, lead=lead or heading))


def _split_long(said: Statement) -> Iterator[Statement]:
    """Split an overlong claim, between words if possible."""
    start = 0
    while len(said.text) - start > MOST_CHARS:
        end = max(
            said.text.rfind(" ", start + MOST_CHARS // 2, start + MOST_CHARS),
            said.text.rfind("\n", start, start + MOST_CHARS),
        )
        end = end if end > start else start + MOST_CHARS
        yield replace(said, text=said.text[start:end], at=said.at + start)
        start = end
    yield replace(said, text=said.text[start:], at=said.at + start) if start else said


@cache
def _markdown() -> MarkdownIt:
    """Return a parser for blocks only; text that other rules would drop or hide stays a paragraph."""
    # Loaded on use: most imports of this module check no answer.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table").disable(["html_block", "reference", "lheading"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _blocks(answer: str) -> Iterator[Statement]:  # one case per kind of block  # noqa: C901
    """Yield the blocks of Markdown: headings, rows, quotes, code, items and paragraphs."""
    # The usual short answer is one paragraph, and needs no parser.
    if answer[:1].isalpha() and "\n" not in answer and "\r" not in answer:
        yield Statement(text=answer, at=0, kind="paragraph")
        return
    lines = [*io.StringIO(answer, newline="")]
    starts = [0, *accumulate(map(len, lines))]
    holders: list[str] = []
    header, session = "", 0
    for token in _markdown().parse(_BULLET.sub(r"\1-", answer)):
        first, last = token.map or (0, 0)
        if token.nesting == -1:
            holders.pop()
        elif token.nesting == 1:
            holders.append(token.type)
            if token.type == "tr_open" and "thead_open" in holders:
                header = lines[first].strip()
            elif token.type == "tr_open":
                yield Statement(text=lines[first].strip(), at=starts[first], kind="row", header=header)
            elif (
                token.type == "blockquote_open"
                and first >= session
                and lines[first].lstrip().startswith(">>> ")
            ):
                session = last
                yield Statement(
                    text="".join(lines[first:last]), at=starts[first], kind="code", language="pycon"
                )
        elif token.type in ("fence", "code_block"):
            words = token.info.split()
            begin = first + (token.type == "fence")
            text = "".join(lines[begin : begin + token.content.count("\n")])
            yield Statement(
                text=text,
                at=starts[begin],
                kind="code",
                language=words[0].strip("{}.").lower() if words else "",
            )
        elif token.type == "inline" and "tr_open" not in holders and first >= session:
            skipped = max(0, lines[first].find(token.content.partition("\n")[0]))
            text, at = "".join(lines[first:last])[skipped:], starts[first] + skipped
            if holders[-1] == "heading_open":
                yield Statement(text=token.content, at=at, kind="heading")
            elif "blockquote_open" in holders:
                yield Statement(text=" ".join(token.content.split()), at=at, kind="quote")
            elif "list_item_open" in holders:
                task = _TASK.match(text)
                yield Statement(
                    text=text[task.end() if task else 0 :], at=at + (task.end() if task else 0), kind="item"
                )
            else:
                yield Statement(text=text, at=at, kind="paragraph")


def _sentences(text: str, at: int, lead: str) -> Iterator[Statement]:
    # Masked by as many characters, so that offsets hold in the text.
    covered = _COVERED.sub(lambda match: "\x00" * len(match[0]), text)
    start = 0
    for match in [*_END.finditer(covered), None]:
        end = len(text) if match is None else match.end()
        if match is not None and (end <= start or not _is_sentence_end(covered, match, start)):
            continue
        if cites := _CITES.match(text, end):
            end = cites.end()
        piece = text[start:end]
        if piece.strip():
            before = len(piece) - len(piece.lstrip())
            yield from _split_long(Statement(text=piece.strip(), at=at + start + before, lead=lead))
        start = end


def _is_sentence_end(covered: str, match: re.Match[str], start: int) -> bool:
    """Return true if a sentence ends here: no lower-case letter follows."""
    if match[0][0] in "。！？":
        return True
    follows = covered[match.end()]
    begins = follows in "\"“'`([*_\x00" or follows.isdigit() or (follows.isalpha() and not follows.islower())
    return (begins or _CODE_NAME.match(covered, match.end()) is not None) and not _SHORT.search(
        covered[max(start, match.start() - 20) : match.start() + 1]
    )


_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_URL: Final = re.compile(r"https?://\S+")
_BARE_PATH: Final = re.compile(rf"(?<![\w`/.@:#~+-])(?:{PATH})(?![\w/])")
_MARKS: Final = re.compile(r"[`*\"'“”(){}\[\],;|<>=]")
_FOLDER: Final = re.compile(r"(?:\./)?[\w.-]+(?:/[\w.-]+)+/?")
_ENDINGS: Final = frozenset(
    (
        "py pyi pyx md rst txt json jsonl csv tsv yaml yml toml cfg ini html htm css js ts tsx jsx mjs "
        "ipynb sh bash zsh sql xml log parquet db c h cc cpp hpp rs go java kt rb php lua lock conf env in "
        "typed svg png jpg pdf xlsx"
    ).split()
)
_WORD: Final = re.compile(r"[^\W\d]\w*")
_PLAIN: Final = r"(?<![\w`./])(?:[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|_*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)"
_NAME: Final = re.compile(rf"{_PLAIN}(?![\w/`-])")
_BEFORE: Final = re.compile(
    rf"`(?P<quoted>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:\([^`\n]*\))?`|{_PLAIN}(?:\(\))?(?![\w/`.-])"
)
_NEAR: Final = 80
"""Most characters between a citation and the name it is about."""
_BREAK: Final = re.compile(
    r"[;:]|`[^`\s]*[^`\w./][^`]*`|\b(?:and|but|which|when|calls?|uses?|by|with|via|from)\b"
)
"""Separates a citation from the name before it."""
_USUAL: Final = frozenset(
    {
        "self",
        "cls",
        "args",
        "kwargs",
        "str",
        "int",
        "bool",
        "dict",
        "list",
        "tuple",
        "set",
        "object",
        "None",
        "True",
        "False",
    }
)
"""Common names that prove nothing."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A file or folder as a sentence names it."""

    text: str
    start: int
    end: int


def files_in(said: Statement) -> Iterator[Mention]:
    """Yield the files that a sentence names, in backticks or not; addresses and blocks of code name none."""
    if said.kind == "code":
        return
    # Blanks of the same length, so that offsets hold in the sentence.
    text = _MARKS.sub(" ", _URL.sub(lambda match: " " * len(match[0]), said.text))
    for match in _BARE_PATH.finditer(text):
        name = match[0]
        ending = name.rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""
        if not ending or ending in _ENDINGS or "/" in name:
            yield Mention(name, match.start(), match.end())


def folders_in(said: Statement) -> Iterator[Mention]:
    """Yield text in backticks that reads as a path without extension, such as `src/app`."""
    for code, at in code_in(said):
        if _FOLDER.fullmatch(code) and "." not in code.rstrip("/").rpartition("/")[2]:
            yield Mention(code.rstrip("/"), at, at + len(code))


def file_names(text: str) -> list[str]:
    """Return the files that a piece of prose names, each once, in order."""
    return list(dict.fromkeys(name.text for name in files_in(Statement(text=text, at=0))))


def code_in(said: Statement) -> Iterator[tuple[str, int]]:
    """Yield text in backticks, with its offset."""
    for match in _CODE.finditer(said.text):
        yield match[1].strip(), match.start(1)


def names_in(text: str, shown: str = "") -> list[str]:
    """Return the names of code that a sentence has, in backticks or written as none but names are, and those
    of the code that it `shown`.
    """
    plain = _URL.sub(" ", text)
    code = [*_CODE.findall(plain), shown]
    found = [name for one in code if not _is_place(one) for name in _WORD.findall(one)]
    found += _NAME.findall(_CODE.sub(" ", _BARE_PATH.sub(" ", plain)))
    return [
        name
        for name in dict.fromkeys(found)
        if len(name) > 2 and not keyword.iskeyword(name) and name not in _USUAL
    ]


def _is_place(code: str) -> bool:
    found = _BARE_PATH.match(code)
    return found is not None and ("/" in found[0] or found[0].rpartition(".")[2].lower() in _ENDINGS)


def preceding_name(text: str, at: int) -> str:
    """Return the last code name before an offset in a sentence, such as `Flask.run`; empty if none."""
    found = [
        match
        for match in _BEFORE.finditer(text, max(0, at - _NEAR), at)
        if not keyword.iskeyword(match[0].strip("`"))
    ]
    if not found or _BREAK.search(text[found[-1].end() : at]):
        return ""
    return (found[-1]["quoted"] or found[-1][0].removesuffix("()")).removeprefix("self.")
