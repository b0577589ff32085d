"""Rules about programs with sub-commands: what comes before a sub-command hides it from no rule, and widens
none.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest

from kestrel_lab.core.calls import Call
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook
from kestrel_lab.shell_syntax.parser import read_line


def call(line: str) -> Call:
    """A call of bash."""
    return Call(id="c", kind="tool", target="bash", args={"command": line})


def book(verdict: str, pattern: str) -> Rulebook:
    """One rule about commands."""
    return read_rulebook([{"tool": "bash", "verdict": verdict, "command": pattern}])


def judged(verdict: str, pattern: str, line: str) -> str:
    """The verdict of one rule; `-` where it says nothing."""
    ruling = book(verdict, pattern).ruling(call(line), "/")
    return ruling.verdict if ruling else "-"


PUSHES = """
git push
git -C . push
git --no-pager push
git -c k=v push
git -ck=v push
git --git-dir=.git --work-tree . push
git --git-dir .git push origin
git --exec-path=/x push
git -c alias.p=push p
git -c alias.p='push --force' p
git -c alias.p='!git -C . push' p
git config alias.p push && git p
git config --global alias.p '!git -C . push'
/usr/bin/git -C . push
command git -C . push
env X=Y git -P push
X=Y git -p push
g""it -C x p\\ush
git-push
/usr/lib/git-core/git-push origin
sudo -u me git -C . push
bash -c 'git -C . push'
echo $(git --no-pager push)
xargs git -C . push
git --not-known push
git --not-known x push
GIT push
git -C $x push
"""
FORBIDDEN = [
    *(("git push ...", line) for line in PUSHES.strip().splitlines()),
    ("docker push", "docker -H tcp://x push a"),
    ("docker push", "docker --context c image push a"),
    ("docker rm", "docker container rm x"),
    ("docker compose down", "docker-compose -f x down"),
    ("kubectl delete ...", "kubectl --kubeconfig k -n prod delete pod x"),
    ("kubectl delete", "kubectl -nprod delete pod"),
    ("npm publish", "npm --prefix x publish"),
    ("npm publish", "npm publ"),
    ("npm install", "npm -g i x"),
    ("pip install", "pip3.11 --proxy x install y"),
    ("pip install", "python3 -m pip --no-input install x"),
    ("pip install", "python -Im pip install y"),
    ("pip install", "uv run python -m pip install x"),
    ("uv publish", "uv --directory x publish"),
    ("cargo publish", "cargo --config x publish"),
    ("cargo publish", "cargo +nightly publish"),
    ("systemctl stop", "systemctl --user -H h stop x"),
    ("gh pr merge", "gh -R a/b pr merge 3"),
    ("gh pr merge", "gh pr -R a/b merge 3"),
    ("aws s3 rm", "aws --profile p s3 --region x rm s3://x"),
    ("terraform destroy", "terraform -chdir=x destroy"),
    ("terraform apply -auto-approve", "terraform apply --auto-approve"),
    ("helm uninstall", "helm -n x delete y"),
    ("make deploy", "make -C x deploy"),
    ("make deploy", "make V=1 clean deploy"),
    ("not-known sub ...", "not-known -v sub"),
    ("not-known sub", "not-known --x y sub"),
    ("not-known sub x", "not-known sub -q x"),
    ("rm -rf", "rm -fr x"),
    ("rm -rf", "rm -r -f x"),
    ("rm -rf", "rm x -vrf"),
    ("git push --force", "git push origin --forc"),
    ("git push --force", "git -C x push origin main --force=true"),
    ("git push -f", "git push -uf"),
    ("curl -X POST", "curl -sXPOST u"),
    ("curl -X POST", "curl u -X POST"),
    ("git push origin main", "git push -v origin --tags main"),
    ("rm -rf", "rm --rec --forc x"),
    ("rm -rf", "rm --r --f x"),
    ("rm -f x", "rm x -f"),
    ("tar -xz", "tar -x -z a.tgz"),
    ("git push --mirror", "git push --mirr"),
    ("git remote add", "git remote --odd=1 add x"),
    ("ip link", "ip l set eth0 down"),
    ("nmcli device", "nmcli d"),
    ("rm -r", "rm -R x"),
    ("git push --force", "git push -f"),
    ("pip install", "uv --offline pip install x"),
    ("git push", "git -c alias.a=b -c alias.b=push a"),
    ("rm", "git -C . bisect run rm x"),
    ("rm", "git submodule foreach 'rm x'"),
    ("rm", "git -c core.pager='rm x' log"),
]
PERHAPS = [
    ("git push", "git --config-env=alias.p=X p"),
    ("git push", "git --config-env alias.p=X p"),
    ("git push", "git -c include.path=/x p"),
    ("git push", "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p"),
    ("git push", "git $x push"),
]
OTHERS = [
    *(
        ("git push", line)
        for line in (
            "git status",
            "git commit -m push",
            "git log push",
            "git -C push log",
            "git -P show push",
        )
    ),
    *(
        ("git push", line)
        for line in (
            "git log --grep push",
            "echo git push",
            "git pull",
            "git stash push",
            "git -c user.name=x status",
        )
    ),
    ("npm run deploy", "npm run test"),
    ("rm -rf", "rm -r x"),
    ("find -delete", "find . -follow -depth -type f"),
    ("docker rm", "docker run --rm x"),
    ("pip install", "pip list"),
    ("uv pip install", "pip install x"),
    ("kubectl delete", "kubectl -n delete get pods"),
    ("git push --force", "git push --follow-tags"),
    ("git push --mirror", "git push -- x"),
    ("rm -rf", "rm -- x"),
    ("ip link", "ip '' set eth0 down"),
]


def wrong(judge: Callable[[str, str], str]) -> list[tuple[str, str, str]]:
    """Lines of which a judge of rules that deny says something else than it should."""
    wanted = [
        *((*one, "deny") for one in FORBIDDEN),
        *((*one, "ask") for one in PERHAPS),
        *((*one, "-") for one in OTHERS),
    ]
    return [
        (pattern, line, said) for pattern, line, right in wanted if (said := judge(pattern, line)) != right
    ]


def test_options_before_a_sub_command_hide_it_from_no_rule() -> None:
    """A forbidden sub-command is found behind options, by other names of its program and through aliases;
    others are left alone.
    """
    assert wrong(lambda pattern, line: judged("deny", pattern, line)) == []


def test_a_reading_word_by_word_is_caught() -> None:
    """The mutant: words of the pattern are held against the words at the same place, as rules did before."""

    def by_place(pattern: str, line: str) -> str:
        words = pattern.removesuffix(" ...").split()
        commands = read_line(line).commands
        return (
            "deny"
            if any(
                all(map(fnmatchcase, [w or "" for w in one], words)) and len(one) >= len(words)
                for one in commands
            )
            else "-"
        )

    assert len([one for one in wrong(by_place) if one[2] == "-"]) > 40


COVERED = [
    *(
        ("git diff ...", line)
        for line in ("git diff", "git diff HEAD~1 -- src", "git diff -w --stat=80", "git diff -U3 a")
    ),
    *(("git diff ...", line) for line in ("git diff --cached --name-only", "git diff '@{u}'")),
    ("git log ...", "git log --oneline -5"),
    ("git log ...", "git log -n 5 --format=%H --since=1.day"),
    ("pytest ...", "pytest -q -x tests -k 'a or b'"),
    ("python -m pytest ...", "python -m pytest -q"),
    ("rg ...", "rg -n foo"),
    ("find ...", "find . -name '*.py'"),
    ("sort ...", "sort -rn x"),
    ("kubectl get ...", "kubectl get pods -n x -o yaml"),
    ("docker ps ...", "docker ps -a"),
    ("git push --tags ...", "git push --tags o"),
    ("git ... push ... -f", "git -C x push a -f"),
    ("make ...", "make -j4 test"),
    ("git ... log ...", "git -C x --no-pager log -c -p"),
    ("not-known ...", "not-known --x"),
]
WIDER = [
    *(
        ("git diff ...", f"git diff {more}")
        for more in ("--output=x", "--output x", "--outp=x", "--ext-diff", "--textconv", "-O x", "-wO x")
    ),
    *(
        ("git diff ...", f"git diff {more}")
        for more in ("-S -- --output=x", "-- --output=x", "--no-index a b", "$x", "*")
    ),
    *(
        ("git diff ...", f"git {more} diff")
        for more in ("-c core.pager=x", "--exec-path=x", "-C x", "-P", "--git-dir x")
    ),
    ("git diff ...", "GIT_PAGER=x git diff"),
    ("git status", "git -c core.fsmonitor=x status"),
    ("git ... push ... -f", "git -c x=y push -f"),
    ("git log ...", "git log --output=x"),
    ("git show ...", "git show --ext-diff"),
    ("git grep ...", "git grep -Oless x"),
    ("git grep ...", "git grep --open-files-in-pager=x y"),
    ("git push ...", "git push --receive-pack=x o"),
    ("pytest ...", "pytest -p evil"),
    ("pytest ...", "pytest --basetemp=/x"),
    ("pytest ...", "pytest @x"),
    ("python -m pytest ...", "python -m pytest --pastebin=all"),
    ("rg ...", "rg --pre=x y"),
    ("find ...", "find . -delete"),
    ("find ...", "find . -fprintf x y"),
    ("sort ...", "sort -o x y"),
    ("kubectl get ...", "kubectl --kubeconfig=x get pods"),
    ("kubectl get ...", "kubectl get pods --kubeconfig=x"),
    ("docker ps ...", "docker -H x ps"),
    ("make ...", "make -f x"),
    ("npm run ...", "npm run build --script-shell=x"),
    ("cargo test ...", "cargo test --config x"),
    *(
        (f"git ... {sub} ...", f"git -c core.fsmonitor=x {sub}")
        for sub in ("log", "blame", "shortlog", "ls-files", "grep")
    ),
    ("git ... log", "git -c core.pager=x log"),
    ("git log ...", "git log --format=%G?"),
    ("git log ...", "git log --pretty %H%GK"),
    ("make ...", "make SHELL=x test"),
    ("pip list ...", "pip list --outdated"),
    ("go list ...", "go list -m -u all"),
]


@pytest.mark.parametrize(("pattern", "line"), COVERED)
def test_what_an_allowing_rule_covers(pattern: str, line: str) -> None:
    """`...` stands for words and for options that shape what is shown; of a program that is not known for
    every option.
    """
    assert judged("allow", pattern, line) == "allow"


@pytest.mark.parametrize(("pattern", "line"), WIDER)
def test_no_option_widens_an_allowing_rule(pattern: str, line: str) -> None:
    """Options that write, run or reach elsewhere, and options before the sub-command, are allowed only where
    the rule has them.
    """
    assert judged("allow", pattern, line) == "-"


def test_a_rule_in_which_dots_stand_for_every_option_is_caught() -> None:
    """The mutant: `...` read as any words, as rules did before, lets options that write and run pass."""
    passed = [line for pattern, line in WIDER if rulebook_of_any(pattern, line)]
    assert len(passed) > 15


def rulebook_of_any(pattern: str, line: str) -> bool:
    """Whether a rule whose `...` covers every word would allow a line."""
    (one,) = book("allow", pattern).rules[0].commands["command"]
    return not read_line(line).unclear and all(
        one._allows(command, {}) for command in read_line(line).commands
    )


def test_why_an_option_is_not_covered_is_said() -> None:
    """Whoever tries a line is told which word no rule covers."""
    told = book("allow", "git diff ...").unclear(call("git diff --stat --output=x"))
    assert "`git diff ...` does not cover --output=x" in told
    assert "does not cover -c" in book("allow", "git ... log ...").unclear(call("git -c a=b log --oneline"))
    assert "does not cover --ext-diff" in book("allow", "git diff ... -- ...").unclear(
        call("git diff -w --ext-diff -- x")
    )
    assert "does not cover an unknown word" in book("allow", "git diff ...").unclear(
        call("git diff --stat $x")
    )
    for line in ("git status", "git status --output=x"):
        assert book("allow", "git diff ...").unclear(call(line)) == ""
