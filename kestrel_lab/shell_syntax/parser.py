"""Parser of bash command lines: finds every simple command, and whether a rule can judge the line.

Two parsers read each line. If they disagree, or the line has more than plain commands joined by `;`, `&`,
`&&`, `||`, `|` and newlines, the line is unclear and no rule allows it. Its commands are still found as far
as possible, so that deny rules apply.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from kestrel_lab.shell_syntax.program_options import Command
from kestrel_lab.shell_syntax.runnable_words import reads_texts_only, runnable_words
from kestrel_lab.shell_syntax.wrappers import UNKNOWN, assigned_by, commands_in, program_of

COMMAND = "command"
"""The argument that is a command line."""


if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_CHARS = 20_000
"""Of a line that is read; a longer one is not clear."""
_DEPTH = 8
_MOST_NESTED = 100
"""Brackets in brackets of a line that is read."""
_MOST_COMMANDS = 2_000

_PLAIN = frozenset(
    (
        "program list pipeline negated_command redirected_statement command command_name word number "
        "string string_content raw_string "
        "concatenation simple_expansion variable_name special_variable_name variable_assignment "
        "file_redirect file_descriptor"
    ).split()
)
"""Parts of a line that a rule can judge."""
_SIGNS = frozenset(
    {"&&", "||", "|", "|&", ";", "&", "\n", "!", '"', "$", "=", ">", ">>", "<", "&>", "&>>", ">&", "<&"}
)
_HARMLESS_REDIRECT = re.compile(r"\d*(?:>|>>|<|&>|&>>)[ \t]*/dev/null|\d*[<>]&\d+")
_HARMLESS_VARIABLE = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|CI|NO_COLOR|FORCE_COLOR|COLUMNS|LINES|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED"
)
CHANGES = frozenset(
    (
        "alias unalias shopt set enable hash export declare typeset local readonly unset eval source . "
        "exec trap read mapfile readarray "
        "getopts let builtin complete bind fc history"
    ).split()
)
"""Builtins that change what the other commands of a line do."""
_MOVES = frozenset({"cd", "pushd", "popd"})
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
"""The end of a line that bash does not see, in the middle of a word too."""
_OPERATOR = re.compile(r"[;&|\n]+")
_QUOTED_SEMICOLON = re.compile(r"""(?<=[ \t])(?:\\;|';'|";")(?=[ \t\n;&|]|$)""")
"""Terminator of `find -exec`: `shlex` cannot tell it from the end of a command."""
_STARTUP_VARIABLE = re.compile(
    r"BASH_ENV|ENV|LD_PRELOAD|LD_AUDIT|DYLD_INSERT_LIBRARIES|PYTHONSTARTUP|PROMPT_COMMAND|ZDOTDIR|PERL5OPT|RUBYOPT"
)
"""Variables that name a program, a library or options that a program loads when it starts."""
_NAMES_PROGRAM = re.compile(r"[/.$`~-]")
_TOKEN = re.compile(r"[\w.+-]+")
_SHELL_WORDS = re.compile(r"[\w./:,@%+^~\s-]*")
"""Words without quotes, brackets and signs: read as a shell program they are read whole."""
_MARK = "\0"
"""Placeholder for it; a line that contains this character is unclear."""


@dataclass(frozen=True, slots=True)
class Line:
    """Commands of a command line."""

    commands: tuple[Command, ...]
    """Every simple command, also in substitutions, functions and arguments of commands that run others."""
    unclear: str = ""
    """Why no rule may allow the line; empty if the commands are all that happens."""
    possible: tuple[Command, ...] = ()
    """Further commands that may run, because a program may run some of its words."""


@lru_cache(maxsize=64)
def read_line(text: str) -> Line:
    """Read a command line; never fails: what cannot be read is an unknown command."""
    reading = _Reading()
    reading.read(text, 0)
    return Line(tuple(reading.commands), reading.unclear, tuple(dict.fromkeys(reading.possible)))


@dataclass(slots=True)
class _Reading:
    commands: list[Command] = field(default_factory=list)
    unclear: str = ""
    possible: list[Command] = field(default_factory=list)

    def doubt(self, why: str) -> None:
        """Record why the line is unclear; the first reason is kept."""
        self.unclear = self.unclear or why

    def lose(self, why: str) -> None:
        """Record that an unknown command runs here."""
        self.doubt(why)
        self.commands.append(UNKNOWN)

    def read(self, text: str, depth: int) -> None:
        """Read what `text`, a whole program, runs."""
        if (
            len(text) > MAX_CHARS
            or depth > _DEPTH
            or len(self.commands) > _MOST_COMMANDS
            or _nesting(text) > _MOST_NESTED
        ):
            self.lose("it is too long or too deeply nested")
            return
        # Invisible characters can make a line look different to the person who approves it.
        if not all(sign.isprintable() or sign in "\n\t" for sign in text):
            self.doubt("it contains characters that cannot be seen")
        try:
            source = text.encode("utf-8")
        except UnicodeEncodeError:
            self.lose("it is not text")
            return
        if (joined := _CONTINUED.sub(r"\1", text)) != text:
            self.read(joined, depth + 1)
            # Otherwise the end of a line may be one that counts.
            if "'" not in text:
                return
            self.doubt("it goes on behind the end of a line, between quotes")
        root = bash_parser().parse(source).root_node
        if root.has_error:
            self.lose("it cannot be read as a shell program")
        _Tree(self, source, depth).take(root, text)

    def add(self, command: Command, depth: int) -> None:
        """A simple command, with the commands that it runs in turn."""
        waiting = [(command, 0)]
        while waiting and len(self.commands) <= _MOST_COMMANDS:
            one, inside = waiting.pop(0)
            if inside > _DEPTH:
                break
            self.commands.append(one)
            if one[0] is None:
                self.doubt("which command runs there is only known when it runs")
                continue
            name = program_of(one[0])
            if name in CHANGES or (
                name == "printf" and any(word is None or word.startswith("-v") for word in one)
            ):
                self.doubt(f"{name} changes what the other commands do")
            for variable, value in assigned_by(one):
                self.set_variable(variable, value, depth)
            inner, programs = commands_in(one)
            # Else its words are read already.
            if name in ("git", "scp", "sftp") or not (inner or programs):
                tails, texts = runnable_words(one)
                self.possible += tails
                for text in texts:
                    self.suspect(text, depth)
            waiting += [(found, inside + 1) for found in inner]
            for program in programs:
                self.read(program, depth + 1)
        if waiting or inside > _DEPTH:
            self.lose("it is too deeply nested")

    def set_variable(self, name: str, value: str | None, depth: int) -> None:
        """Record that a variable is set; any program may read it, and run what it holds."""
        # Settings of git may define an alias, which runs any program.
        if name.startswith("GIT_CONFIG"):
            self.commands.append(("git", None))
        if _HARMLESS_VARIABLE.fullmatch(name):
            return
        self.doubt(f"it sets {name}, which may change what runs")
        if _STARTUP_VARIABLE.fullmatch(name) and (value is None or _NAMES_PROGRAM.search(value)):
            self.possible.append(UNKNOWN)
        elif value:
            self.suspect(value, depth)

    def suspect(self, text: str, depth: int) -> None:
        """Take in the commands that `text` would run if a program ran it, and those that it names in a
        language that is not read here.
        """
        # An address is no program, though it has signs of one.
        if "://" in text and not re.search(r"\s", text):
            return
        words = _TOKEN.findall(text)
        if depth >= _DEPTH or len(self.possible) > _MOST_COMMANDS or len(words) > _MOST_COMMANDS:
            self.possible.append(UNKNOWN)
            return
        inner = _Reading()
        # Signs by which programs mark a text that they run, such as `!` in an alias of git.
        inner.read(text.strip().lstrip("|!:+@"), depth + 1)
        self.possible += [one for one in (*inner.commands, *inner.possible) if one != UNKNOWN]
        if not _SHELL_WORDS.fullmatch(text):
            self.possible += [(word, None) for word in words]


def _nesting(text: str) -> int:
    """Return the deepest nesting of brackets, quoted ones too: parse time grows with its square."""
    depth = deepest = 0
    for sign in text:
        if sign in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in ")]}" and depth:
            depth -= 1
    return deepest


class _Tree:
    """One parse of one program."""

    def __init__(self, reading: _Reading, source: bytes, depth: int) -> None:
        self._reading, self._source, self._depth = reading, source, depth
        self._plain: list[list[str]] = []
        self._redirects: list[tuple[int, int]] = []
        self._fed: list[str] = []
        """Texts that commands are given to read."""

    def take(self, root: Node, text: str) -> None:
        """Take in all commands of the tree, then see whether another parser finds the same ones."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            self._look(node)
            if len(self._reading.commands) > _MOST_COMMANDS:
                self._reading.lose("it has too many commands")
                return
            waiting += reversed(node.children)
        reading = self._reading
        if not reading.unclear and _commands_by_shlex(self._without_redirects()) != self._plain:
            reading.lose("programs do not agree on how it is to be read")
        if not all(map(reads_texts_only, reading.commands)):
            for fed in self._fed:
                reading.suspect(fed, self._depth)
        names = [program_of(one[0]) for one in reading.commands if one[0] is not None]
        if any(name in _MOVES for name in names) and any(
            "/" in (one[0] or "") and not (one[0] or "").startswith("/") for one in reading.commands
        ):
            reading.doubt("it changes the folder and runs a program by a relative path")

    def _look(self, node: Node) -> None:
        kind, reading = node.type, self._reading
        if (
            node.is_error
            or node.is_missing
            or (node.is_named and kind not in _PLAIN)
            or not (node.is_named or kind in _SIGNS)
        ):
            reading.doubt(_WHY.get(kind, f"{kind.replace('_', ' ')} cannot be judged"))
        if kind in ("command", "declaration_command", "unset_command"):
            self._command(node)
        elif kind == "variable_assignment":
            name, _, value = self._text(node).partition("=")
            reading.set_variable(name.rstrip("+").partition("[")[0], Word(value).value, self._depth)
        elif kind == "file_redirect":
            self._redirects.append((node.start_byte, node.end_byte))
            if not _HARMLESS_REDIRECT.fullmatch(self._text(node)):
                reading.doubt("it reads or writes a file by a redirection")
        elif kind in ("herestring_redirect", "heredoc_body"):
            fed = self._text(node)
            self._fed.append(Word(fed[3:].strip()).text if kind == "herestring_redirect" else fed)
        # Bash evaluates texts in a condition and in arithmetic, also those between quotes.
        elif kind in _EVALUATED:
            text = self._text(node)
            for substitution in _SUBSTITUTED.finditer(
                text if kind != "compound_statement" or text[:2] == "((" else ""
            ):
                reading.suspect(text[substitution.end() :], self._depth)
        # Between backticks a backslash escapes backticks, too: the shell removes it, then reads the rest as a
        # program.
        elif kind == "command_substitution" and (text := self._text(node)).startswith("`") and "\\" in text:
            reading.read(re.sub(r"\\([`\\$])", r"\1", text[1:-1]), self._depth + 1)

    def _command(self, node: Node) -> None:
        words: list[str | None] = []
        raw: list[str] = []
        for start, end, assigns, begins in self._words(node):
            if begins and raw:
                self._took(raw, words)
                words, raw = [], []
            word = Word(self._source[start:end].decode("utf-8"))
            raw.append(word.text)
            if not assigns:
                words.append(word.value)
        self._took(raw, words)

    def _took(self, raw: list[str], words: list[str | None]) -> None:
        self._plain.append(raw)
        if words:
            self._reading.add(tuple(words), self._depth)

    def _words(self, node: Node) -> list[tuple[int, int, bool, bool]]:
        """Return for each word its range, whether it is an assignment, and whether a newline before it starts
        a command.

        Adjacent parts form one word. The parser takes some lines for words of the command before; other text
        between words is text it lost.
        """
        pieces: list[tuple[int, int, bool, bool]] = []
        last = node.start_byte
        for child in node.children:
            between = self._source[last : child.start_byte]
            begins = b"\n" in between
            if between.strip(b" \t\n"):
                self._reading.lose("a part of it cannot be read")
            last = child.end_byte
            if child.type.endswith("redirect"):
                continue
            assigns = child.type == "variable_assignment" and node.type == "command"
            if pieces and pieces[-1][1] == child.start_byte:
                pieces[-1] = (pieces[-1][0], child.end_byte, pieces[-1][2] and assigns, pieces[-1][3])
            else:
                pieces.append((child.start_byte, child.end_byte, assigns, begins))
        return pieces

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8")

    def _without_redirects(self) -> str:
        kept = bytearray(self._source)
        for start, end in self._redirects:
            kept[start:end] = b" " * (end - start)
        return kept.decode("utf-8")


_EVALUATED = frozenset(
    ["test_command", "arithmetic_expansion", "c_style_for_statement", "compound_statement"]
)
_SUBSTITUTED = re.compile(r"\$\(|`")
_WHY = {
    "command_substitution": "it runs a command inside a word",
    "process_substitution": "it runs a command inside a word",
    "heredoc_redirect": "it feeds text to a command",
    "herestring_redirect": "it feeds text to a command",
    "function_definition": "it defines a function",
    "comment": "it contains a comment",
    "subshell": "it contains a subshell",
}


def _commands_by_shlex(text: str) -> list[list[str]] | None:
    """Return the commands as `shlex` reads them; `None` if it fails."""
    lexer = shlex.shlex(_QUOTED_SEMICOLON.sub(_MARK, text), posix=True, punctuation_chars=";()<>|&\n")
    # No comments: a `#` within a word belongs to it in bash; `shlex` would begin a comment there.
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found: list[list[str]] = [[]]
    try:
        for token in lexer:
            if _OPERATOR.fullmatch(token):
                found.append([])
            else:
                found[-1].append(";" if token == _MARK else token)
    except ValueError:
        return None
    # The other parser does not count the `!` that negates a command as a word of it.
    return [words for words in ([*one[1:]] if one[:1] == ["!"] else one for one in found) if words]


@cache
def bash_parser() -> Parser:
    """Return the parser, which is made at its first use."""
    import tree_sitter_bash  # loaded on use
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


# Words: their text without quotes, or that only bash can expand them.

_EXPANSION = re.compile(r"[A-Za-z_0-9@*#?$!{(\[-]")
"""Characters that make a dollar sign before them an expansion."""
_UNQUOTED_GLOB = re.compile(r"[*?\[]|(?:^|[=:])~|\{[^{}]*(?:,|\.\.)[^{}]*\}|\{.*\{")
_IN_DOUBLE_QUOTES = '$`"\\\n'
_ANSI = {
    "a": 7,
    "b": 8,
    "e": 27,
    "E": 27,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}
_ANSI_NUMBER = re.compile(r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})")


class Word:
    """One word: `text` without quotes; `known` is false if it is expanded to other text or several words."""

    __slots__ = ("_shape", "known", "text")

    def __init__(self, source: str) -> None:
        """Parse `source`, a word as written."""
        self.text, self._shape, self.known = "", "", True
        place = 0
        while place < len(source):
            place = self._piece(source, place)
        self.known = self.known and not _UNQUOTED_GLOB.search(self._shape)

    @property
    def value(self) -> str | None:
        """Text the program gets; `None` if unknown."""
        return self.text if self.known else None

    def _piece(self, source: str, place: int) -> int:
        """Read what begins at `place`; gives the place behind it."""
        sign, after = source[place], source[place + 1 : place + 2]
        if sign == "\\":
            if after != "\n":
                self._quoted(after)
            return place + 2
        if sign == "'":
            return self._single(source, place + 1)
        if sign == '"' or (sign == "$" and after == '"'):
            return self._double(source, place + (1 if sign == '"' else 2))
        if sign == "$" and after == "'":
            return self._ansi(source, place + 2)
        if sign == "`" or (sign == "$" and _EXPANSION.match(after)) or (sign in "<>" and after == "("):
            self.known = False
        self.text += sign
        self._shape += sign
        return place + 1

    def _quoted(self, text: str) -> None:
        self.text += text
        self._shape += "x" * len(text)

    def _single(self, source: str, place: int) -> int:
        end = source.find("'", place)
        if end < 0:
            self.known, end = False, len(source)
        self._quoted(source[place:end])
        return end + 1

    def _double(self, source: str, place: int) -> int:
        while place < len(source) and source[place] != '"':
            sign, after = source[place], source[place + 1 : place + 2]
            if sign == "\\" and after and after in _IN_DOUBLE_QUOTES:
                self._quoted("" if after == "\n" else after)
                place += 2
                continue
            if sign == "`" or (sign == "$" and _EXPANSION.match(after)):
                self.known = False
            self._quoted(sign)
            place += 1
        self.known = self.known and place < len(source)
        return place + 1

    def _ansi(self, source: str, place: int) -> int:
        """`$'…'` with its escapes.

        Bytes that are no ASCII and NUL are left unknown: what they become depends on more than the text.
        """
        while place < len(source) and source[place] != "'":
            if source[place] != "\\":
                self._quoted(source[place])
                place += 1
                continue
            if (number := _ANSI_NUMBER.match(source, place + 1)) is not None:
                code = int(next(filter(None, number.groups())), 8 if number[4] else 16)
                wide = number[2] or number[3]
                self.known = self.known and 0 < code < (0x110000 if wide else 0x80)
                self._quoted(chr(code) if 0 < code < 0x110000 else "")
                place = number.end()
                continue
            after = source[place + 1 : place + 2]
            self.known = self.known and after in _ANSI
            self._quoted(chr(_ANSI[after]) if after in _ANSI else after)
            place += 2
        self.known = self.known and place < len(source)
        return place + 1
