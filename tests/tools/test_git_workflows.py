"""Usual work with git over several commands ends under the guard as it ends with plain git, where nobody can be
asked.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from git_commands import ME, needs, run

from kestrel_lab.tools.sandbox.command_lines import launch_for
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment

DATES = {f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")}
SETUP = """
git init -q -b main .
git config user.name a; git config user.email a@b.c
for n in 1 2 3; do echo $n > f$n; mkdir -p d$n; echo $n > d$n/g; git add -A; git commit -qm "commit $n"; done
git branch side HEAD~1
git init -q -b main up; cd up; echo x > x; git add x; git -c user.name=u -c user.email=u@v.w commit -qm up; cd ..
echo up > .git/info/exclude
"""
EDITOR = "GIT_SEQUENCE_EDITOR='sed -i {}' GIT_EDITOR=true"
CONFLICT = "echo other > f3; git commit -qam other; git switch -q side; echo mine > f3; git add f3; git commit -qm mine"
LOCAL = "git -c protocol.file.allow=always"
WORKFLOWS: dict[str, list[str]] = {
    "commit": ["echo a > a; git add a", "git commit -qm a"],
    "amend": ["echo a >> f1; git commit -qam a", "git commit -q --amend -m b", "git commit -q --amend --no-edit"],
    "branch": ["git branch x; git switch -qc y", "git branch -m y z; git branch -d x", "git checkout -q main"],
    "merge": ["git switch -q side; echo s > s; git add s; git commit -qm s", "git switch -q main; git merge -q --no-edit side"],
    "fast forward": ["git switch -q side", "git merge -q --ff-only main"],
    "merge with conflict": [CONFLICT, "git merge main", "echo both > f3; git add f3", "git commit -q --no-edit"],
    "merge left undone": [CONFLICT, "git merge main", "git merge --abort"],
    "merge without commit": ["git switch -qc m HEAD~1; echo m > m; git add m; git commit -qm m", "git merge -q --no-ff --no-commit main", "git commit -qm merged"],
    "squash merge": ["git switch -qc m HEAD~1; echo m > m; git add m; git commit -qm m", "git merge -q --squash main", "git commit -qm squashed"],
    "rebase": [CONFLICT, "git rebase main", "echo both > f3; git add f3", "GIT_EDITOR=true git rebase --continue"],
    "rebase aborted": [CONFLICT, "git rebase main", "git rebase --abort"],
    "rebase skipped": [CONFLICT, "git rebase main", "git rebase --skip"],
    "rebase by mails": [CONFLICT, "git rebase --apply main", "echo both > f3; git add f3", "GIT_EDITOR=true git rebase --continue"],
    "rebase -i edit": [f"{EDITOR.format('1s/pick/edit/')} git rebase -i HEAD~2", "echo e > e; git add e; git commit -q --amend --no-edit", "git rebase --continue"],
    "rebase -i reword": [f"{EDITOR.format('1s/pick/reword/')} git rebase -i HEAD~2"],
    "rebase -i squash": [f"{EDITOR.format('2s/pick/squash/')} git rebase -i HEAD~2"],
    "rebase -i fixup": ["echo f >> f2; git commit -qa --fixup HEAD~1", f"{EDITOR.format('')} git rebase -i --autosquash HEAD~3"],
    "rebase -i break": [f"{EDITOR.format('1ibreak')} git rebase -i HEAD~2", "git log --oneline", "git rebase --continue"],
    "rebase of merges": ["git switch -qc m HEAD~1; echo m > m; git add m; git commit -qm m; git merge -q --no-ff --no-edit main", "git rebase -q --rebase-merges --force-rebase HEAD~2"],
    "rebase with stash": ["echo dirty >> f1; git switch -q side 2>/dev/null; git rebase -q --autostash main"],
    "cherry-pick": ["git switch -q side", "git cherry-pick main"],
    "cherry-pick with conflict": [CONFLICT, "git cherry-pick main", "echo both > f3; git add f3", "git cherry-pick --continue --no-edit || git -c core.editor=true cherry-pick --continue"],
    "several picks": [CONFLICT + "; echo z > z; git add z; git commit -qm z; git switch -q main", "git cherry-pick side~1 side", "git checkout -q --ours f3; echo q > f3; git add f3", "git -c core.editor=true cherry-pick --continue"],
    "picks aborted": [CONFLICT + "; git switch -q main", "git cherry-pick -X patience side side~1", "git cherry-pick --abort"],
    "revert": ["git revert --no-edit HEAD", "git revert --no-edit HEAD"],
    "revert with conflict": ["echo new > f1; git commit -qam new", "git revert --no-edit HEAD~3", "git rm -qf f1; git add -A", "git -c core.editor=true revert --continue"],
    "bisect by hand": ["git bisect start", "git bisect bad", "git bisect good HEAD~2", "git bisect good", "git bisect reset"],
    "bisect with terms": ["git bisect start --term-old fast --term-new slow HEAD HEAD~2 -- f1 d2", "git bisect skip; git bisect log", "git bisect reset"],
    "bisect run": ["git bisect start HEAD HEAD~2", "git bisect run test ! -e f3", "git bisect reset"],
    "stash": ["echo dirty > f1; echo n > n; git add n", "git stash push -q -m work", "git stash list; git stash show -p", "git stash pop -q"],
    "stash untracked": ["echo n > n", "git stash push -q -u", "git stash apply -q; git stash drop -q"],
    "stash branch": ["echo dirty > f1", "git stash -q", "git stash branch s >/dev/null"],
    "worktree": ["git worktree add -q wt side", "cd wt && echo w > w && git add w && git commit -qm w", "git worktree list >/dev/null; cd wt; git merge -q main --no-edit", "git worktree lock wt"],
    "worktree removed": ["git worktree add -q -b w wt", "git worktree remove wt", "git worktree prune; git branch -D w"],
    "submodule": [f"{LOCAL} submodule add -q ./up sub", "git commit -qm sub", "cd sub && echo s > s && git add s && git commit -qm s", "git add sub; git commit -qm 'sub moved'", f"{LOCAL} submodule update --init"],
    "submodule removed": [f"{LOCAL} submodule add -q ./up sub; git commit -qm sub", "git submodule deinit -q -f sub", "git rm -qf sub; git commit -qm gone"],
    "tags": ["git tag a; git tag -a b -m b", "git tag -d a; git tag -f b HEAD~1"],
    "notes": ["git notes add -m note", "git notes append -m more; git notes list >/dev/null"],
    "gc": ["git gc -q", "echo a > a; git add a; git commit -qm a", "git gc -q --prune=now"],
    "repack": ["git repack -adq", "git pack-refs --all", "git prune-packed -q; git commit-graph write; git multi-pack-index write"],
    "sparse checkout": ["git sparse-checkout set d1", "git sparse-checkout add d2", "echo a > d1/a; git add d1/a; git commit -qm a"],
    "sparse checkout ended": ["git sparse-checkout set --no-cone /f1", "git sparse-checkout disable"],
    "fetch": ["git remote add up ./up", "git fetch -q up", "git branch -q x up/main; git switch -q x", "git pull -q"],
    "push": ["git init -q --bare bare.git; git remote add origin ./bare.git", "git push -q -u origin main", "echo a > a; git add a; git commit -qm a; git push -q"],
    "remote": ["git remote add a ./up", "git remote rename a b", "git remote remove b"],
    "clone": ["git clone -q ./up copy", "cd copy && echo c > c && git add c && git commit -qm c"],
    "clone bare": ["git clone -q --bare . copy.git", "git clone -q --mirror ./up mirror.git"],
    "clone shallow": ["git clone -q --depth 1 file://$PWD copy", "cd copy; git fetch -q --unshallow"],
    "init": ["git init -q new", "cd new; echo n > n; git add n; git commit -qm n"],
    "reset": ["git reset -q --soft HEAD~1", "git reset -q", "git reset -q --hard ORIG_HEAD"],
    "restore": ["echo x > f1; rm f2", "git restore f1 f2; git restore -s HEAD~1 --staged --worktree ."],
    "switch": ["git switch -q --detach HEAD~1", "git switch -q -", "git checkout -q HEAD~2 -- f1; git clean -fdq -e up"],
    "mv and rm": ["git mv f1 m1; git rm -q f2", "git commit -qm moved"],
    "mails": ["git format-patch -q -o patches HEAD~2", "git reset -q --hard HEAD~2", "git am -q patches/*.patch"],
    "mails with conflict": ["git format-patch -q -o patches HEAD~1; echo other > f3; git add f3; git commit -qm other", "git am -q -3 patches/*.patch", "git am --skip || git am --abort"],
    "apply": ["git diff HEAD~1 > p; git reset -q --hard HEAD~1", "git apply --index p; git commit -qm applied"],
    "archive and bundle": ["git archive -o a.tar HEAD", "git bundle create -q b.bundle --all; git fetch -q b.bundle main:bundled"],
    "identity": ["git config user.name other; git config user.email o@p.q", "git commit -q --allow-empty -m who"],
    "description": ["git config branch.main.description 'what it is for'", "git branch --edit-description -h >/dev/null 2>&1; true"],
    "reflog": ["git reset -q --hard HEAD~1", "git reflog >/dev/null; git reset -q --hard HEAD@{1}"],
    "orphan": ["git switch -q --orphan o", "echo o > o; git add o; git commit -qm o"],
    "replay of an index": ["git update-index --refresh -q; git read-tree HEAD~1; git write-tree >/dev/null", "git read-tree HEAD; git checkout-index -fa"],
    "blame and log": ["git log -p >/dev/null; git blame f1 >/dev/null; git shortlog -s HEAD >/dev/null", "git diff HEAD~1 --stat >/dev/null; git grep -q 1"],
}  # fmt: skip
"""Each a list of commands, in which others than git's may fail as with plain git."""
QUESTIONS = (
    "git status --porcelain",
    "git log --all --format='%H %P %s %D' --date-order",
    "git for-each-ref",
    "git stash list",
    "git reflog -n 50 --format='%H %gs'",
    "git config --local --list",
    "git worktree list",
    "git submodule status",
    "git sparse-checkout list",
    "git ls-files -s -v -t",
    "git fsck --no-progress",
)


def plainly(root: Path, command: str) -> str:
    """Run a command as a person does, and return what it says."""
    env = clean_environment() | ME | DATES
    done = subprocess.run(
        ["bash", "-c", command], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def what_is_there(root: Path) -> dict[str, str]:
    """What git says of a repository and those within it, and all files outside of git's folders and of state in them."""
    found = {}
    gitdirs = [path.parent for path in sorted(root.rglob(".git"))]
    for place in [root, *gitdirs]:
        for question in QUESTIONS:
            found[f"{place.relative_to(root)} {question}"] = plainly(place, question)
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if (
            path.is_file()
            and "/objects/" not in f"/{name}"
            and not re.search(r"(?:^|/)(?:index|logs/.*|hooks/.*)$", name)
        ):
            found[name] = path.read_text(errors="replace")
    return {name: text.replace(str(root), "ROOT") for name, text in found.items() if ".kestrel/" not in name}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository in which each workflow begins."""
    root = tmp_path_factory.mktemp("start")
    assert plainly(root, f"set -e; {SETUP}").startswith("0")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("level", ["S3", "S1", "S0"])
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_ends_as_with_plain_git(level: str, name: str, start: Path, tmp_path: Path) -> None:
    """Files, refs, settings, state between commands and what git says are the same, and nobody is told of anything."""
    held = Level.S0 if level == "S0" else needs(level)
    trees = {how: tmp_path / how / "work" for how in ("plain", "guarded")}
    for tree in trees.values():
        shutil.copytree(start, tree, symlinks=True)
    for command in WORKFLOWS[name]:
        plain = plainly(trees["plain"], command)
        launch = launch_for(
            held,
            ["bash", "-c", command],
            workspace=trees["guarded"],
            env=clean_environment() | ME | DATES,
            sandbox=Sandbox(),
        )
        ended, _ = run(launch)
        assert (
            ended.exit_code,
            [note for note in ended.notes if ".git" in note.replace(".gitmodules", "")],
        ) == (
            int(plain.split("\n")[0]),
            [],
        ), (command, plain)
    assert what_is_there(trees["guarded"]) == what_is_there(trees["plain"])
