"""Harmless options: those options of well-known programs that only shape what is read and shown.

In a rule that allows, `...` matches these and words that are not options. So `git diff ...` does not
allow `git diff --output=FILE` or `--ext-diff`, which write and run. To allow another option,
write it into the rule. An option counts as harmless when its manual names no file that it writes, no program
that it runs and no place outside of the workspace that it asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from kestrel_lab.shell_syntax.program_options import (
    PROGRAMS,
    SEVERAL,
    WORDS_BEHIND_ONE_DASH,
    Command,
    name_of,
    subcommand_at,
)
from kestrel_lab.shell_syntax.wrappers import RUNNERS, without_run_by_find


@dataclass(frozen=True, slots=True)
class Harmless:
    """Harmless options of a command.

    Each word is judged by itself, so that a mistake about which options take a value hides no other option.
    """

    words: frozenset[str]
    """Long ones, and those that are words behind one dash."""
    letters: str
    """Those that may be joined; behind a letter of `valued` its value may follow in the same word."""
    valued: str
    never: str
    """A regular expression of words that are not covered, options or not; empty for none."""

    def covers(self, word: str | None) -> bool:
        """Return true if a word is harmless or no option; false for an unknown word."""
        if word is None or (self.never and re.fullmatch(self.never, word, re.DOTALL)):
            return False
        if not word.startswith("-") or word in ("-", "--"):
            return True
        if word.partition("=")[0] in self.words or (re.fullmatch(r"-\d+", word) and "#" in self.letters):
            return True
        for letter in "" if word.startswith("--") else word[1:]:
            if letter in self.valued:
                return True
            if letter not in self.letters:
                return False
        return not word.startswith("--")


_DIFF = """
--patch --no-patch --unified --raw --patch-with-raw --patch-with-stat --minimal --patience --histogram \
--diff-algorithm --stat --numstat
--shortstat --dirstat --summary --compact-summary --name-only --name-status --color --no-color --color-moved \
--word-diff --word-diff-regex
--color-words --no-renames --check --full-index --binary --abbrev --find-renames --find-copies \
--find-copies-harder --diff-filter
--pickaxe-all --pickaxe-regex --relative --no-relative --text --ignore-space-at-eol --ignore-space-change \
--ignore-all-space
--ignore-blank-lines --ignore-cr-at-eol --inter-hunk-context --function-context --exit-code --quiet \
--no-ext-diff --no-textconv
--ignore-submodules --src-prefix --dst-prefix --no-prefix --staged --cached --merge-base -apsuzwbRW -U: -S: \
-G: -I: -B: -M: -C: -D: -l:
"""
_LOG = """
--oneline --decorate --no-decorate --graph --all --branches --tags --remotes --since --after --until \
--before --author --committer --grep
--invert-grep --all-match --merges --no-merges --first-parent --follow --reverse --date-order \
--author-date-order --topo-order --date
--format --pretty --abbrev-commit --no-abbrev-commit --max-count --skip --left-right --cherry-pick \
--cherry-mark --cherry --walk-reflogs
--relative-date --parents --children --simplify-by-decoration --full-history --regexp-ignore-case \
--extended-regexp --fixed-strings -iEFPgmc# -n: -L:
"""
_HTTP = (
    "-o: -n: --output --namespace --all-namespaces --selector --field-selector --show-labels --sort-by "
    "--no-headers --limit -A -l: -w"
)
_PYTEST = """
--quiet --verbose --exitfirst --maxfail --lf --last-failed --ff --failed-first --nf --new-first --sw \
--stepwise --tb --durations --durations-min
--collect-only --co --no-header --no-summary --showlocals --strict-markers --strict-config --runxfail \
--ignore --ignore-glob --deselect --color
--capture --show-capture --fixtures --markers --setup-show --no-cov --numprocesses --dist --reruns --timeout \
-qvxsl -k: -m: -r: -n:
"""
_CARGO = """
--quiet --verbose --release --lib --bins --bin --tests --test --examples --example --benches --bench \
--all-targets --workspace --all --package
--exclude --features --all-features --no-default-features --profile --jobs --keep-going --no-fail-fast \
--no-run --doc --locked --offline
--frozen --message-format --color --nocapture -qvr -p: -F: -j:
"""
_GREP = """
--ignore-case --no-ignore-case --invert-match --word-regexp --line-regexp --count --color --colour \
--files-with-matches --files-without-match
--max-count --only-matching --quiet --silent --no-messages --byte-offset --with-filename --no-filename \
--line-number --initial-tab --null
--after-context --before-context --context --text --binary-files --exclude --exclude-dir --include \
--recursive --extended-regexp
--fixed-strings --basic-regexp --perl-regexp --regexp -ivwxclLoqsbHhnTZarEFGPUzI# -m: -A: -B: -C: -e:
"""
_RG = """
--ignore-case --smart-case --case-sensitive --invert-match --word-regexp --line-regexp --count \
--count-matches --color --files
--files-with-matches --files-without-match --max-count --only-matching --quiet --no-messages --with-filename \
--no-filename --line-number
--no-line-number --column --heading --no-heading --after-context --before-context --context --text --glob \
--iglob --type --type-not --type-list
--hidden --no-ignore --max-depth --multiline --fixed-strings --pcre2 --regexp --json --sort --sortr --stats \
--trim --null --vimgrep --no-config
-isSvwxcloqnNHIaULFP0. -m: -A: -B: -C: -g: -t: -T: -e: -d: -j:
"""
_FIND = """
-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -size -empty -mtime \
-mmin -atime -amin -ctime -cmin
-newer -perm -user -group -uid -gid -links -inum -maxdepth -mindepth -depth -prune -print -print0 -printf \
-ls -not -o -or -a -and -true -false
-follow -xdev -mount -readable -writable -executable -daystart -quit -L -P -H
"""
_TAR = """
--extract --get --create --list --diff --compare --verbose --gzip --bzip2 --xz --zstd --auto-compress --file \
--directory --exclude
--exclude-vcs --strip-components --no-same-owner --no-same-permissions --numeric-owner --keep-old-files \
--wildcards --sort --mtime --totals
-xctdvzjJZapkhOmSU -f: -C: -b:
"""
_RSYNC = """
--archive --verbose --quiet --compress --recursive --delete --dry-run --progress --partial --exclude \
--include --stats --human-readable
--update --checksum --links --perms --times --itemize-changes --size-only --ignore-existing --max-size \
--min-size --bwlimit
-avqzrlptgoDnhuPcCHASWxmi
"""
_SHOWN = {
    "git": "-C --no-pager --no-optional-locks --literal-pathspecs --no-replace-objects -P",
    "git diff": _DIFF,
    "git log": _DIFF + _LOG,
    "git show": _DIFF + _LOG,
    "git whatchanged": _DIFF + _LOG,
    "git reflog": _DIFF + _LOG,
    "git stash list": _DIFF + _LOG,
    "git stash show": _DIFF,
    "git diff-tree": _DIFF + "-r -t --root --no-commit-id",
    "git status": "--short --branch --show-stash --porcelain --long --verbose --untracked-files --ignored "
    "--ignore-submodules --ahead-behind "
    "--no-ahead-behind --renames --no-renames --find-renames --column --no-column -sbvzu",
    "git blame": "--root --show-stats --porcelain --line-porcelain --incremental --abbrev --date "
    "--color-lines "
    "--color-by-age -bclstfnwe -L: -C: -M:",
    "git grep": "--ignore-case --word-regexp --invert-match --extended-regexp --fixed-strings --perl-regexp "
    "--line-number --count --column "
    "--files-with-matches --name-only --files-without-match --only-matching --max-depth --heading "
    "--break --show-function --function-context "
    "--all-match --and --or --not --cached --untracked --threads --color --no-color --quiet --null "
    "--max-count --context --after-context "
    "--before-context -iwvEFGPnclLoqhHazWpI# -e: -A: -B: -C: -m:",
    "git ls-files": "--cached --deleted --modified --others --ignored --stage --unmerged --killed "
    "--exclude-standard --full-name --abbrev "
    "--directory --error-unmatch --eol --deduplicate -cdmoistukvz -x:",
    "git ls-tree": "--long --name-only --name-status --full-name --full-tree --abbrev --object-only --format "
    "-drtlz",
    "git branch": "--list --all --remotes --verbose --contains --no-contains --merged --no-merged --sort "
    "--format --points-at --show-current "
    "--ignore-case --column --no-column --color --no-color --abbrev --no-abbrev -arvil",
    "git tag": "--list --contains --no-contains --merged --no-merged --sort --format --points-at "
    "--ignore-case --column -li -n:",
    "git remote": "--verbose -v",
    "git rev-parse": "--verify --short --abbrev-ref --symbolic --symbolic-full-name --show-toplevel "
    "--show-prefix "
    "--show-cdup --git-dir "
    "--is-inside-work-tree --is-inside-git-dir --is-bare-repository --all --branches --tags --remotes "
    "--quiet -q",
    "git rev-list": _LOG + "--count --objects --no-walk --boundary",
    "git describe": "--all --tags --contains --abbrev --candidates --exact-match --long --match --exclude "
    "--always "
    "--dirty --first-parent",
    "git shortlog": "--numbered --summary --email --group --format --since --until --author --committer "
    "--all "
    "--no-merges -nsec -w:",
    "git merge-base": "--all --octopus --independent --is-ancestor --fork-point -a",
    "git cat-file": "--batch-check -tspe",
    "git name-rev": "--tags --refs --exclude --all --name-only --always",
    "git for-each-ref": "--count --sort --format --points-at --merged --no-merged --contains --no-contains "
    "--ignore-case",
    "pytest": _PYTEST,
    "python -m pytest": _PYTEST,
    "cargo test": _CARGO,
    "cargo check": _CARGO,
    "cargo build": _CARGO,
    "cargo tree": _CARGO + "--invert --depth --prefix --edges --duplicates -d -i: -e:",
    "go test": "-v -run -short -race -count -timeout -failfast -bench -benchtime -cover -parallel -list "
    "-json "
    "-cpu -shuffle -tags",
    "go vet": "-v -json -tags",
    "go list": "-m -json -f -deps -test -e",
    "npm test": "--silent --workspaces --if-present -s",
    "npm ls": "--all --depth --json --long --parseable --global --omit --workspaces -alpg",
    "npm view": "--json",
    "npm outdated": "--json --long --all -al",
    "pip list": "--editable --local --user --format --not-required --exclude --verbose --quiet -levq",
    "pip show": "--files --verbose --quiet -fvq",
    "pip freeze": "--local --user --all --exclude -l",
    "pip check": "--quiet --verbose -qv",
    "uv pip list": "--editable --exclude --format -e",
    "uv tree": "--depth --prune --package --invert --frozen --locked -d:",
    "docker ps": "--all --filter --format --last --latest --no-trunc --quiet --size -alqs -f: -n:",
    "docker images": "--all --digests --filter --format --no-trunc --quiet --tree -aq -f:",
    "docker logs": "--details --follow --since --tail --timestamps --until -ft -n:",
    "docker inspect": "--format --size --type -s -f:",
    "docker stats": "--all --format --no-stream --no-trunc -a",
    "docker compose ps": "--all --filter --format --no-trunc --orphans --quiet --services --status -aq",
    "docker compose logs": "--follow --no-color --no-log-prefix --since --tail --timestamps --until -ft -n:",
    "kubectl get": _HTTP + " --watch --show-kind --ignore-not-found --label-columns --chunk-size -L:",
    "kubectl describe": "--all-namespaces --namespace --selector --show-events -A -n: -l:",
    "kubectl logs": "--follow --previous --container --since --since-time --tail --timestamps "
    "--all-containers "
    "--prefix --namespace --selector "
    "-fp -c: -l: -n:",
    "kubectl top": _HTTP + " --containers",
    "kubectl explain": "--recursive --api-version --output",
    "helm list": _HTTP + " --all --deployed --failed --pending --short --max --reverse --date -adqr -m:",
    "helm status": "--output --revision --show-resources -o:",
    "helm history": "--output --max -o:",
    "terraform validate": "-json -no-color",
    "terraform show": "-json -no-color",
    "terraform fmt": "-check -diff -recursive -no-color",
    "gh pr list": "--state --label --limit --author --assignee --base --head --search --draft --json -s: "
    "-l: -L: "
    "-A: -a: -B: -H: -S: -d",
    "gh pr view": "--comments --json -c",
    "gh pr diff": "--name-only --patch --color",
    "gh issue list": "--state --label --limit --author --assignee --search --milestone --json -s: -l: -L: "
    "-A: -a: "
    "-S: -m:",
    "gh issue view": "--comments --json -c",
    "gh run list": "--limit --workflow --branch --status --json -L: -w: -b: -s:",
    "systemctl status": "--lines --output --full --no-pager --all -l -n: -o:",
    "systemctl list-units": "--type --state --all --full --no-pager --no-legend -a -t:",
    "make": "-kswnBr -j: -l: --jobs --load-average --keep-going --silent --quiet --dry-run --always-make "
    "--no-print-directory",
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _RG,
    "find": _FIND,
    "sort": "--ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
    "--numeric-sort --human-numeric-sort --month-sort "
    "--version-sort --reverse --key --field-separator --unique --stable --check --merge "
    "--zero-terminated -bdfgiMhnRrVcCmsuz -k: -t:",
    "tree": "-adfixplsDFugCAnhr -L: -P: -I: --noreport --dirsfirst --gitignore --prune",
    "date": "--utc --universal --iso-8601 --rfc-3339 --rfc-email --date -uRI -d:",
    "sed": "--quiet --silent --regexp-extended --separate --unbuffered --null-data -nErsuz",
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), "--field-separator --assign -F: -v:"),
    **dict.fromkeys(("tar", "bsdtar", "gtar"), _TAR),
    "rsync": _RSYNC,
    "zip": "--recurse-paths --quiet --junk-paths --exclude -rqjuyXv0123456789 -x: -i:",
    "ssh": "-46AnNqTtvC -p: -l: -i:",
    "scp": "-346BpqrvC -P: -l: -i:",
    "sftp": "-46BpqrvC -P: -l: -i:",
    **dict.fromkeys(
        ("less", "more"),
        "--LINE-NUMBERS --chop-long-lines --RAW-CONTROL-CHARS --quit-if-one-screen -NSRrFXiIMmnqsEeKQ",
    ),
    "man": "--where --whatis --apropos --all --sections -wkfaK -s: -S: -L:",
    **dict.fromkeys(("vim", "vi", "nvim", "view"), "-RndoOp"),
    "split": "--lines --bytes --number --suffix-length --numeric-suffixes --additional-suffix -dx -l: -b: "
    "-n: -a: -C:",
    **dict.fromkeys(("nc", "ncat", "netcat", "socat", "install", "gdb", "lldb", "emacs", "ex", "ed"), ""),
    "ruff check": "--diff --statistics --select --ignore --extend-select --output-format --quiet --verbose "
    "--no-cache --show-files --preview -qv",
    "mypy": "--strict --pretty --show-error-codes --show-error-context --no-error-summary "
    "--ignore-missing-imports --python-version -v",
}


_NEVER = {
    # a format that has a program check signatures, an address that is a command
    "git": r".*%(?:G|\(signature).*|ext::.*",
    # `@FILE` adds the words of a file.
    **dict.fromkeys(("pytest", "python", "mypy", "ruff"), r"@.*"),
    # A variable, which may be SHELL.
    "make": r"[^-=][^=]*=.*",
    **dict.fromkeys(
        ("tar", "bsdtar", "gtar"),
        r"[A-Za-z]*[IF][A-Za-z]*",
        # Options without a dash that name a program.
    ),
    **dict.fromkeys(
        ("vim", "vi", "nvim", "view", "less", "more", "emacs", "ex"),
        r"\+.*",
        # Commands of the editor.
    ),
}
"""Words, options or not, that are not harmless for a program."""


@lru_cache(maxsize=256)
def harmless_pattern(pattern: tuple[str, ...], at: int) -> Harmless | None:
    """Return the harmless options for a `...` of an allowing pattern; `None`, for any word, if unknown.

    Before a sub-command these are the program's own options: `-c` differs in `git log -c` and `git -c X log`.
    """
    program = name_of(pattern[0])
    for runner in RUNNERS:
        if (program, *pattern[1 : len(runner)]) == runner and len(pattern) > len(runner):
            return harmless_pattern(pattern[len(runner) :], at - len(runner))
    words = [
        program,
        *(word for word in pattern[1:] if word != "..." and (word == "-m" or not word.startswith("-"))),
    ]
    has_subcommands = program in PROGRAMS and program not in SEVERAL
    if has_subcommands and all(word == "..." or word.startswith("-") for word in pattern[1:at]):
        words = words[:1]
    keys = (
        " ".join(words[:count])
        for count in range(len(words), 1 if has_subcommands and len(words) > 1 else 0, -1)
    )
    known = next((key for key in keys if key in _SHOWN), None)
    if known is None and not has_subcommands:
        return None
    return _read(_SHOWN.get(known or "", ""), _NEVER.get(program, ""))


_RUN_CODE = frozenset(
    {
        "pytest",
        "python -m pytest",
        "cargo test",
        "cargo check",
        "cargo build",
        "go test",
        "go vet",
        "npm test",
    }
) | {*("make", "mypy", "ruff check")}
"""Commands among those with harmless options that run code of the workspace, or write caches there."""


def only_shows(command: Command) -> bool:
    """Return true if a command only reads and prints: a known one with harmless options only."""
    if not command or command[0] is None:
        return False
    program = name_of(command[0])
    place = subcommand_at(command) if program in PROGRAMS and program not in SEVERAL else 1
    if place is None:
        return False
    words = (
        [program]
        if place == 1 and program not in PROGRAMS
        else [program, *(word or "" for word in command[place : place + 2])]
    )
    keys = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    key = next((key for key in keys if key in _SHOWN and key not in _RUN_CODE), None)
    if key is None or (key == program and program in PROGRAMS):
        return False
    never = _NEVER.get(program, "")
    front, rest = (
        _read(_SHOWN.get(program, "") if program in PROGRAMS else "", never),
        _read(_SHOWN[key], never),
    )
    return all(map(front.covers, command[1:place])) and all(
        map(rest.covers, _without_actions(command)[place:])
    )


def _without_actions(command: Command) -> Command:
    """Return a `find` without what it runs, which are commands of their own."""
    return tuple(word for word in without_run_by_find(command) if word not in ("-exec", "-execdir"))


def _read(options: str, never: str) -> Harmless:
    words, letters, valued = set[str](), "", ""
    for option in options.split():
        if option.startswith("--") or (option.rstrip(":") in _ONE_DASH):
            words.add(option)
        elif option.endswith(":"):
            valued += option[1]
        else:
            letters += option[1:]
    return Harmless(frozenset(words), letters, valued, never)


_ONE_DASH = frozenset(
    word
    for key, options in _SHOWN.items()
    if key.split()[0] in WORDS_BEHIND_ONE_DASH
    for word in options.split()
    if len(word) > 2
)
