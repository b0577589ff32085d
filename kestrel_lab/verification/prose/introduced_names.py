"""What an answer brings in itself: names and files that it proposes, defines in an example or says not to be there, and other libraries.

None of these is a claim about the workspace, wherever else in the answer they are written.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kestrel_lab.core.citations import PATH
from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.symbols import source_of
from kestrel_lab.verification.prose.names import files_in, names_in
from kestrel_lab.verification.prose.stance import clause, covered, stance

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_BOUND: Final = re.compile(
    r"\b(?:def|class|function|const|let|var|export|alias)\s+([A-Za-z_]\w*)|^[ \t]*(?:self\.)?([A-Za-z_]\w*)[ \t]*(?::[^=\n]+)?=(?!=)",
    re.MULTILINE,
)
_HEADED: Final = re.compile(rf"^[ \t]*(?:#|//|--|<!--|/\*|;)\s*(?:\S+:\s*)?[`]?({PATH})\b", re.MULTILINE)
_WRITTEN: Final = re.compile(rf"(?:>{{1,2}}|\btouch|\bmkdir(?: -p)?|\bnano|\bvim?|\bcode|\btee(?: -a)?)\s+({PATH})")
_DEFINED: Final = re.compile(r"`(?:async )?(?:def|class) ([A-Za-z_]\w*)")
_QUOTED: Final = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|„[^“”\n]*[“”]")
_POSSESSIVE: Final = re.compile(r"\b(?P<who>[A-Za-z][\w.-]*[A-Za-z0-9])`?['’]s?\s[\w\s]{0,24}$")
_COMPARED: Final = re.compile(
    r"\b(?:unlike|compared|comparable|similar(?:ly)? to|equivalent|counterpart|analog\w*|as opposed to|contrary to|other librar\w+|third[- ]party|third-party|external|elsewhere|upstream|"
    r"stdlib|standard library|Standardbibliothek|anders als|im Gegensatz|vergleichbar\w*|contrairement|a diferencia)\b",
    re.IGNORECASE,
)
_KNOWN_TEXT: Final = """django flask fastapi starlette quart sanic tornado bottle pyramid celery redis postgres postgresql mysql sqlite mongodb kafka rabbitmq nginx gunicorn uvicorn hypercorn docker kubernetes
    requests httpx aiohttp urllib3 numpy pandas scipy sklearn scikit-learn pytorch tensorflow keras sqlalchemy alembic pydantic attrs marshmallow pytest unittest nose tox nox hypothesis black ruff mypy pylint
    poetry pipenv setuptools hatch uv pip conda jupyter ipython node react vue angular express typescript javascript rust golang java kotlin swift ruby rails php laravel spring haskell
    trio anyio asyncio gevent eventlet twisted click typer argparse docopt fire rich textual tqdm jinja jinja2 mako chameleon sphinx mkdocs hugo jekyll babel loguru structlog sentry prometheus opentelemetry
    aws s3 boto3 gcp azure github gitlab openai langchain github-actions werkzeug itsdangerous markupsafe cryptography apscheduler croniter environs dynaconf decouple tenacity backoff retrying stamina"""
KNOWN: Final = frozenset(_KNOWN_TEXT.split())
"""Other projects that answers compare with; only where the workspace is not that project itself."""


def introduced(claims: Iterable[Said], endings: Callable[[], frozenset[str]] = frozenset) -> frozenset[str]:
    """Names and files that the answer proposes, defines, or says not to be there.

    `endings` tells those of the workspace's files: code in a language that it has none of is not its code.
    """
    found: set[str] = set()
    for said in claims:
        if said.kind == "code":
            found |= _of_code(said)
            if said.language in _LANGUAGES and not _LANGUAGES[said.language] & endings():
                found |= set(_WORD.findall(said.text))
            continue
        found |= set(_DEFINED.findall(said.text)) if stance(said.text, len(said.text), len(said.text), said.lead) != "asserted" else set()
        made = ("to be made", "denied")
        found |= {
            text
            for name in names_in(said)
            if stance(said.text, name.start, name.end, said.lead) in made
            for text in (name.text, name.text.rpartition(".")[2])
        }
        found |= {
            text
            for file in files_in(said)
            if stance(said.text, file.start, file.end, said.lead) in made
            for text in (file.text, file.text.rpartition("/")[2])
        }
    return frozenset(found)


_LANGUAGES: Final = {
    name: frozenset(endings.split())
    for names, endings in (
        ("js javascript jsx mjs node", "js jsx mjs cjs ts html htm"), ("ts typescript tsx", "ts tsx js"), ("html xml jinja jinja2 vue svelte", "html htm xml jinja j2 vue"), ("css scss", "css scss"),
        ("sql", "sql"), ("go golang", "go"), ("rust rs", "rs"), ("java kotlin", "java kt"), ("c cpp c++", "c h cc cpp hpp pyx"), ("ruby rb", "rb"), ("php", "php"), ("lua", "lua"), ("nginx conf apache", "conf"), ("dockerfile docker", "dockerfile"),
    )
    for name in names.split()
}  # fmt: skip
"""The endings of the files that code of a language stands in."""


def _of_code(said: Said) -> set[str]:
    found = set(_HEADED.findall("\n".join(said.text.splitlines()[:2]))) | set(_WRITTEN.findall(said.text))
    if said.language in ("diff", "patch") or re.match(r"(?:---|\+\+\+|@@) ", said.text):
        added = "\n".join(line[1:] for line in said.text.splitlines() if line.startswith("+"))
        return found | set(_WORD.findall(added)) | set(re.findall(rf"^\+\+\+ (?:b/)?({PATH})", said.text, re.MULTILINE))
    found |= {name for pair in _BOUND.findall(said.text) for name in pair if name}
    try:
        tree = tree_of(textwrap.dedent(said.text))
    except (SyntaxError, ValueError, RecursionError):
        return found
    return found | set(names_bound(tree))


def names_bound(tree: ast.AST) -> Iterator[str]:
    """What a piece of code defines or sets itself, and the files it has in strings."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Constant(value=str(text)) if re.fullmatch(PATH, text):
                yield text
            case ast.alias(asname=str(name)):
                yield name
            case _:
                pass


def foreign(said: Said, start: int, end: int, home: frozenset[str]) -> bool:
    """Whether the clause speaks of another library: it compares, or names a project that is not one of `home`."""
    plain = covered(said.text)
    before, after = clause(plain, start, end)
    if _COMPARED.search(before) or _COMPARED.search(after[:60]):
        return True
    if _is_other(said.text[start:end].partition(".")[0], home) and "." in said.text[start:end]:
        return True
    owner = _POSSESSIVE.search(before)
    if owner is not None and (_is_other(owner["who"], home) or (owner["who"].lower() not in home and source_of(owner["who"]) is not None)):
        return True
    around = said.text[max(0, start - len(before)) : end + len(after)]
    shown = _QUOTED.sub(" ", around.replace(said.text[start:end], " "))
    return any(_is_other(word, home) for word in re.findall(r"[A-Za-z][\w-]*[A-Za-z0-9]", shown))


def _is_other(word: str, home: frozenset[str]) -> bool:
    low = word.lower()
    plain = low.replace("-", "_")
    return (
        low not in home
        and plain not in home
        and (
            (low in KNOWN and word not in _ORDINARY)
            or (word.islower() and "_" not in low and low in sys.stdlib_module_names and low not in _ORDINARY)
        )
    )


_ORDINARY_TEXT: Final = """
backoff retrying spring swift express rich click black go trio node react rust ruby attrs bottle pyramid uv fire chameleon hugo babel hatch poetry quart flask
code test this time types site select token string queue calendar platform resource signal statistics struct symbol trace uuid
warnings profile copy cmd bisect array enum glob numbers operator inspect io html http json logging locale random secrets email
csv abc ast dis imp keyword new parser pipes sched shelve stat tty user nt cgi chunk commands doctest fractions heapq selectors
traceback typing wave xml
"""
_ORDINARY: Final = frozenset(_ORDINARY_TEXT.split())
"""Modules of the standard library whose names are ordinary words."""
