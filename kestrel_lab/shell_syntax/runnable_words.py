"""Runnable words: words of a command that its program may run, as an option, a setting or a text in a
language of its own.

`wrappers.py` knows the commands that surely run another one. Here are the words of which only the manual of
the program could say: the value of `rsync -e`, a program of awk, a setting of git, the words behind `docker
run`, and any word of a program that is not known. A rule that forbids a command asks about them. A rule that
allows covers them only if it names them: see `literal_places` and, for options, `harmless_options.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from kestrel_lab.shell_syntax.known_programs import KNOWN
from kestrel_lab.shell_syntax.program_options import (
    PROGRAMS,
    Command,
    Options,
    command_spellings,
    name_of,
)
from kestrel_lab.shell_syntax.python_code import starts_no_program

RUN_NAME = re.compile(
    r"exec|command|cmd|program|pager|editor|shell|rsh|filter|hook|\brun\b|script|eval|pack\b|proxy|askpass|helper|driver"
    r"|\bpre\b|launcher|wrapper|browser|visual|opener|runner|interpreter|-bin\b|action|-path\b|external|textconv|tunnel"
    r"|smtpserver|lessopen|lessclose",
    re.IGNORECASE,
)
"""Names of options, settings and variables whose value is probably run."""
_PLAIN = re.compile(r"[\w./=:,@%+^~-]*")
"""A word that is a name, a number, a path or an address, and no text."""
_TOKEN = re.compile(r"[\w.+-]+")

_TEXT_ONLY = frozenset(
    """
echo printf cat ls grep egrep fgrep zgrep test [ cd pwd pushd popd mkdir rmdir touch cp mv rm ln
chmod chown true false diff cmp stat file du df basename dirname realpath readlink date seq sleep
kill head tail wc tr cut uniq comm paste join fold nl od xxd base64 md5sum sha1sum sha256sum tee
tree which type find pytest ruff mypy jq yq read export declare typeset local readonly let set unset
alias trap eval xargs
""".split()
)
"""Programs that run none of their words, or whose words `wrappers.py` reads completely."""
_EVALUATES = frozenset(
    ["test", "[", "printf", "read", "unset", "declare", "typeset", "local", "readonly", "export", "let"]
)
"""Builtins that expand the subscript in a name."""
_NAMED_ONLY = frozenset(["rg", "ag", "ack", "fd", "fdfind", "sort", "man"])
"""Programs that run only values of options with a telling name: `rg --pre`, `sort --compress-program`."""
_ANY_WORD = frozenset(
    """
tar bsdtar gtar rsync ssh sshpass autossh mosh scp sftp lftp zip less more most nc ncat netcat socat
npx bunx uvx pipx mise rtx asdf rbenv pyenv nodenv goenv nvm nix nix-shell direnv xvfb-run
dbus-run-session dbus-launch fakeroot proot bwrap prlimit setarch linux32 linux64 unbuffer tmux screen zellij
ip sg capsh start-stop-daemon daemonize run-parts split install hyperfine chronic retry perf
valgrind gdb lldb foreman honcho dotenv envdir env-cmd cross-env concurrently nodemon watchexec
reflex sops doppler aws-vault op at batch crontab numactl cgexec rlwrap catchsegv stdbuf setpriv
choom uclampset pkexec xterm gnome-terminal konsole open xdg-open docker-compose
""".split()
)
"""Known programs for which any word may be a command or start one."""
_ANY_WORD_BEHIND = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), frozenset({"run", "exec", "compose"})),
    **dict.fromkeys(("kubectl", "oc"), frozenset({"run", "exec", "debug"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"exec", "x", "dlx"})),
    **dict.fromkeys(
        ("conda", "uv", "hatch", "poetry", "pdm", "pipenv", "rye", "pixi"), frozenset({"run", "tool", "exec"})
    ),
    "cmake": frozenset({"-E"}),
    **dict.fromkeys(
        ("vagrant", "lxc", "machinectl", "heroku", "fly", "gcloud"),
        frozenset({"ssh", "exec", "run", "shell"}),
    ),
}
"""The same behind a sub-command."""
_LANGUAGES = re.compile(
    r"python|perl|ruby|node|deno|bun|php|lua|luajit|Rscript|R|julia|tclsh|osascript|psql|mysql|mariadb|sqlite3|duckdb|pwsh"
    r"|powershell|vim?|nvim|view|ex|ed|emacs|gdb|lldb|[gmn]?awk|g?sed|socat|expect|make|ninja|just"
)
"""Programs that read words as a program in a language of their own, in which any word may name a command."""


_TEXT_OPTIONS = {
    "gh": frozenset(
        "--title --body --search --label --notes --subject --assignee --author -t -b -S -l -n".split()
    ),
    **dict.fromkeys(("docker", "podman"), frozenset("--filter --format --label --name --tag".split())),
    **dict.fromkeys(("kubectl", "oc"), frozenset("--selector --field-selector --sort-by -l".split())),
    "go": frozenset("-run -bench -skip -tags".split()),
    "cargo": frozenset("--test --bench --package -p".split()),
}
"""Options of known programs whose value is a text that is shown, searched or compared, and never run."""


def _without_texts(name: str, command: Command) -> Command:
    """Return a command without the values of options that are texts."""
    options = _TEXT_OPTIONS.get(name, frozenset())
    kept = list(command[:1])
    for before, word in pairwise(command):
        if before not in options and not (word and word.partition("=")[0] in options and "=" in word):
            kept.append(word)
    return tuple(kept)


def is_known(command: Command) -> bool:
    """Return whether it is known what a program does with its words."""
    names = {name_of(one[0] or "") for one in command_spellings(command)}
    return any(
        name in KNOWN
        or name in PROGRAMS
        or name in _ANY_WORD
        or name in _ANY_WORD_BEHIND
        or _LANGUAGES.fullmatch(name) is not None
        for name in names
    )


def reads_texts_only(command: Command) -> bool:
    """Return whether a program does not run what it is given to read."""
    name = name_of(command[0] or "")
    if name == "python":
        code = _python_code(command)
        return code is not None and starts_no_program(code)
    return name in _TEXT_ONLY - _RUN_WORDS or name in _FED_TEXTS


_RUN_WORDS = frozenset(["eval", "xargs", "trap", "alias", "read"])
_FED_TEXTS = frozenset(
    ["git", "gh", "less", "more", "column", "sort", "awk", "sed", "patch", "wall", "mail", "rg"]
)


def _python_code(command: Command) -> str | None:
    """Return the code behind the option `-c`; `None` if there is none, or it is unknown."""
    for place, word in enumerate(command[1:-1], 1):
        if word is None or not word.startswith("-") or word.startswith("--") or set("mXW") & set(word):
            return None
        if word.endswith("c"):
            return command[place + 1]
    return None


def runnable_words(command: Command) -> tuple[list[Command], list[str]]:
    """Return words of a command that may be commands, and texts that may be run or contain commands."""
    names = [name_of(one[0] or "") for one in command_spellings(command)]
    name = names[0]
    # Bash runs the substitution in a subscript: `test -v 'a[$(id)]'`.
    if not _TEXT_ONLY.isdisjoint(names):
        return [], [
            word for word in command[1:] if word and name in _EVALUATES and re.search(r"\[.*(?:\$\(|`)", word)
        ]
    if name == "git":
        return [], list(_git_texts(command))
    if name == "python" and (code := _python_code(command)) is not None and starts_no_program(code):
        return [], []
    command = _without_texts(name, command)
    if name in _NAMED_ONLY:
        return [], list(_named_values(command))
    behind = _ANY_WORD_BEHIND.get(name, frozenset())
    begin = (
        1
        if name in _ANY_WORD or not is_known(command)
        else next((place + 1 for place, word in enumerate(command) if word in behind), len(command))
    )
    begin = min(
        begin, next((place + 1 for place, word in enumerate(command) if place and word == "--"), begin)
    )
    places = range(begin, min(len(command), _MOST_WORDS))
    tails = [
        command[place:]
        for place in places
        if (word := command[place]) is not None and not word.startswith("-")
    ]
    values = [value for place in places if (value := _short_value(command[place]))]
    texts = list(_texts(name, command))
    named = (
        [token for text in texts for token in _TOKEN.findall(text)]
        if begin == 1 or _LANGUAGES.fullmatch(name)
        else []
    )
    return [*tails, *((token, None) for token in named[:_MOST_WORDS])], [
        *values,
        *_named_values(command),
        *texts,
    ]


_MOST_WORDS = 200


def _short_value(word: str | None) -> str:
    """Return what may be a value joined to an option: of `-ecurl` it is `curl`, of `--rsh=curl` the same."""
    if word is None or not word.startswith("-"):
        return ""
    return word.partition("=")[2] if word.startswith("--") else word[2:]


def _named_values(command: Command) -> Iterator[str]:
    """Yield values of options and settings with telling names: `--pre curl`, `SHELL=curl`,
    `-oProxyCommand=curl`.
    """
    for place, word in enumerate(command[1:], 1):
        if word is None:
            continue
        for name, sign, value in (word.partition("="), word.rpartition("="), word.partition(" ")):
            if sign and RUN_NAME.search(name) and " " not in name:
                yield value
        if word.startswith("-") and "=" not in word and RUN_NAME.search(word):
            yield (command[place + 1] or "") if place + 1 < len(command) else ""


def _texts(name: str, command: Command) -> Iterator[str]:
    """Yield words that are more than a name, except sed and awk programs that run nothing."""
    safe = SAFE_SCRIPTS.get(name)
    for word in command[1:]:
        if word is not None and not _PLAIN.fullmatch(word) and not (safe and safe.fullmatch(word)):
            yield word


# git

_HARMLESS_SETTING = re.compile(
    r"(?:user|author|committer|color|advice|init|safe|log|branch|fetch|pull|push|rerere|i18n|column|commit|tag|index|pack|gc|http)\."
    r"(?!.*(?:pack|cmd|command|program|helper|proxy|editor|cookiefile)).*"
    r"|core\.(?:quotepath|autocrlf|eol|filemode|longpaths|abbrev|bare)",
    re.IGNORECASE,
)
_GIT_SHORT = {"rebase": "-x", "clone": "-u", "ls-remote": "-u", "difftool": "-x", "grep": "-O"}
_GIT_RUNS_VALUE = (
    *(
        "--exec",
        "--extcmd",
        "--upload-pack",
        "--receive-pack",
        "--open-files-in-pager",
        "--smtp-server",
        "--to-cmd",
        "--cc-cmd",
    ),
    *(
        "--sendmail-cmd",
        "--header-cmd",
        "--env-filter",
        "--tree-filter",
        "--index-filter",
        "--parent-filter",
        "--msg-filter",
    ),
    *("--commit-filter", "--tag-name-filter"),
)
"""Options of git sub-commands whose value is a shell program; git accepts abbreviations."""


def git_option_texts(command: Command) -> list[str]:
    """Return the shell programs that options of git's sub-commands run: `rebase --exec`, `clone -u`,
    `difftool -x` and their like.
    """
    found: list[str] = []
    short = next((option for word in command[1:] if word and (option := _GIT_SHORT.get(word))), "")
    for place, word in enumerate(command[1:], 1):
        if word is None:
            continue
        after = (command[place + 1] if place + 1 < len(command) else None) or ""
        name, joined, value = word.partition("=")
        if len(name) > 2 and any(option.startswith(name) for option in _GIT_RUNS_VALUE):
            found.append(value if joined else after)
        elif short and word.startswith(short) and not word.startswith("--"):
            found.append(word[len(short) :] or after)
    return [text for text in found if text]


def _git_texts(command: Command) -> Iterator[str]:
    """Yield git settings that may be run, commands for each submodule, and addresses that are commands."""
    for place, word in enumerate(command[1:], 1):
        if word is None:
            continue
        before = command[place - 1]
        name, _, value = word.removeprefix("-c").removeprefix("-").partition("=")
        if (
            value
            and (before in ("-c", "--config") or word.startswith("-c"))
            and not _HARMLESS_SETTING.fullmatch(name)
        ):
            yield value.removeprefix("!")
        if (
            before
            and "config" in command[:place]
            and not _HARMLESS_SETTING.fullmatch(before)
            and "." in before
        ):
            yield word.removeprefix("!")
        if word in ("foreach", "run"):
            yield " ".join(one or "" for one in command[place + 1 :])
        if word.startswith("ext::"):
            yield word.removeprefix("ext::")


# Programs in a language of their own.

SCRIPTED = {
    "sed": Options("nErsuz", "efl"),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), Options("", "Fvfe")),
}
"""Programs whose first word after the options is a program text."""
_SUBSTITUTION = r"(?:[\d,$]*|/[^/]*/)s([/|#,:@])(?:(?!\1)[^\n])*\1(?:(?!\1)[^\n])*\1[gpIiMm\d]*"
SAFE_SCRIPTS = {
    "sed": re.compile(rf"(?:{_SUBSTITUTION}|(?:[\d,$]*|/[^/]*/)[pdq=]?)"),
    **dict.fromkeys(
        ("awk", "gawk", "mawk", "nawk"), re.compile(r"(?:(?!system|getline|close|ENVIRON)[^|>@])*", re.DOTALL)
    ),
}
"""Programs of these languages that surely run no command and write no file."""


def script_place(command: Command, options: Options) -> int:
    """Return the place of the first word that is not an option or the value of one."""
    place = 1
    while (
        place < len(command) and (word := command[place]) is not None and word.startswith("-") and word != "-"
    ):
        place += 1 + bool(options.takes_next(word))
    return place


def literal_places(command: Command) -> frozenset[int]:
    """Return positions of words that a rule must spell out: sed and awk programs that may run commands."""
    name = name_of(command[0] or "")
    if name not in SCRIPTED:
        return frozenset()
    place = script_place(command, SCRIPTED[name])
    word = command[place] if place < len(command) else ""
    return frozenset() if word is None or SAFE_SCRIPTS[name].fullmatch(word) else frozenset({place})
