"""Answers about three installed packages, written by hand in another style after the checks were done; half of them have something made up.

`{line:FILE|TEXT}` stands for the line of the file that has the text, so that small releases of the packages do no harm.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

TRUE: Final[tuple[tuple[str, str], ...]] = (
    ("pluggy", "Plugins get registered through `PluginManager.register()`, see `_manager.py:{line:_manager.py|    def register}`. If you hand it `None`, it silently returns `None`; there's a comment about issue #731 explaining why."),
    ("pluggy", "**TL;DR** blocking a plugin name is just storing `None` for it.\n\n1. `set_blocked` unregisters the name and then does `self._name2plugin[name] = None`.\n2. `is_blocked` checks for exactly that.\n3. `unblock` deletes the entry again.\n\nAll three live in `pluggy/_manager.py`."),
    ("pluggy", "No - `unblock` doesn't raise when the name was never blocked, it returns `False`. (I looked at {line:_manager.py|def unblock} ff. in _manager.py.)"),
    ("pluggy", "You could write your own subclass, for instance `class TracingManager(PluginManager)`, and override `register` there. Nothing called `TracingManager` exists in pluggy today."),
    ("pluggy", "The error you're seeing comes from `register`:\n\n```python\n            raise ValueError(\n                \"Plugin name already registered: \"\n                f\"{plugin_name}={plugin}\\n{self._name2plugin}\"\n            )\n```\n\nso you are registering the same name twice."),
    ("pluggy", "`load_setuptools_entrypoints` counts what it loads. It starts with `count = 0`, walks over `importlib.metadata.distributions()`, and skips entry points which are blocked or registered already. The count is returned on the last line of the method."),
    ("pluggy", "> This overrides any previous result or exception.\n\nThat's what the docstring of `force_result` says, so yes, a wrapper can swallow an exception."),
    ("pluggy", "To reproduce:\n\n```console\n$ python -m venv .venv\n$ .venv/bin/pip install pluggy pytest\n$ .venv/bin/python -c \"import pluggy; print(pluggy.__version__)\"\n1.6.0\n```\n\nThen put a breakpoint at `_manager.py` line {line:_manager.py|    def register}."),
    ("pluggy", "`_Result` is only an alias: _result.py ends with `_Result = Result`, \"kept for backward compatibility\" as the comment above it puts it. New code should use `pluggy.Result`."),
    ("pluggy", "| question | answer |\n|---|---|\n| Where's the tracing? | `_tracing.py` |\n| Where do warnings live? | `_warnings.py` |\n| Is there a `_plugins.py`? | no, `_plugins.py` does not exist |"),
    ("h11", "The limit is 16 KiB: `DEFAULT_MAX_INCOMPLETE_EVENT_SIZE = 16 * 1024` in `_connection.py`. The comment above it mentions that node.js uses 80 * 1024 and tomcat 8 * 1024, so h11 sits in the middle."),
    ("h11", "Responses with status 204 or 304 never have a body as far as h11 is concerned, and neither do responses to HEAD; see `_body_framing` (h11/_connection.py#L{line:_connection.py|def _body_framing}) for all four steps."),
    ("h11", "You can't instantiate `ProtocolError` directly: `__init__` raises TypeError with \"tried to directly instantiate ProtocolError\". Use LocalProtocolError or RemoteProtocolError instead - both are subclasses, defined in _util.py."),
    ("h11", "The default for `error_status_hint` is 400 (`_util.py`, line {line:_util.py|def __init__(self, msg: str, error_status_hint}), \"a generic catch-all for protocol violations\" in the words of the docstring."),
    ("h11", "Short version: `maybe_extract_next_line` remembers how far it has searched (`_next_line_search`), so a slow client can't make it quadratic. The \"+ 2\" is there to compensate for the CRLF."),
    ("h11", "It's in `_receivebuffer.py`, roughly 150 lines long. The class is called `ReceiveBuffer`; `__iadd__` appends, `_extract` takes bytes from the front and resets both search positions to 0."),
    ("h11", "I'd add a test like this (new file, say `tests/test_receivebuffer_limits.py`):\n\n```python\nfrom h11._receivebuffer import ReceiveBuffer\n\n\ndef test_partial_line_is_kept() -> None:\n    buf = ReceiveBuffer()\n    buf += b\"GET / HT\"\n    assert buf.maybe_extract_next_line() is None\n```"),
    ("h11", "Yes. Both sentinels `NEED_DATA` and `PAUSED` are exported; `__all__` in `_connection.py` is `[\"Connection\", \"NEED_DATA\", \"PAUSED\"]`."),
    ("h11", "h11 does no I/O, so there's no `connect()` in it, no socket handling, and no `h11/transport.py` either. You feed `receive_data` and call `next_event` until it gives you `NEED_DATA`."),
    ("h11", "Chunked wins over Content-Length. From `_body_framing`:\n\n```python\n    transfer_encodings = get_comma_header(event.headers, b\"transfer-encoding\")\n    if transfer_encodings:\n        assert transfer_encodings == [b\"chunked\"]\n        return (\"chunked\", ())\n```\n"),
    ("iniconfig", "Comments start with `#` or `;` - `COMMENTCHARS = \"#;\"` at the top of `_parse.py`. There is no way to configure this."),
    ("iniconfig", "`ParseError.__str__` adds one to the line number (`self.lineno + 1`), because internally lines are counted from zero. exceptions.py has only 16 lines, it's quickly read."),
    ("iniconfig", "You get \"no section header defined\" when a key comes before the first `[section]`; it's raised in parse_ini_data in `_parse.py`, line {line:_parse.py|no section header defined}."),
    ("iniconfig", "A BOM at the beginning is fine: `data = data.removeprefix(UTF8_BOM)` strips it before anything else happens."),
    ("iniconfig", "Here's the shape of a parsed line, as JSON:\n\n```json\n{\"lineno\": 3, \"section\": \"pytest\", \"name\": \"addopts\", \"value\": [\"-ra\"]}\n```\n\nIn code that's the NamedTuple `ParsedLine`."),
    ("iniconfig", "`SectionWrapper.get` is overloaded four times for the type checker, and the real implementation simply delegates to `self.config.get(...)`. I could not find any caching in it."),
    ("iniconfig", "Run `git log --oneline -- src/iniconfig/_parse.py` in a checkout of the project to see when `strip_section_whitespace` came in; the wheel itself doesn't carry history."),
    ("iniconfig", "With `strip_section_whitespace=True` Unicode whitespace is stripped too. The docstring says: \"When True, addresses issue #4 by stripping Unicode whitespace.\" The default is False."),
    ("iniconfig", "It depends on what you mean by \"fast\". The parser is a simple loop, no regular expressions as far as I can see, about 160 lines in `_parse.py`. For a 10,000 line file you should measure it yourself."),
    ("iniconfig", "The public names are `IniConfig`, `ParseError`, `COMMENTCHARS` and `iscommentline` (iniconfig/__init__.py:{line:__init__.py|__all__}). `SectionWrapper` isn't in `__all__`, but you get one back from `config[\"section\"]`."),
)  # fmt: skip

FALSE: Final[tuple[tuple[str, str, str], ...]] = (
    ("pluggy", "file", "Plugins get registered through `PluginManager.register()`, which sits in `_registry.py`. If you hand it `None`, it silently returns `None`."),
    ("pluggy", "file", "Tracing is handled in pluggy/tracing/core.py; have a look at TagTracer there."),
    ("pluggy", "line", "Plugins get registered through `PluginManager.register()`, see `_manager.py:512`. If you hand it `None`, it silently returns `None`."),
    ("pluggy", "line", "The method `unblock` starts on line 900 of _manager.py and returns whether the name was blocked."),
    ("pluggy", "name", "Blocking a plugin: use `PluginManager.block_plugin(name)`, and `is_blocked` to check for it."),
    ("pluggy", "name", "1. `set_blocked` unregisters the name.\n2. `purge_blocked_plugins()` then clears the table for good."),
    ("pluggy", "name", "```python\nfrom pluggy import PluginManager, HookRegistry\n\npm = PluginManager(\"demo\")\n```\n\nThat is all you need."),
    ("pluggy", "quote", "> This never overrides a previous result or exception.\n\nThat's what the docstring of `force_result` says."),
    ("pluggy", "quote", "`register` raises ValueError, the text starts with \"Plugin name was registered twice\"."),
    ("pluggy", "command", "Just type `pluggy-doctor --verbose` in your shell and it lists every hook."),
    ("h11", "number", "The limit is set in `_connection.py`: `DEFAULT_MAX_INCOMPLETE_EVENT_SIZE = 64 * 1024`."),
    ("h11", "number", "The default for `error_status_hint` is 500, which is a generic catch-all."),
    ("h11", "number", "Responses with status 207 never have a body as far as `_body_framing` in h11/_connection.py is concerned."),
    ("h11", "number", "The comment above DEFAULT_MAX_INCOMPLETE_EVENT_SIZE mentions that node.js uses 96 * 1024, see _connection.py."),
    ("h11", "quote", "You can't instantiate `ProtocolError`: `__init__` raises TypeError with \"cannot instantiate abstract ProtocolError\"."),
    ("h11", "quote", "From `_body_framing` in `_connection.py`:\n\n```python\n    if transfer_encodings:\n        assert transfer_encodings == [b\"gzip\"]\n        return (\"chunked\", ())\n```"),
    ("h11", "name", "It's in `_receivebuffer.py`. The class is called `RingReceiveBuffer`; `__iadd__` appends."),
    ("h11", "name", "Call `Connection.feed_bytes` and then `next_event` until it gives you `NEED_DATA`."),
    ("h11", "file", "The state machine is in `h11/_machine.py`, events in `_events.py`."),
    ("h11", "line", "`ReceiveBuffer` is declared at h11/_receivebuffer.py#L119."),
    ("h11", "command", "Run the fuzzers with:\n\n```bash\npip install h11\nh11fuzz --seconds 60\n```"),
    ("iniconfig", "number", "The file exceptions.py has 58 lines, it's quickly read."),
    ("iniconfig", "quote", "You get \"section header is missing here\" when a key comes before the first `[section]`; it's raised in parse_ini_data."),
    ("iniconfig", "quote", "The docstring of parse_ini_data says: \"When True, resolves issue #4 by removing any whitespace.\" The default is False."),
    ("iniconfig", "file", "`ParseError` is defined in `_parse.py`, next to ParsedLine."),
    ("iniconfig", "file", "| name | file |\n|---|---|\n| `ParsedLine` | `iniconfig/_lines.py` |\n| `ParseError` | `exceptions.py` |"),
    ("iniconfig", "line", "`class ParsedLine` (`_parse.py:88`) is a NamedTuple."),
    ("iniconfig", "name", "`SectionWrapper.get_all` delegates to `self.config.get(...)`."),
    ("iniconfig", "command", "`python -m iniconfig.validate setup.cfg` tells you whether a file parses."),
    ("iniconfig", "line", "The BOM is stripped at _parse.py:131 with `data = data.removeprefix(UTF8_BOM)`."),
)  # fmt: skip

LATER_TRUE: Final[tuple[tuple[str, str], ...]] = (
    ("tenacity", "Use `stop_any` if one condition is enough and `stop_all` if every one has to hold; the operators `|` and `&` on stop strategies build the same thing (`stop_base.__or__` and `stop_base.__and__`)."),
    ("tenacity", "Yes, `sum()` works on wait strategies. `__radd__` treats the accumulator's 0 as identity; any other number gives `NotImplemented`, so Python raises a TypeError at the `+`."),
    ("tenacity", "By default sleeping is `time.sleep`, wrapped in `tenacity.nap.sleep`. Its docstring even says \u201cThis is the default strategy, and may be mocked out for unit testing.\u201d"),
    ("tenacity", "What happens when all attempts fail? `RetryError` is raised (tenacity/__init__.py:{line:__init__.py|class RetryError}). With `reraise=True` you get the original exception instead."),
    ("tenacity", "Minimal example:\n\n```python\nfrom tenacity import retry, stop_after_attempt, wait_fixed\n\n\n@retry(stop=stop_after_attempt(3), wait=wait_fixed(2))\ndef fetch():\n    ...\n```\n\nThat makes at most three attempts with two seconds between them."),
    ("tenacity", "wait.py is where I'd look first:\n\n* `wait_fixed` - a constant\n* `wait_random` - between min and max, by default 0 and 1\n* `wait_combine` - the sum of several\n* `wait_chain` - one after the other"),
    ("tenacity", "There isn't a `wait_until` class, and no file called `schedule.py`; if you need that you'd have to write a callable which takes a `RetryCallState` and returns a float."),
    ("tenacity", "`sleep_using_event` (`nap.py`, lines {line:nap.py|class sleep_using_event}-43) may return early: there is a note by harlowja that it \"may *not* actually wait for timeout seconds if the event is set\"."),
    ("tenacity", "The Tornado support sits in its own module, `tornadoweb.py`, 64 lines. `_has_tornado` in the package's `__init__` decides whether it is used."),
    ("tenacity", "I checked the statistics property: it's defined on `BaseRetrying` around line {line:__init__.py|def statistics} of `__init__.py`, not on the `Retrying` class."),
    ("tenacity", "1. Create `examples/backoff.py`.\n2. Put your `@retry` decorated function into it.\n3. Start it with `python examples/backoff.py` and watch the output.\n\nNothing in tenacity itself has to change."),
    ("tenacity", "`wait_none` is `wait_fixed` with 0:\n\n```py\nclass wait_none(wait_fixed):\n    \"\"\"Wait strategy that doesn't wait at all before retrying.\"\"\"\n\n    def __init__(self) -> None:\n        super().__init__(0)\n```"),
    ("click", "`click.echo` is implemented in `utils.py`, and it's re-exported from the package, so `from click import echo` is fine."),
    ("click", "Exit codes: `UsageError` has `exit_code = 2`, while plain `ClickException` uses 1 (both in `exceptions.py`)."),
    ("click", "If you only want to know whether it is installed, `python -m pip show click` is enough; no need to run any code of your own."),
    ("click", "A group is a command as well: `class Group(Command)` in core.py. Adding a subcommand goes through `add_command`."),
    ("click", "The config could look like this:\n\n```toml\n[project.scripts]\nmytool = \"mytool.cli:main\"\n```\n\nwhere `mytool/cli.py` is a file you create yourself."),
    ("click", "Prompts are in `termui.py`: `prompt`, `confirm`, `progressbar`, `style`, `secho`. Nothing there is named `ask`, by the way."),
    ("click", "I'm not sure about Windows, I have not tested it. On paper `_winconsole.py` handles it."),
    ("click", "Testing: `CliRunner` lives in `testing.py` and has an `invoke` method; `isolated_filesystem` gives you a temporary folder."),
)  # fmt: skip

LATER_FALSE: Final[tuple[tuple[str, str, str], ...]] = (
    ("tenacity", "file", "Sleeping is implemented in tenacity/sleepers.py, which wraps `time.sleep`."),
    ("tenacity", "file", "`RetryError` is defined in `retry.py`, together with the predicates."),
    ("tenacity", "line", "`RetryError` is declared on line 611 of `__init__.py`."),
    ("tenacity", "line", "See `stop.py:12` for `stop_any`."),
    ("tenacity", "name", "To wait until a given time, use `wait_until_time` from `tenacity.wait`."),
    ("tenacity", "name", "`BaseRetrying.collect_metrics` gives you the numbers."),
    ("tenacity", "name", "```python\nfrom tenacity import retry, stop_after_failures\n```"),
    ("tenacity", "number", "`wait_random` waits between min and max, where `max` defaults to 30 (wait.py)."),
    ("tenacity", "number", "tornadoweb.py is a file of 164 lines in total."),
    ("tenacity", "quote", "The docstring of `sleep` says \u201cThis is a blocking strategy, and must never be mocked.\u201d"),
    ("tenacity", "quote", "`wait_combine` is documented as \"Multiply several waiting strategies.\""),
    ("tenacity", "command", "There's a CLI as well: `tenacity-run --attempts 3 ./script.sh` retries any script."),
    ("click", "file", "`CliRunner` lives in `click/testing/runner.py`."),
    ("click", "file", "`click.echo` is implemented in `termui.py`, in the function `echo`."),
    ("click", "line", "`CliRunner` starts at testing.py:7 and is documented there."),
    ("click", "name", "`Group.register_all` adds every subcommand at once."),
    ("click", "number", "`UsageError` has `exit_code = 64`, as in sysexits."),
    ("click", "quote", "> A command line toolkit that never prints to the console.\n\nsays the docstring of the package."),
    ("click", "command", "Generate the completion script with `click-complete --shell zsh`."),
    ("click", "command", "```bash\npip install click\npython -m click.scaffold new mytool\n```"),
)  # fmt: skip
"""A second such set, about two more packages, written after the checks were put right by the first."""

_LINE: Final = re.compile(r"\{line:(?P<file>[^|}]+)\|(?P<text>[^}]+)\}")


def placed(text: str, root: Path) -> str:
    """`text` with the numbers of lines put in; raises `LookupError` where the package has changed too much."""

    def number(match: re.Match[str]) -> str:
        for place, line in enumerate((root / match["file"]).read_text(encoding="utf-8").splitlines(), 1):
            if match["text"] in line:
                return str(place)
        msg = f"{root.name}/{match['file']} has no line with {match['text']!r}"
        raise LookupError(msg)

    return _LINE.sub(number, text)
