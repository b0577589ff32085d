"""Attacks on rules, macros, the log's files and what is printed that nobody had listed: variants of those
that were found.
"""

import io
import os
import subprocess
from pathlib import Path

import apsw
import pytest
from rich.console import Console
from rich.text import Text
from waits import PATIENCE_S

from kestrel_lab.cli.build_server_output import HarmlessStream
from kestrel_lab.cli.main import main
from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import Progress, RunForked, RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.notebook.command_line import complete_command
from kestrel_lab.permissions.rulebook import read_rulebook
from kestrel_lab.shell_syntax.template import render_call


def verdict(kind: str, pattern: str, line: str) -> str:
    """What one rule says about a line; `-` for nothing."""
    ruling = read_rulebook([{"tool": "bash", "verdict": kind, "command": pattern}]).ruling(
        Call(id="c", kind="tool", target="bash", args={"command": line}), "/"
    )
    return ruling.verdict if ruling else "-"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("git push", "git -c alias.a=b -c alias.b=push a"),
        ("git push", "git -c 'alias.p=!f() { git push; }; f' p"),
        ("git push", "git.exe $'-C' . $'push'"),
        ("rm -rf", "rm --rec --forc x"),
        ("rm -r", "rm -R x"),
        ("pip install", "uv --offline pip install x"),
        ("pip install", "python3.12 -I -X dev -W ignore -m pip -q install x"),
        ("docker run --privileged", "docker -H x container run -it --privileged=true img"),
        ("git reset --hard", "git -C . reset HEAD~1 --hard"),
        ("terraform destroy", "tofu -chdir=x destroy"),
        ("npm publish", "npm --loglevel silent --prefix=x pub"),
        ("gh repo delete", "gh repo --hostname x delete y"),
    ],
)
def test_a_denied_command_in_other_words(pattern: str, line: str) -> None:
    """Aliases of aliases, abbreviations, other spellings of a program and of an option: all are denied."""
    assert verdict("deny", pattern, line) == "deny"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("git log ...", "git log -pO/etc/passwd"),
        ("git show ...", "git show --no-patch --ext-dif"),
        ("git diff ...", "git diff -w -- x --output=y"),
        ("find ...", "find -name x -ok rm {} \\;"),
        ("rg ...", "rg --hostname-bin=./x --hyperlink-format=default y"),
        ("go test ...", "go test -exec ./x ./..."),
        ("pytest ...", "pytest --override-ini=python_files=x"),
        ("kubectl get ...", "kubectl get pods --as=root"),
        ("uv run pytest ...", "uv run --with evil pytest"),
    ],
)
def test_an_allowed_command_made_wider(pattern: str, line: str) -> None:
    """An option in a cluster, behind `--`, abbreviated, or of a program nobody named: none is allowed."""
    assert verdict("allow", pattern, line) != "allow"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sort {{a}}{{b}} x", ("", "--output=PWNED")),
        ("echo '{{a}}' \"{{b}}\"", ("'", "; touch PWNED; '")),
        ("echo {{a}}\\ {{b}}", ("\\", "; touch PWNED")),
        ("echo {{a}} | cat > {{b}}", ("$(touch PWNED)", "x;touch PWNED")),
        ("echo {{{a}},{{b}}}", ("x}; touch PWNED; {", "y")),
        ('echo "$(echo "$(echo \'{{a}}\' {{b}})")"', ('\')"; touch PWNED; "', "x`touch PWNED`")),
    ],
)
def test_two_values_that_work_together(text: str, values: tuple[str, str], tmp_path: Path) -> None:
    """Values that are harmless each and hostile beside each other run nothing."""
    (tmp_path / "x").write_text("b\na\n")
    try:
        line = str(render_call({"command": text}, {"a": values[0], "b": values[1]})["command"])
    except UsageError:
        return
    subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    assert not (tmp_path / "PWNED").exists(), line


def test_a_fork_that_is_put_below_another_parent(tmp_path: Path) -> None:
    """The row of a fork that names another parent with as many events is not believed."""
    path = tmp_path / "home/k.db"
    store = SessionStore(path)
    for name in ("a", "b"):
        store.create_run(name, RunStarted(goal=name, workspace="/w", model="m"))
        store.append(name, Progress(text=name)).result()
    store.fork_run("f", RunForked(parent="a", at=2, model="m"), RunStatus.PLANNING)
    store.flush()
    assert store.damage("f") is None
    store.close()
    raw = apsw.Connection(str(path))
    raw.execute("DROP TRIGGER runs_identity")
    raw.execute("UPDATE runs SET parent = 'b' WHERE id = 'f'")
    raw.close()
    store = SessionStore(path)
    assert store.damage("f") is not None
    store.close()


def test_files_that_sqlite_makes_again(tmp_path: Path) -> None:
    """After the last connection closed, the write-ahead log is made anew, and still for the owner alone,
    whatever the umask.
    """
    home = tmp_path / "home"
    before = os.umask(0)
    try:
        for number in range(2):
            store = SessionStore(home / "kestrel.db")
            store.create_run(str(number), RunStarted(goal="g", workspace="/w", model="m"))
            store.flush()
            assert {path.name for path in home.iterdir() if path.lstat().st_mode & 0o077} == set()
            store.close()
    finally:
        os.umask(before)


def test_a_link_in_the_place_of_the_log(tmp_path: Path) -> None:
    """A link that somebody put where the log should be leads to no file of another kind being taken for
    it.
    """
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "theirs").write_text("not a database, and long enough to be looked at " * 20)
    (home / "kestrel.db").symlink_to(tmp_path / "theirs")
    with pytest.raises(StoreError):
        SessionStore(home / "kestrel.db")
    assert (tmp_path / "theirs").read_text().startswith("not a database")


@pytest.mark.parametrize("width", [20, 200])
def test_an_order_that_a_line_break_makes(width: int) -> None:
    """Text that is not an order until the console breaks the line is none then."""
    behind = io.StringIO()
    console = Console(file=HarmlessStream(behind), width=width, force_terminal=False)  # type: ignore[arg-type]
    console.print(Text("x" * (width - 1) + " ::add-mask::y and " + "z" * width + "::error::y"))
    assert not [line for line in behind.getvalue().splitlines() if line.strip().startswith("::")]
    assert "add-mask" in behind.getvalue().replace("\n", "")


@pytest.mark.parametrize("kind", ["folder", "utf-16", "loop", "bom", "unreadable keys"])
def test_settings_of_odd_kinds(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder, another encoding, a link to itself or hidden signs in the place of the settings: one line or
    no harm.
    """
    monkeypatch.chdir(tmp_path)
    path = Path("kestrel.toml")
    {
        "folder": lambda: path.mkdir(),
        "utf-16": lambda: path.write_text("cycles = 3", "utf-16"),
        "loop": lambda: path.symlink_to(path),
        "bom": lambda: path.write_text("\ufeffcycles = 3", "utf-8"),
        "unreadable keys": lambda: path.write_text('"\u202e\\u0000::error::" = 3', "utf-8"),
    }[kind]()
    with pytest.raises(SystemExit) as end:
        main(["config"])
    err = capsys.readouterr().err
    assert end.value.code == 0 or (
        err.count("\n") == 1 and "bug in kestrel" not in err and "Traceback" not in err
    )
    assert not err.startswith("::")


@pytest.mark.parametrize(
    "line", ["--as=r goal", "--approve auto -- --goal", "--tools bash,x goal", "-x goal"]
)
def test_a_line_and_a_cell_mean_the_same(line: str) -> None:
    """Whatever options a line begins with, its words are those that a cell's first line would have."""
    assert (
        complete_command(line.split(), cell=False)
        == complete_command(line.split(), cell=True)
        == ["run", *line.split()]
    )
    assert complete_command(["--help"], cell=False) == ["--help"]
