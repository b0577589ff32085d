"""Below `.git` a command leaves only what git's plain work makes: everything else is put back, named, and kept
aside for a person.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from git_commands import git, launched, make_repository, needs, run

from kestrel_lab.tools.sandbox.gitdir import git_grammar, git_guard
from kestrel_lab.tools.sandbox.gitdir.git_grammar import refusal
from kestrel_lab.tools.sandbox.gitdir.git_settings import read_settings, refused_settings

PICK = "mkdir -p .git/sequencer; git rev-parse HEAD > .git/sequencer/head; git rev-parse HEAD > .git/CHERRY_PICK_HEAD; "
REBASE = (
    "mkdir -p .git/rebase-merge; git rev-parse HEAD > .git/rebase-merge/onto; touch .git/rebase-merge/interactive; "
    "echo refs/heads/main > .git/rebase-merge/head-name; "
)
PLANTS = {
    # Settings, hooks and what git obeys.
    "fsmonitor": "printf '[core]\n\tfsmonitor = touch ran; false\n' >> .git/config",
    "an alias": "git config alias.st '!touch ran'",
    "settings in capitals": "printf '[CORE]\n\tHooksPath = /tmp\n' >> .git/config",
    "settings of the old form": "printf '[core.x]\nfsmonitor = y\n' >> .git/config",
    "settings without a line end": "printf '[core]fsmonitor=x' >> .git/config",
    "settings that go on": "printf '[core]\n\tfsmo\\\nnitor = y\n' >> .git/config",
    "an include": "git config include.path ../evil",
    "an include by folder": "git config includeIf.gitdir:/.path ../evil",
    "an editor": "git config core.editor 'touch ran'",
    "a diff": "git config diff.external 'touch ran'",
    "a filter": "git config filter.x.clean 'touch ran'",
    "a merge driver": "git config merge.x.driver 'touch ran'",
    "a helper": "git config credential.helper '!touch ran'",
    "a signer": "git config gpg.program ./evil; git config commit.gpgsign true",
    "other addresses": "git config url.ext::evil.insteadOf https:",
    "an address that is a program": "git remote add x 'ext::sh -c touch% ran'",
    "a program for packs": "git config remote.x.uploadpack 'touch ran'",
    "a submodule's program": "git config submodule.x.update '!touch ran'",
    "where pushes go": "git config remote.origin.url https://evil.example/x",
    "another place to push to": "git config remote.origin.pushurl https://evil.example/x",
    "a branch that goes elsewhere": "git remote add evil https://evil.example/x; git config branch.main.remote evil",
    "other files": "git config core.worktree /tmp",
    "settings of a worktree": "git config extensions.worktreeConfig true; printf '[core]\nfsmonitor = x\n' > .git/config.worktree",
    "a hook": "mkdir -p .git/hooks; echo 'touch ran' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit",
    "a hook gone": "rm .git/hooks/pre-push",
    "a hook changed": "echo true > .git/hooks/pre-push",
    "attributes": "mkdir -p .git/info; echo '* filter=x' > .git/info/attributes",
    "what is ignored": "echo '*.py' >> .git/info/exclude",
    "grafts": "mkdir -p .git/info; git rev-parse HEAD > .git/info/grafts",
    "a shared folder": "echo ../evil > .git/commondir",
    "a folder elsewhere": "echo /tmp > .git/gitdir",
    "other objects": "mkdir -p .git/objects/info; echo /tmp > .git/objects/info/alternates",
    "an old address": "mkdir -p .git/remotes; echo 'URL: ext::x' > .git/remotes/origin",
    "an old branch": "mkdir -p .git/branches; echo ext::x > .git/branches/b",
    "a recorded resolution": "mkdir -p .git/rr-cache/x; echo y > .git/rr-cache/x/postimage",
    "anything else": "echo x > .git/evil; mkdir -p .git/lfs; echo y > .git/lfs/x",
    # States between two commands.
    "a strategy": REBASE + "echo /tmp/evil > .git/rebase-merge/strategy",
    "a strategy in capitals": REBASE + "echo ORT > .git/rebase-merge/strategy",
    "options of a strategy": REBASE + "echo \"'--x=\\$(touch ran)'\" > .git/rebase-merge/strategy_opts",
    "a strategy of picks": PICK + "printf '[options]\n\tStrategy = evil\n' > .git/sequencer/opts",
    "a strategy of picks in a row": PICK + "printf '[Options] sTrategy=evil' > .git/sequencer/opts",
    "exec": REBASE + "echo 'exec touch ran' > .git/rebase-merge/git-rebase-todo",
    "x": REBASE + "printf 'pick %s\n \tx touch ran\n' $(git rev-parse HEAD) > .git/rebase-merge/git-rebase-todo",
    "exec behind a return": REBASE + "printf 'noop\rexec touch ran\n' > .git/rebase-merge/git-rebase-todo",
    "exec behind much": REBASE
    + "(yes '# a' | head -c 1200000; echo 'exec touch ran') > .git/rebase-merge/git-rebase-todo",
    "exec in picks": PICK + "echo 'exec touch ran' > .git/sequencer/todo",
    "an author that is a program": REBASE + "echo \"GIT_AUTHOR_NAME=\\$(touch ran)\" > .git/rebase-merge/author-script",
    "another variable": REBASE + "echo \"GIT_SSH='x'\" > .git/rebase-merge/author-script",
    "unsafe paths": "mkdir .git/rebase-apply; echo \" '--unsafe-paths'\" > .git/rebase-apply/apply-opt; echo 1 > .git/rebase-apply/next",
    "an unknown state": REBASE + "echo x > .git/rebase-merge/evil",
    "a bisection that throws work away": "echo -f > .git/BISECT_START",
    "a bisection with options": "git rev-parse HEAD > .git/BISECT_START; echo \" '--output=f'\" > .git/BISECT_NAMES",
    "a log of a bisection": "echo 'touch ran' > .git/BISECT_LOG",
    # Types, forms and sizes.
    "a pipe among refs": "mkfifo .git/refs/heads/x",
    "a pipe among remote refs": "mkdir -p .git/refs/remotes/o; mkfifo .git/refs/remotes/o/x",
    "a pipe among logs": "mkdir -p .git/logs/refs/heads; mkfifo .git/logs/refs/heads/x",
    "a pipe as a log": "mkdir -p .git/logs; rm -f .git/logs/HEAD; mkfifo .git/logs/HEAD",
    "a pipe among objects": "mkdir -p .git/objects/ab; mkfifo .git/objects/ab/$(printf %038d 0)",
    "a pipe among packs": "mkfifo .git/objects/pack/pack-$(printf %040d 0).idx",
    "a pipe in objects": "mkdir -p .git/objects/info; mkfifo .git/objects/info/commit-graph",
    "a pipe as settings": "rm -f .git/config; mkfifo .git/config",
    "a pipe as refs": "rm -f .git/packed-refs; mkfifo .git/packed-refs",
    "a pipe as an index": "rm .git/index; mkfifo .git/index",
    "a pipe as a head": "rm .git/HEAD; mkfifo .git/HEAD",
    "a pipe as a message": "mkfifo .git/MERGE_MSG",
    "a linked log": "mkdir -p .git/logs; rm -f .git/logs/HEAD; ln -s ../../../.bashrc .git/logs/HEAD",
    "a linked folder of objects": "ln -s ../../y .git/objects/zz",
    "a linked ref": "ln -s /etc/passwd .git/refs/heads/x",
    "a linked folder of refs": "ln -s /tmp .git/refs/x",
    "a linked index": "ln -sf ../../kept .git/index",
    "a linked message": "ln -sf ../../kept .git/COMMIT_EDITMSG",
    "a folder as a hook": "mkdir -p .git/hooks/post-merge.d; echo x > .git/hooks/post-merge.d/y",
    "a ref that is no id": "echo 'ref: ../../x' > .git/refs/heads/x",
    "a long ref": "yes a | head -c 100000 > .git/refs/heads/x",
    "another object": "mkdir -p .git/refs/replace; git rev-parse HEAD > .git/refs/replace/$(git rev-parse HEAD^{tree})",
    "another object in a list": "echo \"$(git rev-parse HEAD) refs/replace/$(git rev-parse HEAD^{tree})\" >> .git/packed-refs",
    "a head that is no id": "echo 'ref: ../x' > .git/HEAD",
    "an index that is none": "echo x > .git/index",
    "a log that is none": "mkdir -p .git/logs/refs/heads; echo x >> .git/logs/refs/heads/main",
    "an object that is none": "mkdir -p .git/objects/ab; echo x > .git/objects/ab/evil",
    # Repositories beside it.
    "settings of an inner one": "printf '[core]\nfsmonitor = x\n' >> inner/.git/config",
    "with an old time": "printf '[core]\nfsmonitor = x\n' >> inner/.git/config; touch -d 2001-01-01 inner/.git/config inner/.git inner .",
    "a hook of an inner one": "mkdir -p inner/.git/hooks; echo x > inner/.git/hooks/pre-commit",
    "a pipe of an inner one": "mkfifo inner/.git/refs/heads/x",
    "settings of a new one": "git init -q new; git -C new config core.fsmonitor 'touch ran'",
    "settings of a bare one": "git init -q --bare new; git -C new config core.fsmonitor 'touch ran'",
    "a copy": "cp -r inner sub; printf '[core]\nfsmonitor = x\n' >> sub/.git/config",
    "a file that names one": "mkdir sub; echo 'gitdir: ../other' > sub/.git",
    "a file that names one outside": "mkdir sub; echo 'gitdir: /tmp' > sub/.git",
    "a link": "mkdir sub; ln -s ../.git sub/.git",
    "a worktree outside": "mkdir -p .git/worktrees/w; echo ../.. > .git/worktrees/w/commondir; echo /tmp/x/.git > .git/worktrees/w/gitdir",
    "a worktree of another": "mkdir -p .git/worktrees/w; echo /tmp > .git/worktrees/w/commondir; git rev-parse HEAD > .git/worktrees/w/HEAD",
    "a hook of a module": "git init -q --bare .git/modules/m || mkdir -p .git/modules/m; mkdir -p .git/modules/m/hooks; echo x > .git/modules/m/hooks/post-checkout",
    "settings of a module": "git init -q --bare .git/modules/m; git --git-dir .git/modules/m config core.worktree /tmp",
}  # fmt: skip
"""Each is refused at every level."""


def files_below(folder: Path) -> dict[str, str]:
    """Return types and contents of all files of the git folders in a workspace."""
    found = {}
    for gitdir in (folder / ".git", folder / "inner/.git", folder / "new", folder / "sub/.git"):
        for path in [gitdir, *gitdir.rglob("*")] if os.path.lexists(gitdir) else []:
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                found[str(path)] = "no file"
            elif path.is_file() and path.name not in ("index", "HEAD.lock"):
                found[str(path)] = path.read_bytes().decode(errors="replace")
    return found


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """A repository with a remote, a hook and an inner repository."""
    repository = make_repository(tmp_path / "work")
    git(repository, "remote", "add", "origin", "https://example.org/x")
    git(repository, "config", "branch.main.remote", "origin")
    git(repository, "pack-refs", "--all")
    hook = repository / ".git/hooks/pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("exit 1\n")
    hook.chmod(0o755)
    git(repository, "init", "-q", "inner")
    (repository / ".git/objects/pack").mkdir(exist_ok=True)
    return repository


@pytest.mark.slow
@pytest.mark.parametrize("level", ["S3", "S1", "S0"])
@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_put_back_and_named(level: str, plant: str, guarded: Path) -> None:
    """Nothing that is not git's own work is left below `.git`, the command's answer says so, and git neither
    waits nor runs anything afterwards.
    """
    held = needs(level)
    before = files_below(guarded)
    ended, _ = run(launched(held, guarded, PLANTS[plant]))
    after = files_below(guarded)
    # At S3 hooks can only be read, and a file that no command of git made is gone with the private folder.
    named = any("below .git was put back" in note or "was not kept" in note for note in ended.notes)
    assert named or (level == "S3" and after == before), ended.notes
    changed = {path: text for path, text in after.items() if before.get(path) != text}
    # What passes is git's own: refs and states as git writes them, and the settings of a new repository.
    for path, text in changed.items():
        name = path.rpartition(".git/")[2] if ".git/" in path else path.rpartition("/new/")[2]
        plain = refusal(name, before.get(path, "").encode() or None, text.encode()) == ""
        assert plain or "modules/m/" in path, (path, text)
    assert {path for path in before if path not in after} == set()
    subprocess.run(["git", "status"], cwd=guarded, capture_output=True, check=True, timeout=60)
    subprocess.run(["git", "log", "--all"], cwd=guarded, capture_output=True, check=True, timeout=60)
    quiet, _ = run(launched(held, guarded, "git status >/dev/null"))
    assert quiet.notes == ()


OUTSIDE = {
    "a pipe": "mkfifo {common}/refs/heads/x",
    "a link": "ln -s /tmp {common}/refs/x",
    "another object": "mkdir -p {common}/refs/replace; git rev-parse HEAD > {common}/refs/replace/$(git rev-parse HEAD^{{tree}})",
    "no object": "echo x > {common}/objects/evil",
}  # fmt: skip


@pytest.mark.parametrize("level", ["S3", "S1"])
@pytest.mark.parametrize("plant", OUTSIDE)
def test_the_repository_of_a_worktree_is_guarded(level: str, plant: str, guarded: Path) -> None:
    """A command in a worktree leaves in its repository, which lies elsewhere, only what git's work makes."""
    git(guarded, "worktree", "add", "-q", "../tree")
    tree, common = guarded.parent / "tree", guarded / ".git"
    before = files_below(guarded)
    ended, _ = run(launched(needs(level), tree, OUTSIDE[plant].format(common=common)))
    assert ["was put back" in note for note in ended.notes] == [True], ended.notes
    assert files_below(guarded) == before
    quiet, _ = run(launched(needs(level), tree, "echo y > y; git add y; git commit -qm y"))
    assert (quiet.notes, git(tree, "log", "-1", "--format=%s")) == ((), "y\n")


def test_a_person_can_keep_what_was_put_back(guarded: Path) -> None:
    """It lies where the note says; moved back by a person, the next command leaves it alone."""
    ended, _ = run(launched(needs("S1"), guarded, PLANTS["an alias"]))
    (note,) = ended.notes
    place = guarded / note.split("is in ")[1].split(",")[0] / ".git/config"
    assert "alias" in place.read_text()
    shutil.move(place, guarded / ".git/config")
    after, _ = run(launched(needs("S1"), guarded, "git status >/dev/null; touch x; git add x"))
    assert after.notes == ()
    assert git(guarded, "config", "alias.st") == "!touch ran\n"


@pytest.mark.parametrize("level", ["S3", "S1"])
@pytest.mark.parametrize("form", ["2", "3", "4"])
@pytest.mark.parametrize("mark", ["assume-unchanged", "skip-worktree"])
def test_marks_that_hide_changes_are_cleared(level: str, form: str, mark: str, guarded: Path) -> None:
    """Git shows changes of a file that a command marked as unchanged, and the index is sound."""
    command = f"git update-index --index-version {form}; git update-index --{mark} f"
    ended, _ = run(launched(needs(level), guarded, command))
    assert f"f ({mark})" in ended.notes[-1]
    (guarded / "f").write_text("changed\n")
    assert git(guarded, "status", "--porcelain", "f") == " M f\n"
    git(guarded, "fsck", "--strict")


def test_marks_in_an_index_of_two_parts_are_told(guarded: Path) -> None:
    """There they cannot be cleared by a new content; the note names the command that does it."""
    command = "git update-index --skip-worktree f; git update-index --split-index"
    ended, _ = run(launched(needs("S1"), guarded, command))
    assert "f (skip-worktree)" in ended.notes[-1]
    assert "git update-index --no-assume-unchanged" in ended.notes[-1]


LETTERS = (
    '[core]\n\tbare = false\n[remote "a\\"b"]\n\turl = x # y\n\turl = "a;b" \\\n c\n[X]y\n\tz="\\t\\\\"\n'
)


def test_settings_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """Sections, subsections, quotes, comments, escapes and lines that go on mean what git says they mean."""
    (tmp_path / "config").write_text(LETTERS)
    listed = subprocess.run(
        ["git", "config", "--file", "config", "--list", "--null"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    found = [item.partition("\n") for item in listed.stdout.decode().split("\0") if item]
    expected: dict[str, list[str]] = {}
    for key, _, value in found:
        expected.setdefault(key, []).append(value)
    assert read_settings(LETTERS.encode()) == expected


@pytest.mark.parametrize(
    "text", ["[a", "[a]\nb c", '[a]\nb = "c', "x = y", "[a]\nb = \\q", "[a.b]\nc = d", "\0"]
)
def test_settings_that_git_would_not_read_are_refused(text: str) -> None:
    """What cannot be read for certain is no plain work."""
    assert refused_settings(b"", text.encode()) == ["a setting that cannot be read"]


def test_a_list_of_names_lets_plants_through(guarded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a grammar that refuses what it knows, and passes the rest, leaves an unknown file behind."""
    known = ("config", "hooks")

    def by_names(name: str, before: bytes | None, after: bytes | None, *_: object) -> str:
        return refusal(name, before, after) if name.partition("/")[0] in known else ""

    monkeypatch.setattr(git_guard, "refusal", by_names)
    ended, _ = run(launched(needs("S1"), guarded, PLANTS["a strategy"]))
    assert (ended.notes, (guarded / ".git/rebase-merge/strategy").exists()) == ((), True)


def test_no_more_is_read_than_git_writes() -> None:
    """A list of commits that is longer than git's is refused whatever it holds."""
    assert refusal("rebase-merge/git-rebase-todo", None, b"noop\n") == ""
    assert refusal("rebase-merge/git-rebase-todo", None, b"\n" * (git_grammar.MOST_TEXT + 1)) != ""
