"""Kinds of tools: one word for what agents of different makers name differently.

Claude Code's `Bash`, Codex's `command_execution`, Gemini CLI's `run_shell_command` and our `bash` are of the
kind `command`. The kind follows from the tool's name, and from the arguments if one tool does several things.
It is derived each time and never stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

ToolKind = Literal["command", "read", "edit", "search", "web", "ask"]
KINDS: Final[tuple[str, ...]] = get_args(ToolKind)

_NAMES: Final[dict[ToolKind, str]] = {
    # Our own, Claude Code, Codex, Gemini CLI, OpenCode, OpenHands, SWE-agent, Terminus, Aider-like editors,
    # and the kinds of the agent client protocol.
    "command": "bash shell command exec execute run terminal bash_command command_execution exec_command "
    "execute_bash execute_command local_shell local_shell_call powershell run_command run_in_terminal "
    "run_ipython run_shell run_shell_command run_terminal_cmd shell_command write_stdin unified_exec "
    "execute_ipython_cell ipython python run_python run_cell",
    "read": "read view open cat goto scroll_up scroll_down read_file read_files read_many_files batch_read "
    "view_file view_image open_file file_read file_exists ls list list_dir list_directory list_files tree "
    "notebookread notebook_read read_notebook read_text_file read_media_file read_multiple_files "
    "list_variables inspect_variable read_result bashoutput",
    "edit": "edit write create insert replace append patch delete move edit_file write_file create_file "
    "str_replace multi_edit multiedit apply_patch file_change file_edit file_write delete_file move_file "
    "notebookedit notebook_edit insert_cell edit_cell delete_cell undo_edit search_replace",
    "search": "search glob grep find grep_search file_search find_file search_dir search_file search_files "
    "search_code search_file_content codebase_search codesearch find_definition find_references "
    "semantic_search",
    "web": "fetch webfetch websearch web_fetch web_search google_web_search http_get extract_links browse "
    "web_search_call",
    "ask": "ask ask_user askuserquestion ask_user_question ask_followup_question request_user_input question",
}
NAMED_KINDS: Final[Mapping[str, ToolKind]] = {
    name: kind for kind, names in _NAMES.items() for name in names.split()
}
"""Kinds by the names of tools, in lower case."""
_OWN_NOTES: Final = frozenset(
    "think calculate calculator finish todo todo_read todo_write todoread todowrite write_todos update_plan "
    "task_tracker task_tracking".split()
)
"""Tools of no kind with which an agent thinks, reckons, plans or ends: they change nothing but its notes."""
_EDITORS: Final = frozenset({"str_replace_editor", "str_replace_based_edit_tool", "file_editor"})
"""Tools that read and edit, as their argument `command` says."""
_PATHS: Final = ("file_path", "filePath", "path", "notebook_path", "target_file", "filename")
"""Names of arguments for the file that a tool edits."""
_READING: Final = frozenset(
    "browse get list read view show fetch load lookup describe count check inspect retrieve calculate".split()
)
_SEARCHING: Final = frozenset("search find query filter".split())
_ACTING: Final = frozenset(
    "add and apply book buy call cancel change clear close commit confirm convert copy create delete deploy "
    "drop edit email exchange exec execute forward grant import insert invite kill mark merge message modify "
    "move or out patch pay place post publish purge push put remove rename replace reply reset return run "
    "save schedule send set share start stop store submit subscribe sync transfer trigger undo update upload "
    "upsert write".split()
)
"""Words of a name that say that a tool acts, or may act, whatever the name begins with."""
_READING_LATER: Final = frozenset(
    "check count describe find get list lookup query read search show view".split()
)
"""Verbs of reading that stand behind the name of what is read, too: `git_get_keys`, `stock_check`."""
_READ: Final = frozenset("balance details history info status summary total".split())
"""Words for what is read, with which a name ends: `cart_total`."""
_ENTERING: Final = frozenset(
    "authenticate checkout follow like login logout rate signin signout star unfollow unlike unstar validate "
    "verify".split()
)
"""Further verbs of tools that act, of which most make, send and delete nothing."""
Effect = Literal["file", "send", "delete", "program"]
_EFFECTS: Final[Mapping[Effect, frozenset[str]]] = {
    kind: frozenset(words.split())
    for kind, words in cast(
        "dict[Effect, str]",
        {
            "file": "append archive attachment attachments backup cell clone code commit content "
            "contents convert copy dir directory doc docs document documents download edit "
            "export file files folder generate git image insert log merge move node notebook "
            "note notes page patch path print pull push report repo repository save script "
            "sheet sync text upload write zip",
            "send": "announce appointment book buy calendar call chat checkout comment deploy email "
            "event exchange forward invitation invite invoice issue mail meeting merge "
            "message notify order participants pay payment post pr publish pull purchase push "
            "refund register release reminder reply request reserve return schedule send "
            "share sms submit subscribe sync ticket transact transfer tweet upload",
            "delete": "cancel change clear close delete discard drop edit exchange kill merge modify "
            "move patch purge refund remove rename replace reset return revoke set stop sync "
            "unsubscribe update upsert write",
            "program": "action agent apply build call cell code command do eval exec execute function "
            "invoke job kernel notebook perform pipeline process program python query run "
            "script shell sql start task test tests tool trigger use workflow",
        },
    ).items()
}
"""Words of a tool's name, verbs and objects, that say that it may have an effect."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def tool_kind(name: str, args: Mapping[str, Any] | None = None) -> ToolKind | Literal[""]:
    """Return the kind of a tool, of a call with these arguments; empty for one that is of none.

    A name that is not in the table is of the kind `read` or `search` if it begins with a verb of that meaning
    and has no word of acting: `get_balance`, `searchFlights`, but not `get_or_create_user`. Tools of MCP
    servers (`mcp__SERVER__TOOL`) are of no kind: their servers name them as they like.
    """
    known = name.lower().replace("-", "_")
    if known in _EDITORS:
        return "read" if (args or {}).get("command") == "view" else "edit"
    if known in NAMED_KINDS:
        return NAMED_KINDS[known]
    words = _words(name)
    if len(words) < 2 or (_ACTING | _ENTERING) & set(words):
        return ""
    verb = words[1] if words[1] in _READING_LATER and words[0] not in _SEARCHING else words[0]
    reads = verb in _READING | _READING_LATER or words[-1] in _READ
    return "search" if verb in _SEARCHING else "read" if reads else ""


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def names_no(effect: Effect, name: str) -> bool:
    """Return whether a tool's name says what it does, and that is nothing that has this effect.

    `send_money` makes no file, and `create_user` sends nothing. A name that says nothing (one word, no verb
    that is known, a tool of an MCP server), and one of a program, may have any.
    """
    words = set(_words(name))
    if len(words) < 2 or name.startswith("mcp__") or words & _EFFECTS["program"]:
        return False
    undoes = effect == "delete" and any(word.startswith("un") for word in words)  # unstar, unfollow
    return bool(words & (_ACTING | _ENTERING)) and not undoes and not words & _EFFECTS[effect]


def only_reads(name: str, args: Mapping[str, Any] | None = None) -> bool:
    """Return whether a call changes nothing, by the kind of its tool: it reads, searches, looks on the web,
    asks, or keeps the agent's own notes.
    """
    kept = name.lower().replace("-", "_") in _OWN_NOTES
    return kept or tool_kind(name, args) in ("read", "search", "web", "ask")


def edited_file(name: str, args: Mapping[str, Any]) -> str:
    """Return the file that a call of an editing tool names; empty where it names none in an argument."""
    if tool_kind(name, args) != "edit":
        return ""
    return next((path for key in _PATHS if isinstance(path := args.get(key), str)), "")


def command_line(name: str, args: Mapping[str, Any]) -> str | None:
    """Return the command that a call runs, as a line; `None` for a call that runs none.

    A tool of no known kind that has a text `command` runs it.
    """
    kind = tool_kind(name, args)
    found = args.get("command", args.get("cmd", args.get("keystrokes")) if kind == "command" else None)
    if isinstance(found, list) and kind == "command" and all(isinstance(word, str) for word in found):
        return found[-1] if len(found) == 3 and found[1] in ("-c", "-lc") else " ".join(found)
    return found if isinstance(found, str) and kind in ("command", "") else None
