"""Checks of what can be run: blocks of code are parsed, never run; commands are looked for."""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kestrel_lab.core.json_types import loads_toml
from kestrel_lab.host.programs import resolve
from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.symbols import installed
from kestrel_lab.verification.issues import Issue, Severity, issue
from kestrel_lab.verification.prose.names import code_in
from kestrel_lab.verification.prose.stance import PLACEHOLDER, stance
from kestrel_lab.verification.rules.facts import importable
from kestrel_lab.verification.rules.files_and_lines import to_be_made
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import CLAIM, STARTED

SHELLS: Final = frozenset({"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal"})
PYTHON: Final = frozenset({"python", "py", "python3", "pycon", "ipython"})
_BUILTIN_TEXT: Final = """
alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo enable eval exec exit export false fc fg
getopts hash help history if for while until case coproc function jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return select set
shift suspend shopt source . : [ [[ test time times trap true type typeset ulimit umask unalias unset wait then do done fi esac else elif
{ } ! in
"""
_BUILTIN: Final = frozenset(_BUILTIN_TEXT.split())
_ELSEWHERE_TEXT: Final = """apt apt-get aws az brew bundle cargo cat chmod cmake code conda cp curl dnf docker docker-compose dotnet find gcc gcloud gem gh git go gradle grep helm java jq just kubectl less ls make
    mkdir mv mvn mypy node npm npx nox pacman pip pip3 pipenv pipx pnpm poetry podman pre-commit psql pytest python python3 redis-cli rg rm rsync ruff rustc scp sed ssh sudo systemctl tar terraform touch
    tox twine uv uvx virtualenv wget winget yarn yum zip black isort flake8 pylint coverage hatch pdm sphinx-build mkdocs jupyter ipython redis-server mysql sqlite3 open xdg-open nano vim emacs tmux screen top htop
    act ab ack actionlint ag alembic ansible ansible-playbook apk autoflake autopep8 awk bandit basedpyright bat bazel bpython build bumpversion bump2version bun celery choco clang cloc codespell composer convert createdb crontab csvkit ctags cython cz daphne dask deno
    deptry diff dig dir direnv django-admin doit dos2unix dot dvc egrep entr esbuild eslint exa eza fab fd ffmpeg fgrep file flask flit flynt fzf gdb gitleaks gnuplot gofmt golangci-lint gprof2dot grpcurl gunicorn gzip hadolint head heroku hey http httpie httpx hypercorn hyperfine ifconfig interrogate inv
    invoke ip iptables jest journalctl jupytext k6 launchctl lint-imports locust lsof lua magick markdownlint maturin mdformat memray meson mise mlflow mmdc mongo mongosh mprof mutmut nbqa nbstripout nc netstat ninja nix nix-shell nmap node-gyp nodemon nslookup nuitka nvm openssl pandoc papermill parallel pdflatex perf perl pg_dump
    php ping pip-audit pip-compile pip-licenses pip-sync pipdeptree powershell prettier prospector protoc ps ptpython ptw pudb pwsh pyenv pydoc pydoc3 pydocstyle pyinstaller pylama pyre pyreverse pyrefly pyright pyupgrade py-spy py quarto radon refurb rename ruby rustup safety scalene scc scoop semgrep service sha256sum shasum shellcheck shfmt snakeviz sort
    sphinx-apidoc sphinx-autobuild sphinx-quickstart sqlfluff ss ssh-keygen strace streamlit tail tee telnet tokei towncrier tree trivy tsc ty typos unimport uniq unzip uvicorn valgrind vi vite vitest voila vulture wasm-pack watch watchexec watchmedo wc webpack where which wrk wsl xclip xmllint xz yamllint yapf yq zstd 2to3 7z"""
_ELSEWHERE: Final = frozenset(_ELSEWHERE_TEXT.split())
"""Programs that are known of: where one is not installed, that is said, and refuses nothing."""
_WRAPPERS: Final = frozenset({"sudo", "time", "env", "nohup", "xargs", "exec", "command", "then", "do", "!", "nice"})
_RUN: Final = re.compile(
    r"\b(?:runs?|running|ran|command|execute\w*|invoke\w*|call(?:ing)?|type|try|with|via|shell|terminal|cli|script|console)\b",
    re.IGNORECASE,
)
_OPERATOR: Final = re.compile(r"[<>=!+*/%&^:-]=?|//|\*\*|[<>]{2}|and|or|in|is|if|not|for|else|->|=>|:=")
"""What follows the first word of an expression, not of a command."""
_TARGET: Final = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)\s*:(?!=)", re.MULTILINE)
_MOST_DOTS: Final = 500
BASH_S: Final = 5.0


def blocks_parse(subject: Subject) -> Iterator[Issue]:
    """Every block of code is what its fence says: Python, shell, JSON, YAML and TOML are parsed."""
    for said in subject.paid():
        if said.kind == "code" and said.text.strip() and (problem := _problem(subject, said)):
            yield issue(
                "major",
                said.text.strip().splitlines()[0],
                f"the block of {said.language} cannot be parsed: {problem}",
                "write it so that it can be",
            )


def _problem(subject: Subject, said: Said) -> str:
    text = textwrap.dedent(said.text)
    if said.language in PYTHON:
        return _python_problem(text)
    if said.language in ("bash", "sh", "shell"):
        subject.pay(STARTED)
        return _bash_problem(text, subject.files.root)
    if said.language in ("json", "yaml", "yml", "toml") and not re.search(r"\.\.\.|…|^[ \t]*//|<[a-z_ ]+>", text, re.MULTILINE):
        return _data_problem(said.language, text)
    return ""


def python_of(text: str) -> str:
    """A Python block without the prompts of a session and the answers between them."""
    if not re.search(r"^[ \t]*>>>", text, re.MULTILINE):
        return "\n".join(line for line in text.splitlines() if not re.match(r"\s*[%!]", line))
    return "\n".join(line.strip()[4:] for line in text.splitlines() if re.match(r"\s*(?:>>>|\.\.\.)(?: |$)", line))


def _python_problem(text: str) -> str:
    code = python_of(text)
    try:
        tree_of(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        inside = textwrap.indent(code, "    ")
        for wrapped in (
            f"async def _():\n{inside}",
            f"class _:\n{inside}",
            f"_ = {{\n{code}\n}}",
            f"_(\n{code}\n)",
            f"{code.rstrip()}\n    ...",
            f"{code.rstrip()}:\n    ...",
        ):
            try:
                tree_of(wrapped)
            except (SyntaxError, ValueError, RecursionError):
                continue
            return ""
        begun = "expected 'except' or 'finally' block" in str(error)  # the block shows how a `try` begins
        return "" if begun or re.search(r"^[ \t]*(?:\.\.\.|…)", code, re.MULTILINE) else str(error)
    return ""


def _bash_problem(text: str, workspace: Path) -> str:
    bash = resolve("bash", outside=[workspace])
    if bash is None or re.search(r"<[a-z][\w -]*>", text):
        return ""
    code = "\n".join(_prompted(text))
    try:
        found = subprocess.run(
            [bash, "--norc", "-n"], input=code, capture_output=True, text=True, timeout=BASH_S, check=False, env={"LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stderr.strip().splitlines()[0] if found.returncode and found.stderr.strip() else ""


def _data_problem(language: str, text: str) -> str:
    if language in ("yaml", "yml"):
        from kestrel_lab.core.yaml.reader import yaml_problem  # only where there is a block of it

        return yaml_problem(text)
    if language == "toml" and any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise RecursionError  # keys of thousands of parts, which take the parser a time that grows with their square
    try:
        if language == "json":
            json.loads(text, parse_int=str)  # Python refuses integers of thousands of digits, JSON does not
        else:
            loads_toml(text)
    except ValueError as error:
        return "" if "integer string conversion" in str(error) else " ".join(str(error).split())
    return ""


def imports_resolve(subject: Subject) -> Iterator[Issue]:
    """What blocks of Python import is there: in the workspace or in an installed package."""
    for said in subject.paid():
        if said.kind != "code" or said.language not in PYTHON:
            continue
        try:
            tree = tree_of(python_of(textwrap.dedent(said.text)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        made = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in ast.walk(tree):
            for dotted in _imported(node):
                if not PLACEHOLDER.search(dotted) and dotted.rpartition(".")[2] not in made and _is_missing(subject, dotted):
                    newer = dotted.partition(".")[0] in sys.stdlib_module_names  # another Python may have it
                    severity: Severity = "minor" if newer else "critical"
                    yield issue(severity, ast.unparse(node), f"there is no {dotted} to import", "import what is there")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module if alias.name == "*" else f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _is_missing(subject: Subject, dotted: str) -> bool:
    """Only where the package is known, and does not have it."""
    answer = subject.symbols.resolves(dotted)
    return answer == "no" or (answer == "unknown" and installed(dotted.split(".")) == ["no"])


def commands_are_there(subject: Subject) -> Iterator[Issue]:
    """Every command that is named is on the path, in the workspace, or a target that the workspace declares."""
    seen: set[str] = set()
    for said in subject.paid():
        for line in _commands(said):
            if line not in seen:
                seen.add(line)
                yield from _command_issue(subject, said, line)


def _commands(said: Said) -> Iterator[str]:
    if said.kind == "code":
        if said.language in SHELLS:
            session = said.language in ("console", "shell-session") or re.search(r"^[ \t]*[$%] ", said.text, re.MULTILINE)
            lines = re.sub(r"\\\n\s*", " ", _without_documents(said.text)).splitlines()
            for line in lines:
                if session and not re.match(r"\s*[$%#>] ", line):
                    continue
                yield re.sub(r"^\s*[$%>] ", "", line).strip()
        return
    for code, at in code_in(said):
        words = code.split()
        near = said.text[max(0, at - 40) : at] + " " + said.text[at + len(code) : at + len(code) + 25]
        like = (
            re.fullmatch(r"[a-z][\w.-]*|\./\S+", words[0] if words else "") is not None
            and not code.endswith((":", ","))
            and not keyword.iskeyword(words[0])
            and not (len(words) > 1 and _OPERATOR.fullmatch(words[1]))
        )
        if not like or stance(said.text, at, at + len(code), said.lead) in ("denied", "supposed"):
            continue
        flags = any(word.startswith("-") and len(word) > 1 for word in words[1:])
        if (len(words) > 1 and (flags or words[0] in _ELSEWHERE or (_RUN.search(near) and not re.search(r"[=(){}\[\];]", code)))) or (
            len(words) == 1
            and re.search(
                r"\b(?:command|executable|binary|cli|program|tool|run|running)\s*`?$|^`?\s*(?:command|executable|binary|cli|script)\b",
                said.text[:at].rstrip("`") + "\x00",
                re.IGNORECASE,
            )
            and "." not in code
            and "_" not in code
            and "(" not in code
        ):
            yield code


def _without_documents(text: str) -> str:
    """A script without what it feeds in by `<<`; what has no end is left as it is."""
    kept: list[str] = []
    lines = text.splitlines()
    last = {line.strip(): number for number, line in enumerate(lines)}
    place = 0
    while place < len(lines):
        begins = re.search(r"<<-?[ \t]*['\"]?(\w+)", lines[place])
        if begins is None or last.get(begins[1], -1) <= place:
            kept.append(lines[place])
        else:
            kept.append(lines[place][: begins.start()])
            place = next(number for number in range(place + 1, len(lines)) if lines[number].strip() == begins[1])
        place += 1
    return "\n".join(kept)


def _command_issue(subject: Subject, said: Said, line: str) -> Iterator[Issue]:
    if PLACEHOLDER.search(line.partition(" ")[0]) or line.lstrip().startswith("#"):
        return
    for part in re.split(r"\|\||&&|\||;", line):
        words = _words(part)
        while words and (words[0] in _WRAPPERS or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0])):
            words = words[1:]
        if words and (problem := _missing(subject, words)):
            severity, what = problem
            yield issue(severity, part, what, "name a command that is there")  # type: ignore[arg-type]  # one of the severities


def _words(part: str) -> list[str]:
    try:
        return shlex.split(part, comments=True)
    except ValueError:
        return part.split()


def _missing(subject: Subject, words: list[str]) -> tuple[str, str] | None:  # noqa: C901  # one case per kind of command
    subject.pay(CLAIM * (1 + subject.path.count(os.pathsep)))
    name, rest = words[0], words[1:]
    if option := _unheard(subject, words):
        return "critical", f"nothing here knows the option {option}"
    if name in _BUILTIN or PLACEHOLDER.search(name) or not re.match(r"[\w./~-]+$", name) or not subject.files.whole:
        return None
    if "/" in name:
        there = subject.files.exists(name) or name.startswith(("~", "/")) or "venv" in name or subject.tells(name)
        return None if there else ("critical", f"there is no {name} to run")
    if re.fullmatch(r"python[\d.]*|pypy3?", name) and rest:
        if rest[0] == "-m" and len(rest) > 1:
            return (
                None
                if PLACEHOLDER.search(rest[1]) or importable(rest[1], subject) or rest[1] in _ELSEWHERE
                else ("critical", f"there is no module {rest[1]} to run")
            )
        if (
            rest[0].endswith(".py")
            and not PLACEHOLDER.search(rest[0])
            and not subject.files.exists(rest[0])
            and not subject.tells(rest[0])
            and rest[0] not in to_be_made(subject)
        ):
            return "critical", f"there is no {rest[0]} to run"
    if name == "make" and rest and (text := subject.files.read("Makefile")) is not None:
        wanted = next((word for word in rest if re.fullmatch(r"[A-Za-z][\w.-]*", word)), "")
        return (
            None
            if not wanted or wanted in {match["name"] for match in _TARGET.finditer(text)}
            else ("critical", f"the Makefile has no target {wanted}")
        )
    if (
        name in ("npm", "yarn", "pnpm")
        and rest[:1] == ["run"]
        and len(rest) > 1
        and (text := subject.files.read("package.json")) is not None
    ):
        return None if f'"{rest[1]}"' in text else ("critical", f"package.json has no script {rest[1]}")
    if shutil.which(name, path=subject.path) or name in _declared(subject):
        return None
    if name in _ELSEWHERE:
        return "minor", f"the command {name} is not installed here"
    if subject.tells(name) and any(made.tool == name or name in str(made.args) for made in subject.calls or ()):
        return None
    return "critical" if _is_ours(subject, words) else "minor", f"there is no command {name}"


_FOLDERS: Final = frozenset({".", "src", "tests", "test", "docs", "lib"})
"""Where a workspace's own files are meant."""


def _is_ours(subject: Subject, words: list[str]) -> bool:
    """Whether a command that nobody knows, and no text has, bears the workspace's name, or is to work on its files."""
    if subject.names(words[0]):
        return False
    tops = {path.partition("/")[0].removesuffix(".py").lower() for path in subject.files.paths} & subject.home
    plain, *homes = (re.sub(r"\W|_", "", name) for name in (words[0].lower(), subject.files.root.name.lower(), *tops))
    return any(len(home) > 2 and home in plain for home in homes) or any(
        word in _FOLDERS or subject.files.exists(word) or subject.symbols.defined(word) for word in words[1:] if not word.startswith("-")
    )


def _unheard(subject: Subject, words: list[str]) -> str:
    """An option of the workspace's own command that its texts do not have."""
    name, rest = (
        (words[2], words[3:]) if len(words) > 2 and words[1] == "-m" else (words[0].rpartition("/")[2].removesuffix(".py"), words[1:])
    )
    if (
        (name.lower() not in subject.home and (name in _ELSEWHERE or name not in _declared(subject)))
        or not subject.files.having("add_argument") + subject.files.having("click")
        or subject.files.having("typer")
    ):
        return ""
    options = (word.partition("=")[0] for word in rest)
    written = [word for word in options if re.fullmatch(r"--[a-z][\w-]+", word) and word not in ("--help", "--version")]
    forms = {word: (word, f"--{word[2:].removeprefix('no-')}") for word in written}
    texts = [subject.told, *(text for _, text in subject.files.texts())] if written else []
    return next((word for word in written if not any(form in text for form in forms[word] for text in texts)), "")


def _declared(subject: Subject) -> set[str]:
    """Commands that the workspace's own project installs, and those that its texts tell how to run."""
    found: set[str] = set()
    try:
        table = loads_toml(subject.files.read("pyproject.toml") or "")
        found |= set(table.get("project", {}).get("scripts", {})) | set(table.get("tool", {}).get("poetry", {}).get("scripts", {}))
    except (ValueError, AttributeError):
        pass
    for path in subject.files.paths:
        if path.endswith(("entry_points.txt", "setup.cfg")):
            found |= set(re.findall(r"^[ \t]*([\w.-]+)[ \t]*=[ \t]*[\w.]+:[\w.]+", subject.files.read(path) or "", re.MULTILINE))
    for path in subject.files.having("prog"):
        found |= set(re.findall(r"\bprog\s*=\s*[\"']([\w.-]+)[\"']", subject.files.read(path) or ""))
    return found


def _prompted(text: str) -> list[str]:
    """A session without its prompts and without what was printed."""
    lines = text.splitlines()
    if any(re.match(r"\s*\$ ", line) for line in lines):
        return [re.sub(r"^\s*\$ ", "", line) for line in lines if re.match(r"\s*\$ ", line)]
    return lines


def json_is_valid(subject: Subject) -> Iterator[Issue]:
    """An answer that is meant to be JSON as a whole is JSON."""
    text = subject.answer.strip()
    if text != subject.looked_at.strip():
        return  # its end is not looked at
    if text[:1] in "{[" and text[-1:] in "}]" and re.match(r"[{\[]\s*(?:[\"{\[\]}\d-]|true|false|null)", text):
        try:
            json.loads(text, parse_int=str)
        except ValueError as error:
            yield issue("critical", text, f"the answer is no valid JSON: {error}", "answer with valid JSON")
