"""Grammar of a git folder: which files git's own plain work writes below `.git`, and in which form.

Everything else is refused: another file, another type than a regular file, another form, another setting, or
more bytes than git writes there. So what is not known here cannot be planted, whatever git would make of it.
Plain work is commits, branches, tags, notes, stashes, fetches, clones, worktrees, submodules and sparse
checkouts, and what a merge, rebase, series of picks or mails, or a bisection leaves between two commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kestrel_lab.tools.sandbox.gitdir.git_settings import refused_settings

MOST_TEXT: Final = 1 << 20
"""Most bytes of a file of state; git reads all of it."""
MOST_BYTES: Final = 64 << 20
"""Most bytes of an index, a list of refs and a log."""
STATE_FOLDERS: Final = ("rebase-merge", "rebase-apply", "sequencer")
"""Folders of a work that was interrupted: their files are read together, so they pass together or not at
all.
"""

_ID = rb"(?:[0-9a-f]{64}|[0-9a-f]{40})"
_REF = rb"refs/(?!replace/)[^\x00-\x20\x7f~^:?*\[\\]+"
_NAME = rb"[^\x00-\x20\x7f~^:?*\[\\-][^\x00-\x20\x7f~^:?*\[\\]*"
_STRATEGIES = rb"ort|recursive|resolve|octopus|ours|subtree"
_STRATEGY_OPTION = (
    rb"--(?:ours|theirs|patience|histogram|renormalize|no-renormalize|no-renames|find-renames(?:=\d+%?)?"
    rb"|ignore-(?:space-change|all-space|space-at-eol|cr-at-eol)|diff-algorithm=[a-z]+|subtree(?:=[\w./-]+)?)"
)

_Form = Callable[[bytes], bool]


def _whole(pattern: bytes) -> _Form:
    expression = re.compile(pattern, re.DOTALL)
    return lambda content: expression.fullmatch(content) is not None


def _lines(pattern: bytes) -> _Form:
    expression = re.compile(pattern)

    def is_well_formed(content: bytes) -> bool:
        lines = content.split(b"\n")
        return all(map(expression.fullmatch, lines[:-1] if not lines[-1] else lines))

    return is_well_formed


_IDS = _lines(_ID + rb"?")
_HEAD = _whole(rb"(?:" + _ID + rb"|ref: ?" + _REF + rb")\n?")
_TEXT = _whole(rb"[^\x00]*")
_FLAG = _whole(rb"[\w. -]{0,40}\n?")
_TODO = _lines(
    rb"\s*(?:#.*|(?:pick|p|reword|r|edit|e|squash|s|drop|d|revert) [0-9a-f]{4,64}(?: .*)?"
    rb"|(?:fixup|f)(?: -[cC])? [0-9a-f]{4,64}(?: .*)?|noop|break|b|(?:label|l) " + _NAME + rb"(?: #.*)?"
    rb"|(?:reset|t) (?:\[new root\]|" + _NAME + rb")(?: .*)?"
    rb"|(?:merge|m)(?: -[cC] [0-9a-f]{4,64})?(?: " + _NAME + rb")+(?: #.*)?"
    rb"|(?:update-ref|u) " + _REF + rb")?\s*"
)
"""A line of a list of commits; one that names a program (`exec`) is not among them."""
_AUTHOR = _lines(rb"GIT_AUTHOR_(?:NAME|EMAIL|DATE)='(?:[^'\n]|'\\[!']')*'")
_PATHS = rb"(?: ?'--')?(?: ?'(?!-)(?:[^'\n]|'\\[!']')*')*"
_APPLY_OPTION = (
    rb"'?(?:--whitespace=[a-z-]+|-C\d+|-p\d+|--ignore-whitespace|--ignore-space-change|--reject"
    rb"|--(?:in|ex)clude=[\w./*-]+)'?"
)
_FORMS: Final[tuple[tuple[str, _Form, int], ...]] = (
    ("HEAD", _HEAD, MOST_TEXT),
    ("FETCH_HEAD", _lines(_ID + rb"\t(?:not-for-merge)?\t.*"), MOST_TEXT),
    (r"(?:[A-Z]+_)+HEAD|MERGE_AUTOSTASH|AUTO_MERGE|NOTES_MERGE_PARTIAL|shallow", _IDS, MOST_TEXT),
    ("NOTES_MERGE_REF", _HEAD, MOST_TEXT),
    (r"[A-Z]+_(?:EDIT)?MSG|EDIT_DESCRIPTION|description", _TEXT, MOST_TEXT),
    (r"ADD_EDIT\.patch|addp-hunk-edit\.diff|gc\.log|BISECT_RUN", _TEXT, MOST_TEXT),
    ("MERGE_MODE", _whole(rb"(?:no-ff)?\n?"), MOST_TEXT),
    ("MERGE_RR", _whole(rb"(?:" + _ID + rb"(?:\.\d+)?\t[^\x00]+\x00)*"), MOST_TEXT),
    ("BISECT_START", _lines(rb"(?!-)[^\x00-\x20\x7f~^:?*\[\\]+"), 4_096),
    ("BISECT_TERMS", _lines(rb"[a-z][a-z-]{0,40}"), 4_096),
    ("BISECT_NAMES", _lines(_PATHS), MOST_TEXT),
    ("BISECT_LOG", _lines(rb"#.*|git bisect [a-z][a-z-]*(?: .*)?"), MOST_TEXT),
    (r"BISECT_(?:ANCESTORS_OK|EXPECTED_REV)", _IDS, MOST_TEXT),
    ("BISECT_FIRST_PARENT", _whole(b""), 0),
    (r"index|sharedindex\.[0-9a-f]{40,64}", _whole(rb"DIRC\x00\x00\x00[\x02-\x04].*"), MOST_BYTES),
    ("packed-refs", _lines(rb"#.*|" + _ID + rb" " + _REF + rb"|\^" + _ID), MOST_BYTES),
    (r"refs/(?!replace/)[^\x00-\x20~^:?*\[\\]+", _HEAD, 4_096),
    (r"logs/(?:HEAD|refs/.+)", _lines(_ID + rb" " + _ID + rb" .*"), MOST_BYTES),
    (r"info/refs", _lines(_ID + rb"\t" + _REF + rb"(?:\^\{\})?"), MOST_BYTES),
    (r"info/sparse-checkout", _lines(rb"[^\x00-\x08\x0e-\x1f]*"), MOST_TEXT),
    (r"reftable/(?:tables\.list|0x[0-9a-f]+-0x[0-9a-f]+-[0-9a-f]+\.(?:ref|log))", _whole(rb".*"), MOST_BYTES),
    (r"gc\.pid", _whole(rb"\d+ \S*\s*"), 4_096),
    # A name without its program: git runs no sample.
    (r"hooks/[a-z-]+\.sample", _whole(rb".*"), MOST_TEXT),
    # Between two commands of a rebase, a series of picks, or of mails.
    (r"rebase-merge/(?:git-rebase-todo(?:\.backup)?|done)|sequencer/todo", _TODO, MOST_TEXT),
    (r"(?:rebase-merge|rebase-apply)/head-name", _whole(_REF + rb"\n?|detached HEAD\n?"), 4_096),
    (r"(?:rebase-merge|rebase-apply)/author-script", _AUTHOR, MOST_TEXT),
    (
        r"rebase-merge/(?:onto|orig-head|amend|stopped-sha|squash-onto|autostash)"
        r"|rebase-apply/(?:onto|orig-head|original-commit|abort-safety|autostash)|sequencer/(?:head|abort-safety)",
        _IDS,
        MOST_TEXT,
    ),
    (
        r"(?:rebase-merge|rebase-apply)/rewritten(?:-list|-pending)?",
        _lines(_ID + rb"(?: " + _ID + rb")?"),
        MOST_TEXT,
    ),
    (r"rebase-merge/update-refs", _lines(_ID + rb"|" + _REF), MOST_TEXT),
    (r"rebase-merge/refs-to-delete", _lines(_REF), MOST_TEXT),
    (r"rebase-merge/current-fixups", _lines(rb"(?:fixup|squash)(?: -[cC])? " + _ID), MOST_TEXT),
    (r"rebase-merge/strategy", _whole(rb"(?:" + _STRATEGIES + rb")?\n?"), 100),
    (r"rebase-merge/strategy_opts", _whole(rb"(?:\s*'?" + _STRATEGY_OPTION + rb"'?)*\s*"), 4_096),
    (r"rebase-merge/gpg_sign_opt|rebase-apply/gpg_sign_opt", _whole(rb"-S[\w@.<> +-]*\n?"), 400),
    (r"rebase-merge/allow_rerere_autoupdate", _whole(rb"--(?:no-)?rerere-autoupdate\n?"), 100),
    (r"rebase-merge/(?:msgnum|end)|rebase-apply/(?:next|last)", _whole(rb"\d{1,9}\n?"), 20),
    (r"rebase-merge/(?:message(?:-squash|-fixup)?|patch)", _TEXT, MOST_BYTES),
    (
        r"rebase-apply/(?:\d{4,9}|patch|info|msg|msg-clean|final-commit|patch-merge-index)",
        _whole(rb".*"),
        MOST_BYTES,
    ),
    (r"rebase-apply/apply-opt", _whole(rb"\s*(?:" + _APPLY_OPTION + rb"\s*)*"), 4_096),
    (
        r"rebase-merge/(?:interactive|quiet|verbose|signoff|force-rebase|drop_redundant_commits"
        r"|keep_redundant_commits|cdate_is_adate|ignore_date|no-reschedule-failed-exec|reschedule-failed-exec)"
        r"|rebase-apply/(?:rebasing|applying|keep|keepcr|messageid|no_inbody_headers|quiet|quoted-cr|scissors|sign"
        r"|threeway|utf8|dirtyindex)",
        _FLAG,
        100,
    ),
)
_PATTERNS: Final = tuple((re.compile(name), form, most) for name, form, most in _FORMS)
_OBJECTS: Final = re.compile(
    r"objects/(?:[0-9a-f]{2}/(?:[0-9a-f]{62}|[0-9a-f]{38})"
    r"|pack/(?:pack-[0-9a-f]{40,64}\.(?:pack|idx|rev|bitmap|mtimes|keep|promisor)"
    r"|multi-pack-index(?:-[0-9a-f]+\.(?:bitmap|rev))?)"
    r"|info/(?:packs|commit-graph|commit-graphs/(?:commit-graph-chain|graph-[0-9a-f]{40,64}\.graph)))"
)
_UNFINISHED: Final = re.compile(
    r"(?:.+/)?(?:\.?tmp[-_][^/]+|[^/]+\.lock|\.tmp-[^/]+|index\.[^/]+|next-index-[^/]+)|objects/tmp_objdir-.+"
)
"""Files under a name that git uses until they are complete: it reads none of them later."""
SETTINGS: Final = re.compile(r"config(?:\.worktree)?|sequencer/opts")
_WORKTREE: Final = re.compile(r"worktrees/([^/]+)/(.+)")
_RESERVED: Final = re.compile(r"(?:info/(?:attributes|exclude|grafts)|objects/info/.*alternates)")

_REASONS: Final = {
    "config": "git obeys it, and may run what it names",
    "hooks": "git runs it",
    "commondir": "it says where git finds settings and hooks",
    "gitdir": "it says where git finds a worktree",
    "info": "git obeys it",
    "remotes": "git takes an address from it",
    "branches": "git takes an address from it",
    "refs": "git reads another object in place of the one that it names",
    "objects": "git reads objects from where it says",
    "rebase-merge": "git goes on by it, and may run what it names",
    "rebase-apply": "git goes on by it, and may write where it says",
    "sequencer": "git goes on by it, and may run what it names",
}


@dataclass(frozen=True, slots=True)
class GitFolder:
    """What the grammar has to know of the folder that a file lies in."""

    worktree: str = ""
    """For the folder of a submodule, the path of its files as its settings may say it."""


def refusal(name: str, before: bytes | None, after: bytes | None, folder: GitFolder = GitFolder()) -> str:
    """Return why git's plain work does not change the file `name` of a git folder from `before` to `after`;
    empty if it does.

    `None` stands for no file.
    """
    if linked := _WORKTREE.fullmatch(name):
        return _worktree_refusal(linked[2], before, after)
    if SETTINGS.fullmatch(name):
        return _settings_refusal(name, before, after, folder)
    if _OBJECTS.fullmatch(name) or _UNFINISHED.fullmatch(name):
        return ""
    for pattern, form, most in _PATTERNS:
        if pattern.fullmatch(name) and ".." not in name.split("/"):
            if after is None:
                return "a repository is none without it" if name == "HEAD" else ""
            if len(after) > most:
                return f"git does not write so much there: {len(after):,} bytes"
            return (
                "" if form(after) else _REASONS.get(name.partition("/")[0], "git does not write it like that")
            )
    if name == "info/exclude" and before is None and after is not None and not _rules(after):
        return ""
    return _REASONS.get(name.partition("/")[0], "git's own work does not make or change it")


def _rules(content: bytes) -> list[bytes]:
    """Return the lines that say something."""
    return [line for line in content.split(b"\n") if line.strip() and not line.startswith(b"#")]


def _worktree_refusal(name: str, before: bytes | None, after: bytes | None) -> str:
    """Judge a file of a linked worktree's own folder."""
    if name == "commondir":
        return "" if after in (None, b"../..\n") else _REASONS["commondir"]
    if name == "gitdir":
        # Whether the place is in the workspace and points back, the guard looks up.
        return "" if after is None or re.fullmatch(rb"[^\x00\n]+/\.git\n", after) else _REASONS["gitdir"]
    if name == "locked":
        return "" if after is None or len(after) < MOST_TEXT else "git does not write so much there"
    if after is None and before is not None:
        return ""
    return refusal(name, before, after)


def _settings_refusal(name: str, before: bytes | None, after: bytes | None, folder: GitFolder) -> str:
    if after is None:
        return _REASONS["config"] if name == "config" else ""
    if len(after) > MOST_TEXT:
        return f"git does not write so much there: {len(after):,} bytes"
    refused = refused_settings(
        before or b"", after, sequencer=name.startswith("sequencer"), worktree=folder.worktree
    )
    return f"git obeys {', '.join(refused[:3])}" if refused else ""


def is_unfinished(name: str) -> bool:
    """Return whether git uses a file of that name only until it is complete."""
    return _UNFINISHED.fullmatch(name) is not None


def is_object_name(name: str) -> bool:
    """Return whether git writes an object, or a list of objects, under that name."""
    return _OBJECTS.fullmatch(name) is not None or is_unfinished(name)


def state_of(name: str) -> Iterator[str]:
    """Yield the folder of an interrupted work that a file belongs to, if it does."""
    parts = name.split("/")
    if parts[0] == "worktrees" and len(parts) > 3 and parts[2] in STATE_FOLDERS:
        yield "/".join(parts[:3])
    elif len(parts) > 1 and parts[0] in STATE_FOLDERS:
        yield parts[0]
