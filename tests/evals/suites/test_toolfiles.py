"""Tools from files: found, fresh, and without a trace."""

import sys

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.suites.python_files import load_function, load_tools

TOOLS = '''\
from kestrel_lab import tool
import part

@tool
def say() -> str:
    """Say something."""
    return part.WORD
'''


def test_edits_are_seen_and_nothing_is_left(tmp_path):
    """A helper module that changed is read again; modules, path and folders are as before."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "part.py").write_text("WORD = 'one'\n")
    path, modules = list(sys.path), {name for name in sys.modules if not name.startswith("kestrel_")}
    first = load_tools(tmp_path / "tools.py")[0]
    (tmp_path / "part.py").write_text("WORD = 'two'\n")
    second = load_tools(tmp_path / "tools.py")[0]
    assert (first(), second()) == ("one", "two")
    assert sys.path == path
    assert "part" not in sys.modules
    assert {name for name in sys.modules if not name.startswith("kestrel_")} == modules
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.py", "tools.py"]


def test_modules_of_the_same_name_elsewhere_are_kept_apart(tmp_path):
    """Two projects with a module of the same name each get their own."""
    found = []
    for word in ("left", "right"):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "tools.py").write_text(TOOLS)
        (folder / "part.py").write_text(f"WORD = {word!r}\n")
        found.append(load_tools(folder / "tools.py")[0])
    assert [tool() for tool in found] == ["left", "right"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "defines no tools: decorate functions with @tool"),
        ("import nothing_there\n", "No module named 'nothing_there'"),
        ("(", "SyntaxError"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, text, message):
    """A file without tools or with an error is named with the reason."""
    (tmp_path / "tools.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        load_tools(tmp_path / "tools.py")


def test_a_function_is_taken_by_its_name(tmp_path):
    """A scripted model's function comes from the file as it is now; a wrong name is told with the nearest
    right one.
    """
    (tmp_path / "part.py").write_text("WORD = 'one'\n")
    (tmp_path / "script.py").write_text("import part\n\ndef reasoner(request):\n    return part.WORD\n")
    assert load_function(tmp_path / "script.py", "reasoner")(None) == "one"
    assert "part" not in sys.modules
    with pytest.raises(UsageError, match=r"script.py has no function 'reasonr'; did you mean 'reasoner'\?"):
        load_function(tmp_path / "script.py", "reasonr")
    (tmp_path / "script.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(
        UsageError,
        match=r"a function is to come from .*script.py, which cannot be imported: ModuleNotFoundError",
    ):
        load_function(tmp_path / "script.py", "reasoner")
