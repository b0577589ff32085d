"""True answers about a repository, and the same answers with one thing made up: for measuring what notices it.

Everything is read from the Python files of a folder, so any repository will do, and the same folder and seed always
give the same answers. The kinds of making up: a wrong file, a wrong line, an invented name, an altered number, an altered
quote, a command that does not exist.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kestrel_lab.language.python_ast import tree_of

Fault = Literal["file", "line", "name", "number", "quote", "command"]
FAULTS: Final[tuple[Fault, ...]] = ("file", "line", "name", "number", "quote", "command")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer about the repository under `root`."""

    root: Path
    text: str
    fault: Fault | None = None
    """What is made up in it; `None` for a true one."""
    detail: str = ""
    """What stands there in place of what."""


@dataclass(frozen=True, slots=True)
class _Def:
    path: str
    dotted: str
    name: str
    kind: str
    first: int
    last: int
    doc: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Number:
    path: str
    line: int
    owner: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _Message:
    path: str
    line: int
    owner: str
    error: str
    text: str


class Facts:
    """What can be said about a repository."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.rng = random.Random(f"{root.name}:{seed}")  # for choosing, not for secrets
        self.defs: list[_Def] = []
        self.numbers: list[_Number] = []
        self.messages: list[_Message] = []
        self.lines: dict[str, list[str]] = {}
        for file in sorted(root.rglob("*.py")):
            path = file.relative_to(root).as_posix()
            text = file.read_text(encoding="utf-8", errors="replace")
            try:
                tree = tree_of(text)
            except SyntaxError:
                continue
            self.lines[path] = text.splitlines()
            self._walk(tree, path, "")
        self.times = Counter(one.name for one in self.defs)
        every = "\n".join("\n".join(lines) for lines in self.lines.values())
        self.words = set(re.findall(r"\w+", every))

    def _walk(self, tree: ast.AST, path: str, owner: str) -> None:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                dotted = f"{owner}.{node.name}" if owner else node.name
                args = (
                    ()
                    if isinstance(node, ast.ClassDef)
                    else tuple(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs) if arg.arg not in ("self", "cls"))
                )
                doc = (ast.get_docstring(node) or "").partition("\n")[0].strip()
                kind = "class" if isinstance(node, ast.ClassDef) else "method" if owner else "function"
                if not node.name.startswith("__") and owner.count(".") == 0:
                    self.defs.append(_Def(path, dotted, node.name, kind, node.lineno, node.end_lineno or node.lineno, doc, args))
                    if not isinstance(node, ast.ClassDef):
                        self._defaults(node, path, dotted)
                        self._raises(node, path, dotted)
                self._walk(node, path, dotted if isinstance(node, ast.ClassDef) else f"{dotted}.<locals>")
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and _number(node.value) and not owner:
                target = node.targets[0]
                if isinstance(target, ast.Name) and ast.unparse(node) in self.lines[path][node.lineno - 1]:
                    self.numbers.append(_Number(path, node.lineno, "", target.id, ast.unparse(node.value)))

    def _defaults(self, node: ast.FunctionDef | ast.AsyncFunctionDef, path: str, dotted: str) -> None:
        pairs = [
            *zip(node.args.args[::-1], node.args.defaults[::-1], strict=False),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for arg, value in pairs:
            if isinstance(value, ast.Constant) and _number(value) and ast.unparse(value) in self.lines[path][arg.lineno - 1]:
                self.numbers.append(_Number(path, arg.lineno, dotted, arg.arg, ast.unparse(value)))

    def _raises(self, node: ast.AST, path: str, dotted: str) -> None:
        for found in ast.walk(node):
            if (
                isinstance(found, ast.Raise)
                and isinstance(found.exc, ast.Call)
                and found.exc.args
                and isinstance(found.exc.args[0], ast.Constant)
            ):
                text = found.exc.args[0].value
                if isinstance(text, str) and len(text.split()) >= 4 and '"' not in text and "\n" not in text:
                    self.messages.append(_Message(path, found.lineno, dotted, ast.unparse(found.exc.func), text.strip().rstrip(".")))

    def pick(self, kind: str, *, documented: bool = False) -> _Def:
        """A definition of a kind that has a name of its own."""
        found = [
            one
            for one in self.defs
            if one.kind == kind
            and self.times[one.name] == 1
            and len(one.name) > 4
            and (not documented or (len(one.doc.split()) >= 5 and '"' not in one.doc and "`" not in one.doc))
        ]
        return self.rng.choice(found)


def _number(node: ast.Constant) -> bool:
    return (
        isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and node.value not in (0, 1, 2, -1)
        and abs(node.value) < 1e9
    )


def true_answers(facts: Facts, count: int) -> Iterator[Answer]:
    """True answers in all styles, one after the other."""
    styles = [style for style in STYLES if _possible(style, facts)]
    for number in range(count):
        style = styles[number % len(styles)]
        yield Answer(root=facts.root, text=style(facts) if _possible(style, facts) else _prose(facts))


def made_up(facts: Facts, fault: Fault, count: int) -> Iterator[Answer]:
    """Answers in which exactly one thing is made up."""
    given = 0
    for _ in range(count * 60):
        if given == count:
            return
        styles = [style for style in STYLES if _possible(style, facts)]
        try:
            text = facts.rng.choice(styles)(facts)
        except IndexError:  # this file, this time, has nothing to say of the kind
            continue
        changed = _CHANGES[fault](facts, text)
        if changed is not None:
            given += 1
            yield Answer(root=facts.root, text=changed[0], fault=fault, detail=changed[1])


def _possible(style: Callable[[Facts], str], facts: Facts) -> bool:
    state = facts.rng.getstate()
    try:
        style(facts)
    except IndexError:
        return False
    finally:
        facts.rng.setstate(state)
    return True


# ---- ways of answering --------------------------------------------------------------------------------------------


def _where(facts: Facts) -> str:
    one, other = facts.pick("function"), facts.pick("class")
    return (
        f"`{one.name}` is defined in `{one.path}:{one.first}`. The class `{other.name}` starts at line {other.first} of `{other.path}` and "
        f"goes on to line {other.last}. Both can be changed without touching anything else."
    )


def _bullets(facts: Facts) -> str:
    found = [facts.pick("method") for _ in range(3)]
    items = "\n".join(f"- `{one.dotted}` ({one.path}:{one.first}-{one.last})" for one in found)
    return f"Three places matter here:\n\n{items}\n\nI would begin with the first of them."


def _table(facts: Facts) -> str:
    found = [facts.pick(kind) for kind in ("class", "function", "method")]
    rows = "\n".join(f"| `{one.name}` | `{one.path}` | line {one.first} of {one.path} |" for one in found)
    return f"## Where things are\n\n| name | file | place |\n| --- | --- | --- |\n{rows}\n\nThe rest follows from these."


def _quoted(facts: Facts) -> str:
    one = facts.pick("function", documented=True) if facts.rng.random() < 0.5 else facts.pick("method", documented=True)
    return f"Its purpose is documented: the docstring of `{one.name}` in `{one.path}` reads “{one.doc}” So that is what to rely on."


def _excerpt(facts: Facts) -> str:
    one = facts.pick("function")
    last = min(one.last, one.first + 5)
    body = "\n".join(facts.lines[one.path][one.first - 1 : last])
    return f"The beginning of the function, from `{one.path}:{one.first}-{last}`:\n\n```python\n{body}\n    ...\n```\n\nThe remainder is not important."


def _missing(facts: Facts) -> str:
    one = facts.pick("class")
    word = facts.rng.choice(("retry", "session", "metrics", "backend"))
    return (
        f"There is no file `{word}_manager.py` in this repository, and a class `{word.title()}Manager` does not exist either. "
        f"What comes nearest is `{one.name}` in {one.path}, from line {one.first} on."
    )


def _to_make(facts: Facts) -> str:
    one = facts.pick("function")
    module = f"{facts.root.name}.{one.path.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
    return (
        f"I suggest to create a new file `tests/test_{one.name.strip('_')}_again.py`:\n\n```python\nfrom {module} import {one.name}\n\n\n"
        f"def test_{one.name.strip('_')}_again():\n    assert callable({one.name})\n```\n\n"
        f"Then run `python -m pytest tests/test_{one.name.strip('_')}_again.py`. The function itself stays where it is, in `{one.path}`."
    )


def _default(facts: Facts) -> str:
    one = facts.rng.choice([number for number in facts.numbers if number.owner])
    return f"In `{one.owner}` the parameter `{one.name}` defaults to {one.value} ({one.path}:{one.line}), so most callers never pass it."


def _constant(facts: Facts) -> str:
    one = facts.rng.choice([number for number in facts.numbers if not number.owner and len(number.name) > 3])
    return f"It is set once: {one.path} has `{one.name} = {one.value}` in line {one.line}, and nothing overrides the value of {one.value}."


def _error(facts: Facts) -> str:
    one = facts.rng.choice(facts.messages)
    return f'When that goes wrong, `{one.owner}` raises `{one.error}` with the message "{one.text}" (see `{one.path}`, line {one.line}).'


def _commands(facts: Facts) -> str:
    one = facts.pick("function")
    return (
        f"To see who uses it:\n\n```bash\ncd {facts.root.name}\ngrep -rn {one.name} . | head -20\n```\n\n"
        f"or simply run `python -m pip --version` first to see which Python it is. The definition is at {one.path}:{one.first}."
    )


def _prose(facts: Facts) -> str:
    one, other = facts.pick("function"), facts.pick("class")
    return (
        f"Short answer: probably yes, though I did not measure it. The work happens in {one.path}, where {one.name}() is the entry point "
        f"(lines {one.first} to {one.last} of {one.path}). If you need state, look at the {other.name} class in {other.path}; e.g. subclass it."
    )


def _sizes(facts: Facts) -> str:
    path = facts.rng.choice([path for path, lines in facts.lines.items() if len(lines) > 30])
    one = facts.rng.choice([found for found in facts.defs if found.path == path] or facts.defs)
    return f"The file `{path}` has {len(facts.lines[path])} lines. It is about one thing; see `{one.name}` in `{one.path}` for an example of the style."


def _as_json(facts: Facts) -> str:
    one = facts.pick("function")
    return f'{{"file": "{one.path}", "line": {one.first}, "symbol": "{one.name}", "place": "{one.path}:{one.first}", "sure": true}}'


STYLES: Final = (
    _where,
    _bullets,
    _table,
    _quoted,
    _excerpt,
    _missing,
    _to_make,
    _default,
    _constant,
    _error,
    _commands,
    _prose,
    _sizes,
    _as_json,
)


# ---- ways of making things up -------------------------------------------------------------------------------------


def _wrong_file(facts: Facts, text: str) -> tuple[str, str] | None:
    paths = sorted({path for path in facts.lines if re.search(rf"(?<![\w/]){re.escape(path)}", text)}, key=len, reverse=True)
    if not paths:
        return None
    old = paths[0]
    if facts.rng.random() < 0.6:
        stem = old.removesuffix(".py").rstrip("_")
        new = facts.rng.choice(
            (
                f"{stem}_helpers.py",
                f"core/{old}",
                f"{stem}_v2.py",
                f"{old.rpartition('/')[0] or 'internal'}/{stem.rpartition('/')[2]}_impl.py",
            )
        )
    else:
        names = [one for one in facts.defs if one.path == old and re.search(rf"\b{re.escape(one.name)}\b", text)]
        without = [
            path
            for path, lines in facts.lines.items()
            if len(lines) > 5
            and path != old
            and names
            and not any(re.search(rf"\b{re.escape(one.name)}\b", "\n".join(lines)) for one in names)
        ]
        if not without:
            return None
        new = facts.rng.choice(without)
    return re.sub(rf"(?<![\w/]){re.escape(old)}", new, text), f"{new} for {old}"


def _wrong_line(facts: Facts, text: str) -> tuple[str, str] | None:
    match = next(
        iter(
            re.finditer(
                r"(?P<path>[\w/]+\.py):(?P<a>\d+)(?:-(?P<b>\d+))?|\blines? (?P<c>\d+)(?: to (?P<d>\d+))? of `?(?P<path2>[\w/]+\.py)", text
            )
        ),
        None,
    )
    if match is None:
        return None
    path, first = match["path"] or match["path2"], int(match["a"] or match["c"])
    last = int(match["b"] or match["d"] or first)
    total = len(facts.lines.get(path, []))
    shift = facts.rng.choice((total, 37, 61, -43, 120))
    first, last = first + shift, last + shift
    if first < 1 or (shift != total and last > total):
        return None
    old = match[0]
    new = re.sub(r"\d+(?=\D*$)", str(last), old) if match["b"] or match["d"] else re.sub(r"(?<=:)\d+|(?<=line )\d+", str(first), old)
    if match["b"]:
        new = f"{path}:{first}-{last}"
    elif match["d"]:
        new = re.sub(r"\d+ to \d+", f"{first} to {last}", old)
    return text.replace(old, new, 1), f"{new} for {old}"


def _invented(facts: Facts, text: str) -> tuple[str, str] | None:
    names = [one for one in facts.defs if re.search(rf"(?<![\w])`?{re.escape(one.name)}(?:`|\(\))", text)]
    if not names:
        return None
    old = facts.rng.choice(names).name
    new = (
        facts.rng.choice(("{}_async_all", "resolve_{}_now", "{}_or_raise")).format(old)
        if not old[:1].isupper()
        else facts.rng.choice(("{}Registry", "Lazy{}", "{}Broker")).format(old)
    )
    if new in facts.words or "Manager" in old:
        return None
    return re.sub(rf"\b{re.escape(old)}\b", new, text), f"{new} for {old}"


def _altered_number(facts: Facts, text: str) -> tuple[str, str] | None:
    match = re.search(r"(?<=defaults to )-?[\d.]+\d|(?<=defaults to )\d|(?<= has )\d+(?= lines)|(?<=value of )-?\d[\d.]*\d", text)
    if match is None:
        return None
    old = match[0]
    value = float(old)
    new = facts.rng.choice((value * 3 + 1, value + 17, value * 10 + 7))
    shown = f"{new:g}" if "." in old else str(int(new))
    return text[: match.start()] + shown + text[match.end() :], f"{shown} for {old}"


_SWAPS: Final = {
    "not": "always",
    "must": "may",
    "the": "every",
    "a": "each",
    "is": "was never",
    "for": "against",
    "Return": "Delete",
    "to": "without",
    "of": "beyond",
    "and": "or",
}


def _altered_quote(facts: Facts, text: str) -> tuple[str, str] | None:
    match = re.search(r"“([^”]+)”|message \"([^\"]+)\"", text)
    if match is None:
        return None
    quote = match[1] or match[2]
    old = next((word for word in quote.split() if word in _SWAPS), quote.split()[-1])
    new = _SWAPS.get(old, "quickly")
    return text.replace(quote, re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, quote, count=1)), f"{new} for {old}"


def _no_command(facts: Facts, text: str) -> tuple[str, str] | None:
    invented = facts.rng.choice((f"{facts.root.name}-inspect", f"py{facts.root.name}check", "grepcode", "runtests-fast"))
    if "grep -rn" in text:
        return text.replace("grep -rn", f"{invented} -rn"), f"{invented} for grep"
    if "python -m pytest" in text:
        return text.replace("python -m pytest", f"python -m {facts.root.name}.testrunner"), "a module that is not there for pytest"
    return f"{text}\n\nTo check it, run `{invented} --all src`.", invented


_CHANGES: Final[dict[Fault, Callable[[Facts, str], tuple[str, str] | None]]] = {
    "file": _wrong_file,
    "line": _wrong_line,
    "name": _invented,
    "number": _altered_number,
    "quote": _altered_quote,
    "command": _no_command,
}
