"""Options before a program's sub-command, and other spellings of the same command.

Deny rules need this: `git -C x push`, `git-push`, and `git -c alias.p=push p` are all `git push`. Unknown
programs are read cautiously: any option may take the next word as its value.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

Command = tuple[str | None, ...]
"""A program and its arguments; `None` is any number of unknown words."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command that come before the command it runs, or before its sub-command."""

    flags: str = ""
    """Letters of flags without a value."""
    values: str = ""
    """Letters of those that are followed by a value."""
    words: str = ""
    """Long flags without a value."""
    valued: str = ""
    """Long ones that are followed by a value."""
    before: int = 0
    """Number of other words before the command."""
    assigns: bool = False
    """True if `NAME=value` may precede the command."""
    dash: bool = False
    """True if a lone `-` may precede the command."""

    def takes_next(self, option: str) -> bool | None:
        """Return true if an option takes the next word; `None` if unknown."""
        name, joined, _ = option.lstrip("-").partition("=")
        if option.startswith("--"):
            if joined or name in self.words.split():
                return False
            return True if name in self.valued.split() else None
        # Joined letters: one with a value takes the rest of its word, or the next word if it is the last
        # letter.
        for number, letter in enumerate(option[1:], 1):
            if letter in self.values:
                return number == len(option) - 1
            if letter not in self.flags:
                return None
        return False


_PNPM = Options("hrsv", "CF", "silent recursive workspace-root", "dir filter reporter loglevel")
_NPM = Options(
    "dghlqsv",
    "Cw",
    "silent quiet verbose global json long",
    "prefix workspace loglevel registry userconfig cache",
)
_PIP = Options(
    "hVvq",
    "",
    "verbose quiet isolated debug no-input disable-pip-version-check no-color require-virtualenv",
    "log proxy retries",
)
_CLUSTER = Options(
    "h",
    "nsv",
    "",
    "namespace context cluster kubeconfig server token user as as-group cache-dir request-timeout "
    "certificate-authority",
)

PROGRAMS: dict[str, Options] = {
    "git": Options(
        "pPvh",
        "Cc",
        "paginate no-pager bare no-replace-objects literal-pathspecs glob-pathspecs noglob-pathspecs "
        "icase-pathspecs "
        "no-optional-locks no-advice no-lazy-fetch html-path man-path info-path version help exec-path",
        "git-dir work-tree namespace super-prefix config-env attr-source list-cmds",
    ),
    "hg": Options(
        "yqvh",
        "R",
        "quiet verbose debug debugger traceback time profile noninteractive",
        "repository cwd config color pager",
    ),
    "docker": Options(
        "Dv", "Hcl", "debug tls tlsverify version", "config context host log-level tlscacert tlscert tlskey"
    ),
    "podman": Options(
        "rv",
        "c",
        "remote version",
        "connection url identity log-level root runroot storage-driver storage-opt",
    ),
    "kubectl": _CLUSTER,
    "oc": _CLUSTER,
    "helm": Options(
        "h",
        "n",
        "debug",
        "namespace kube-context kubeconfig registry-config repository-cache repository-config",
    ),
    "npm": _NPM,
    "yarn": _NPM,
    "pnpm": _PNPM,
    "pip": _PIP,
    "uv": Options(
        "qvnh",
        "",
        "quiet verbose offline no-cache no-config no-progress native-tls",
        "directory project config-file cache-dir color",
    ),
    "poetry": Options(
        "qnvhV", "CP", "quiet no-interaction no-plugins no-cache ansi no-ansi verbose", "directory project"
    ),
    "cargo": Options("qvVh", "CZ", "quiet verbose locked offline frozen list", "color config explain"),
    "go": Options("", "C"),
    "systemctl": Options(
        "alqh",
        "tpPsMHno",
        "all full quiet user system global force now no-pager no-block",
        "type property signal machine host",
    ),
    "gh": Options("h", "R", "help version", "repo hostname"),
    "aws": Options(
        "",
        "",
        "debug no-verify-ssl no-paginate no-sign-request no-cli-pager",
        "endpoint-url output query profile region color ca-bundle cli-read-timeout cli-connect-timeout",
    ),
    "gcloud": Options(
        "qh", "", "quiet", "project account configuration format verbosity impersonate-service-account"
    ),
    "az": Options("h", "o", "debug verbose", "output query subscription"),
    "terraform": Options("", "", "version help", ""),
    "make": Options(
        "bmBdeikLnpqRrstSvw",
        "CfIjloW",
        "silent keep-going dry-run always-make print-directory quiet",
        "directory file makefile include-dir",
    ),
    "brew": Options("dqvh"),
    "apt": Options("qyhs", "coat", "yes quiet assume-yes", "config-file option"),
    "conda": Options("hV"),
}
"""Options before the sub-command of each program."""

WORDS_BEHIND_ONE_DASH = frozenset(
    ["find", "fd", "java", "javac", "terraform", "go", "openssl", "ffmpeg", "convert", "magick", "xrandr"]
)
"""Programs for which `-abc` is one option, not the options a, b and c."""

SEVERAL = frozenset(["make", "ninja", "gradle", "gradlew", "mvn", "mvnw", "ant", "rake"])
"""Programs that do all of several things, in any order: `make clean deploy` is `make deploy` too."""
ABBREVIATES = frozenset(["npm", "hg", "ip", "nmcli"])
"""Programs that take the beginning of a sub-command for it."""

_SAME_NAME = (
    (re.compile(r"pip\d(?:\.\d+)?"), "pip"),
    (re.compile(r"python\d?(?:\.\d+)?|py|pypy\d?"), "python"),
    (re.compile(r"gmake|mingw32-make"), "make"),
    (re.compile(r"apt-get|aptitude"), "apt"),
    (re.compile(r"tofu"), "terraform"),
    (re.compile(r"mamba|micromamba"), "conda"),
)
_SAME = {
    "git": "stage = add",
    "npm": (
        "i = install, add = install, in = install, run-script = run, rum = run, urn = run, x = exec, t "
        "= test, rm = uninstall, "
        "un = uninstall, remove = uninstall"
    ),
    "pnpm": "i = install",
    "cargo": "b = build, r = run, t = test, rm = remove",
    "helm": "del = uninstall, delete = uninstall, un = uninstall",
    "docker": (
        "rmi = image rm, rm = container rm, run = container run, exec = container exec, kill = "
        "container kill, "
        "push = image push, pull = image pull, build = image build"
    ),
}
_SAME_SUBCOMMAND: dict[tuple[str, str], tuple[str, ...]] = {
    (program, one.split()[0]): tuple(one.split()[2:])
    for program, words in _SAME.items()
    for one in words.split(", ")
}
"""Sub-commands that other words do the same as."""
_SAME_SUBCOMMAND |= {
    ("podman", sub): same for (name, sub), same in _SAME_SUBCOMMAND.items() if name == "docker"
}


@lru_cache(maxsize=256)
def command_spellings(command: Command) -> tuple[Command, ...]:
    """Return the command as written and in its other spellings."""
    found = [command]
    if not command or command[0] is None:
        return (command,)
    # The list grows while it is read.
    for one in found:
        for other in (_by_name(one), _of_module(one), *_by_alias(one), _by_synonym(one)):
            if other and other not in found and len(found) < _MOST:
                found.append(other)
    return tuple(found)


_MOST = 12
MEANS = {"f": "force", "r": "recursive", "R": "recursive", "y": "yes", "a": "all", "g": "global"}
"""Conventional meanings of letters: `-rf` is `--recursive --force`."""


def command_readings(command: Command) -> tuple[Command, ...]:
    """Return the spellings of a command, and those of the `pip` that `uv pip` takes the place of."""
    found = command_spellings(command)
    place = subcommand_at(command) if command and name_of(command[0] or "") == "uv" else None
    return (
        (*found, *command_spellings(command[place:]))
        if place is not None and command[place] == "pip"
        else found
    )


def name_of(word: str) -> str:
    """Return a program's usual name, without its folder and its version."""
    name = word.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".exe")
    return next((usual for pattern, usual in _SAME_NAME if pattern.fullmatch(name)), name)


def subcommand_at(command: Command) -> int | None:
    """Return the position of the word after the leading options; `None` if unknown or missing."""
    options = PROGRAMS.get(name_of(command[0] or ""), Options())
    place = 1
    while place < len(command) and (word := command[place]) is not None:
        if not word.startswith("-") or word == "-":
            return place
        takes = options.takes_next(word)
        if takes is None:
            return None
        place += 1 + takes
    return None


def _by_name(command: Command) -> Command:
    """`pip3` is `pip`; `git-push` is `git push`."""
    name = name_of(command[0] or "")
    program, dash, sub = name.partition("-")
    if dash and sub and program in PROGRAMS:
        return (program, sub, *command[1:])
    return (name, *command[1:])


def _of_module(command: Command) -> Command:
    """`python -m pip` is `pip`."""
    if name_of(command[0] or "") != "python":
        return ()
    place = 1
    while (
        place < len(command)
        and (word := command[place]) is not None
        and word.startswith("-")
        and not word.startswith("--")
    ):
        before, m, module = word[1:].partition("m")
        if m and not set(before) & set("XW"):
            return (module, *command[place + 1 :]) if module else command[place + 1 :]
        place += 2 if word[-1] in "XW" else 1
    return ()


def _by_synonym(command: Command) -> Command:
    place = subcommand_at(command)
    if place is None:
        return ()
    program, sub = name_of(command[0] or ""), command[place] or ""
    same = _SAME_SUBCOMMAND.get((program, sub))
    return (*command[:place], *same, *command[place + 1 :]) if same else ()


_ALIAS = re.compile(r"alias\.([^=.]+)(?:\.command)?(?:=(.*))?", re.IGNORECASE | re.DOTALL)


def _by_alias(command: Command) -> list[Command]:
    """Return what `git -c alias.p=push p` runs, and what `git config alias.p push` makes `git p` run.

    An alias defined elsewhere may be any sub-command.
    """
    name, place = name_of(command[0] or ""), subcommand_at(command)
    before = command[1 : len(command) if place is None else place]
    if name in ("git", "gh") and place is not None and command[place] in ("config", "alias"):
        return [
            _expand_alias(name, (), command[at + 1] or "", ())
            for at in range(place + 1, len(command) - 1)
            if name == "gh" or _ALIAS.fullmatch(command[at] or "")
        ]
    found: list[Command] = []
    for option, word in pairwise(("", *before)):
        if name not in PROGRAMS or word is None or not re.search(r"alias|include", word, re.IGNORECASE):
            continue
        alias = (
            _ALIAS.fullmatch(word.removeprefix("-c")) if name == "git" and option != "--config-env" else None
        )
        rest = () if place is None else command[place + 1 :]
        if alias and alias[2] is not None:
            if place is None or command[place] == alias[1]:
                found.append(_expand_alias(name, before, alias[2], rest))
        else:
            found.append((name, None, *rest))
    return found


def _expand_alias(name: str, before: Command, meaning: str, rest: Command) -> Command:
    """Return the command with its alias expanded; aliases that start with `!` are handled elsewhere."""
    try:
        words = shlex.split(meaning)
    except ValueError:
        words = []
    return (name, *before, *words, *rest) if words and not meaning.startswith("!") else (name, None, *rest)
