"""Rules of the whole code base that no single module can keep alone."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S

import kestrel_lab
from kestrel_lab import testing
from kestrel_lab.core import protocols

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kestrel_lab"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
HEAVY = (
    *(
        "IPython",
        "anywidget",
        "apsw",
        "httpx",
        "ipywidgets",
        "litellm",
        "matplotlib",
        "mcp",
        "nbclient",
        "networkx",
    ),
    *("numpy", "pandas", "pydantic", "rich", "scipy", "typer", "watchfiles", "yaml"),
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path, node: ast.AST | None = None) -> str:
    """Where something is, for a failure's text."""
    return f"{path.relative_to(ROOT)}" + (f":{node.lineno}" if isinstance(node, ast.stmt) else "")


@dataclass(frozen=True)
class Code:
    """What the rules ask of a file. Its tree is not kept: those of all files would be millions of objects."""

    documented: bool
    defined: list[tuple[str, str, bool, bool]]
    """Each class and function, methods of public classes included, what is nested in functions not: place,
    name, class or not, documented or not.
    """
    members: dict[str, list[str]]
    """The public methods and class attributes of each public class at the top."""
    imports: list[str]
    """The modules of this package that it imports when it runs; what only a type checker reads is left out.
    """
    git: list[str]
    """Where a list, a tuple or a call begins with git."""


@cache
def parsed(path: Path) -> Code:
    """What a file says, read once for all rules."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    defined = [
        (
            f"{place(path, node)} {node.name}",
            node.name,
            isinstance(node, ast.ClassDef),
            overload(node) or bool(ast.get_docstring(node)),
        )
        for node in definitions(module)
    ]
    members = {
        node.name: public_members(node)
        for node in module.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    imports: list[str] = []
    git: list[str] = []
    todo: list[ast.AST] = (
        [module] if PACKAGE in path.parents else []
    )  # tests import what they like, and start git
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kestrel_lab."):
            imports.append(node.module)
        elif isinstance(node, ast.List | ast.Tuple | ast.Call):
            first = node.args[:1] if isinstance(node, ast.Call) else node.elts[:1]
            if first and isinstance(first[0], ast.Constant) and str(first[0].value).split(" ", 1)[0] == "git":
                git.append(f"{place(path)}:{node.lineno}")
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))
    return Code(bool(ast.get_docstring(module)), defined, members, imports, git)


def definitions(module: ast.Module) -> Iterator[Definition]:
    """Classes and functions of a module, methods of public classes included, what is nested in functions
    not.
    """
    todo: list[ast.AST] = [module]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, Definition):
                yield node
            private = isinstance(node, ast.ClassDef) and node.name.startswith("_")
            if isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With) and not private:
                todo.append(node)


def overload(node: Definition) -> bool:
    """Whether a definition is one of several signatures of a function."""
    return any(getattr(mark, "id", "") == "overload" for mark in node.decorator_list)


def public_members(node: ast.ClassDef) -> list[str]:
    """The names that a class defines, without those that begin with an underscore."""
    named = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    named |= {
        target.id
        for one in node.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    return sorted(name for name in named if not name.startswith("_"))


def silent(files: list[Path], asked: Callable[[str], bool]) -> list[str]:
    """The files, and the classes and functions of those names, that have no docstring."""
    codes = [(path, parsed(path)) for path in files]
    modules = [place(path) for path, code in codes if not code.documented]
    return modules + [
        shown
        for _, code in codes
        for shown, name, _, documented in code.defined
        if asked(name) and not documented
    ]


def test_everything_public_states_its_contract() -> None:
    """Each module, public class and public function has a docstring; special methods say what their class
    says.
    """
    assert silent(MODULES, lambda name: not name.startswith("_")) == []


def test_every_test_states_its_claim() -> None:
    """Each test function has a docstring, and each test module one that says what it is about."""
    assert silent(TESTS, lambda name: name.startswith("test_")) == []


def test_files_stay_small() -> None:
    """No module has more than 370 statements: one file, one idea. Lines would reward dense ones."""
    long = {
        place(path): statements
        for path in MODULES
        if (
            statements := sum(
                isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text("utf-8")))
            )
        )
        > 370
    }
    assert long == {}


_NOUNS = {
    *(
        "testing",
        "macro_mining",
        "formatting",
        "grounding",
        "ranking",
        "web_grounding",
        "timing",
        "sandboxing",
        "scoring",
        "recording",
    ),
}
"""Module names in -ing that the field uses as nouns."""


def test_modules_are_named_by_nouns() -> None:
    """No module is named by a gerund or a participle, no folder has more than 16 modules, and no base name
    stands for more than three of them.
    """
    modules = [path for path in MODULES if path.name != "__init__.py"]
    verbs = [place(path) for path in modules if path.stem.endswith(("ing", "ed")) and path.stem not in _NOUNS]
    folders = Counter(place(path.parent) for path in modules)
    names = Counter(path.name for path in modules)
    assert verbs == []
    assert {folder: count for folder, count in folders.items() if count > 16} == {}
    assert {name: count for name, count in names.items() if count > 3} == {}


_WIDE = {"SessionStore": 26, "RunContext": 23}
"""Classes with more than 20 public members, which may only lose some."""


def test_classes_stay_small() -> None:
    """No public class defines more than 20 public members; for those that users hold what they inherit
    counts, too (attributes of an instance do not).
    """
    wide = {
        f"{place(path)} {name}": len(members)
        for path in MODULES
        for name, members in parsed(path).members.items()
        if len(members) > _WIDE.get(name, 20)
    }
    assert wide == {}
    for held in (kestrel_lab.Run, kestrel_lab.Lab):
        members = [
            name
            for name in dir(held)
            if not name.startswith("_") and not inspect.ismemberdescriptor(getattr(held, name))
        ]
        assert len(members) <= 20


def test_names_say_what_a_thing_is() -> None:
    """Nothing is called manager, helper, util, base or implementation: such a name is a drawer, not a
    thing.
    """
    words = re.compile(r"(?<![a-z])(manager|helper|util|impl|base)s?(?![a-z])")
    vague = []
    for path in MODULES:
        if words.search(re.sub(r"_", " ", path.stem)):
            vague.append(place(path))
        for shown, name, is_class, _ in parsed(path).defined:
            spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower()
            if (is_class and words.search(spaced)) or re.search(
                r"(?<![a-z])(manager|helper|util|impl)s?(?![a-z])", spaced
            ):
                vague.append(shown)
    assert vague == []


def test_public_names_are_few_and_sorted() -> None:
    """At most 27 names are promised, in order (capitals first), each can be imported, and `dir` shows them.

    25 for runs and their results; `Scenario`, `Suite`, `check` and `metric` came when suites could be built
    in Python, two over.
    """
    names = kestrel_lab.__all__
    assert len(names) <= 27
    assert names == sorted(names)
    assert all(getattr(kestrel_lab, name) is not None for name in names)
    assert set(names) <= set(dir(kestrel_lab))
    with pytest.raises(AttributeError, match="has no attribute 'Labb'"):
        kestrel_lab.Labb


_IMPORT = """
import sys
opened = []
def hook(event, args):
    if event == "open" and isinstance(args[0], str) and not args[0].endswith((".py", ".pyc")) and \
"__pycache__" not in args[0]:
        opened.append(args[0])
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.putenv"):
        opened.append(event)
sys.addaudithook(hook)
import kestrel_lab
names = sys.argv[1].split(",")
print([name for name in names if name in sys.modules], opened)
"""


def test_importing_is_quiet_and_light() -> None:
    """A fresh `import kestrel_lab` loads nothing heavy, opens no file but code, starts nothing and prints
    nothing.
    """
    command = [sys.executable, "-W", "error", "-c", _IMPORT, ",".join(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("[] []\n", "")


@pytest.mark.parametrize(
    "module", ["kestrel_lab.runtime.services", "kestrel_lab.lab", "kestrel_lab.cli.main"]
)
def test_what_a_run_needs_loads_nothing_heavy(module: str) -> None:
    """Even the engine and the command line's entry load no data frames, plots, notebooks or model clients
    until they are used.
    """
    heavy = ("IPython", "litellm", "matplotlib", "mcp", "networkx", "pandas", "scipy")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("from kestrel_lab import Lab, tool", 160),
        ("import sys; sys.argv[1:] = ['--help']; from kestrel_lab.cli.overview import main; main()", 12),
    ],
)
def test_few_modules_of_the_package_are_loaded_at_the_start(statement: str, most: int) -> None:
    """What most programs begin with, and `kestrel --help`, load a bounded number of the package's modules,
    and no library to read files with.
    """
    told = (
        "print('loaded', sum(name.startswith('kestrel_lab') for name in sys.modules), [name for name "
        "in ('pydantic', 'yaml', 'jinja2') if name in sys.modules])"
    )
    code = f"import atexit, sys; atexit.register(lambda: {told}); {statement}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    _, number, heavy = done.stdout.splitlines()[-1].split(" ", 2)
    assert int(number) <= most
    assert heavy == "[]"


def every_protocol() -> dict[str, Any]:
    """The Protocols of the page that names them all."""
    return {
        name: value
        for name, value in vars(protocols).items()
        if inspect.isclass(value)
        and getattr(value, "_is_protocol", False)
        and value.__module__ == protocols.__name__
    }


FAKES: dict[str, Any] = {
    "Approver": testing.ScriptedApprover([]),
    "Check": testing.FixedCheck(passes=True),
    "Gatherer": testing.FixedGatherer(),
    "Memory": testing.ListMemory(),
    "Middleware": testing.RecordingMiddleware(),
    "Model": testing.ScriptedModel([]),
    "Reporter": testing.RecordingReporter(),
    "Surroundings": testing.RecordingSurroundings(),
    "Verifier": testing.ScriptedVerifier([]),
    "Watcher": testing.RecordingWatcher([]),
}


@pytest.mark.parametrize("name", sorted(every_protocol()))
def test_each_protocol_has_a_fake(name: str) -> None:
    """`kestrel_lab.testing` has a fake for the Protocol, with its members and parameters; mypy checks the
    types.
    """
    protocol, fake = every_protocol()[name], FAKES[name]
    for member, declared in vars(protocol).items():
        if member.startswith("_") and member != "__call__":
            continue
        if isinstance(declared, property):
            assert getattr(fake, member)
            continue
        offered = getattr(type(fake), member)
        assert list(inspect.signature(offered).parameters) == list(inspect.signature(declared).parameters)
        assert inspect.iscoroutinefunction(offered) == inspect.iscoroutinefunction(declared)


def test_imports_run_downhill() -> None:
    """No folder imports from one above it or beside it, in the order that `pyproject.toml` gives."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {name.strip(): number for number, names in enumerate(layers) for name in names.split("|")}
    uphill = []
    for path in MODULES:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts[:2])
        for target in parsed(path).imports if own in level else ():
            other = ".".join(target.split(".")[:2])
            if other in level and other != own and level[other] <= level[own]:
                uphill.append(f"{place(path)} imports {target}")
    assert len(level) >= 12
    assert uphill == []


def test_git_is_started_in_one_place_only() -> None:
    """Only `host/git.py` has git started: whoever starts it otherwise lets a repository's settings start
    programs.
    """
    readers = PACKAGE / "shell_syntax"  # which only reads command lines
    files = [path for path in MODULES if path != PACKAGE / "host" / "git.py" and readers not in path.parents]
    started = [where for path in files for where in parsed(path).git]
    assert started == []


def test_each_home_of_a_public_name_exists() -> None:
    """The lazy table and `__all__` name the same things, and each is where the table says."""
    assert set(kestrel_lab._HOMES) | {"__version__"} == set(kestrel_lab.__all__)
    assert all(hasattr(import_module(home), name) for name, home in kestrel_lab._HOMES.items())


def test_each_module_that_a_text_names_exists() -> None:
    """A docstring, comment or page that sends the reader to a module of the package sends them to one that is
    there.
    """
    packages = "|".join(sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
    named = re.compile(rf"`(?:kestrel_lab\.)?((?:{packages})(?:\.[a-z_]+)+)`")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
    missing = [
        f"{place(path)}: {name}"
        for path in (*MODULES, *pages, *ROOT.glob("*.md"))
        for name in named.findall(path.read_text(encoding="utf-8"))
        if name.rpartition(".")[2] not in {"json", "md", "py", "yaml"}  # a file of the user
        and not (PACKAGE / name.replace(".", "/")).is_dir()
        and not (PACKAGE / name.replace(".", "/")).with_suffix(".py").is_file()
        # the last part may be a name in the module
        and not (PACKAGE / name.rpartition(".")[0].replace(".", "/")).with_suffix(".py").is_file()
    ]
    assert missing == []


def test_no_text_names_a_package_registry() -> None:
    """Nothing in the repository depends on one registry, mirror or machine: no host of one is named, and no
    local path.
    """
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npm" + "js.org", "conda" + ".io", "anaconda" + ".org"]
    needles = [*hosts, "index" + "-url", str(ROOT)]
    suffixes = {
        ".py",
        ".md",
        ".toml",
        ".txt",
        ".yaml",
        ".yml",
        ".ipynb",
        ".css",
        ".js",
        ".html",
        ".cfg",
        ".lock",
        ".json",
        "",
    }
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    files = [ROOT / name for name in listed.stdout.splitlines()] or [
        path for path in ROOT.rglob("*") if ".git" not in path.parts
    ]
    found = [
        f"{place(path)}: {needle}"
        for path in files
        if path.is_file() and path.suffix in suffixes
        for text in [path.read_text(encoding="utf-8", errors="replace")]
        for needle in needles
        if needle in text
    ]
    assert found == []


def test_each_argument_has_a_line_of_its_own() -> None:
    """No `Args:` of a docstring runs two entries together: a model would be shown no description of the
    second.
    """
    run_together = [
        f"{place(path, node)} {node.name}: {name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for entries in [(ast.get_docstring(node) or "").partition("Args:\n")[2].partition("\n\n")[0]]
        for name in [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if re.search(rf"[.…)`] {re.escape(name)}: ", entries)
    ]
    assert run_together == []
