"""`Lab`, the object that most users hold: runs, suites and comparisons over one log."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.host.homes import moved_notice
from kestrel_lab.permissions.rulebook import read_rulebook
from kestrel_lab.runtime.options import (
    LIMITS,
    SETTINGS,
    LabKeywords,
    LabOptions,
    RunOptions,
    may_be_none,
    takes_options,
)
from kestrel_lab.runtime.project_trust import TrustedFiles, check_home, ignored_notice
from kestrel_lab.runtime.settings import Settings, load_settings, mcp_servers
from kestrel_lab.runtime.sync import blocking_twin
from kestrel_lab.views.html.elements import headline_html, table_html

if TYPE_CHECKING:
    from kestrel_lab.evals.evaluations import Evaluations
    from kestrel_lab.runtime.operations.web_evidence import EvidenceBundle
    from kestrel_lab.runtime.run import RunHistory
    from kestrel_lab.runtime.session import Session
    from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
    from kestrel_lab.runtime.workspace.memory import WorkspaceMemory

P = ParamSpec("P")
T = TypeVar("T")

_OPENED_WITH: Final = {"provider", "api_base", "cache_url", "containment", "network_home", "otel"}
"""Options that hold for as long as a session is open."""
_TOLD: set[str] = set()


def _tell_ignored(settings: Settings) -> None:
    """Write once which settings of a project are ignored because nobody trusts them."""
    _tell(ignored_notice(settings.ignored))


def _tell(text: str) -> None:
    """Write a notice once, if there is one."""
    if text and text not in _TOLD:
        _TOLD.add(text)
        sys.stderr.write(f"{sanitize_text(text)}\n")


def _part(
    part: str, method: Callable[[], Callable[Concatenate[Any, P], T]]
) -> Callable[Concatenate[Lab, P], T]:
    """Offer a method of a `part` as one of the lab's own, with its parameters and documentation."""
    return cast("Callable[Concatenate[Lab, P], T]", _Part(part, method))


class _Part:
    """Stands for a method of a part until it is first used: importing `Lab` does not load the half of the
    package that the part needs.
    """

    def __init__(self, part: str, method: Callable[[], Callable[..., Any]]) -> None:
        self._part, self._method = attrgetter(part), method

    def __set_name__(self, owner: type[Lab], name: str) -> None:
        self._name = name

    def __get__(self, lab: Lab | None, owner: type[Lab]) -> Callable[..., Any]:
        part, method = self._part, self._method()

        @functools.wraps(method)
        def forwarded(lab: Lab, /, *args: Any, **options: Any) -> Any:
            return method(part(lab), *args, **options)

        forwarded.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]  # `inspect` reads it
        setattr(Lab, self._name, forwarded)  # from now on the method is called without this descriptor
        return cast("Callable[..., Any]", getattr(owner if lab is None else lab, self._name))


def _of_session() -> type[Session]:
    from kestrel_lab.runtime.session import Session

    return Session


def _of_history() -> type[RunHistory]:
    from kestrel_lab.runtime.run import RunHistory

    return RunHistory


def _of_evals() -> type[Evaluations]:
    from kestrel_lab.evals.evaluations import Evaluations

    return Evaluations


def _prepare_model(env: Mapping[str, str], model: str | Model | None) -> None:
    from kestrel_lab.models.resolve import prepare_in_background  # providers: only in a kernel

    if model is None or isinstance(model, str):
        prepare_in_background(env, model)


class Lab:
    """Runs agents and measures them.

    Takes `LabOptions`, which describes them. What is not given comes from `kestrel.toml`,
    `[tool.kestrel]` in `pyproject.toml` or `KESTREL_…` environment variables (`kestrel config` shows which),
    and at last from built-in defaults: `Lab(home=None, model=None, approve="ask")`. Without a `home` the log
    is kept outside of the current folder, in one of its own below the user's state folder: `kestrel home`
    shows where, and moves it.

    `mcp` adds MCP servers to those that are configured: `Lab(mcp={"time": {"command": "mcp-server-time"}})`.
    Their tools are called `time:convert_time` and count as MEDIUM and opaque unless their table says
    otherwise.

    `rules` adds rules about calls to those of the settings, as a file or as tables: `Lab(rules=[{"tool":
    "bash", "command": "git diff ...", "verdict": "allow"}])`. Deny wins over ask, ask over allow.

    `session` has what is used less often: the log, models and tools, the run history. `evals` has everything
    that is done with suites, of which `eval` and `compare` are here too. Leaving `with Lab(…)` or `async with
    Lab(…)` closes all of it.
    """

    __slots__ = ("__weakref__", "evals", "session", "settings")

    @takes_options(LabKeywords)
    def __init__(
        self,
        home: str | Path | None = None,
        model: str | Model | None = None,
        approve: str | None = None,
        **options: Unpack[LabKeywords],
    ) -> None:
        given: dict[str, Any] = {
            name: "none" if value is None else value
            for name, value in options.items()
            if value is not None or may_be_none(LabOptions, name)
        }
        env = given.setdefault("env", os.environ)
        limits = given.pop("limits", None)
        bounds = (
            {} if limits is None else {key: value for key, value in limits.as_json().items() if key in LIMITS}
        )
        settings = load_settings(Path.cwd(), env)
        same = LabOptions.__annotations__.keys() & SETTINGS.keys() - {"model"}
        self.settings = settings.given(
            "Lab(…)",
            home=None if home is None else str(home),
            model=model if isinstance(model, str) or model is None else model.name,
            approve=approve,
            **{name: given.pop(name) for name in same & given.keys()},
            **{key: "none" if value is None else value for key, value in bounds.items()},
        )
        _tell_ignored(self.settings)
        if home is None and self.settings.items["home"].source != "KESTREL_HOME":
            check_home(Path(self.settings["home"]), TrustedFiles.of(env))
        given["mcp"] = {**mcp_servers(Path.cwd(), env), **given.get("mcp", {})}
        given["rules"] = self.settings.rules + read_rulebook(given.get("rules"), "Lab(rules=…)")
        self.session = _of_session()(
            self.settings["home"],
            model=self.settings["model"] if model is None else model,
            limits=limits or self.settings.limits,
            **{name: self.settings[name] for name in same},
            **given,
        )
        self.evals = _of_evals()(self.session)
        if "ipykernel" in sys.modules:  # where a person still reads and types; a script asks at once
            _prepare_model(env, self.session.options.get("model"))
        if self.settings.items["home"].source == "default" and not self.session.store.runs(limit=1):
            _tell(moved_notice(Path.cwd(), env))

    start = _part("session", lambda: _of_session().start)
    run = _part("session", lambda: _of_session().run)
    run_sync = _part("session", lambda: _of_session().run_sync)
    resume = _part("session", lambda: _of_session().resume)
    fork = _part("session", lambda: _of_session().fork)
    chat = _part("session", lambda: _of_session().chat)
    get = _part("session", lambda: _of_session().get)
    close = _part("session", lambda: _of_session().close)
    runs = _part("session.history", lambda: _of_history().runs)
    decide = _part("session.history", lambda: _of_history().decide)
    diff = _part("session.history", lambda: _of_history().diff)
    eval = _part("evals", lambda: _of_evals().eval)
    eval_sync = _part("evals", lambda: _of_evals().eval_sync)
    compare = _part("evals", lambda: _of_evals().compare)
    compare_sync = _part("evals", lambda: _of_evals().compare_sync)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.__aexit__(kind, error, trace)

    def configure(self, key: str, value: Any) -> Settings:
        """Change a setting for the runs that this lab begins from now on, as text or as the value itself;
        returns that setting.

        Files stay as they are. Raises `UsageError` for a setting that does not exist, a value that it cannot
        have, and for `home` and others that a lab is made with.
        """
        changed = self.settings.given("this session", **{key: value})
        if key in LIMITS:
            update: LabOptions = {"limits": changed.limits}
        elif key in LabOptions.__annotations__.keys() - _OPENED_WITH:
            update = {key: changed[key]}  # type: ignore[misc]  # a field that is a setting of the same name
        else:
            msg = (
                f"{key} cannot be changed in a lab that is at work: make another with Lab(…), or set "
                "it in kestrel.toml and begin anew"
            )
            raise UsageError(msg)
        self.session.change(**update)
        self.settings = changed
        return changed.only(key)

    @property
    def macros(self) -> WorkspaceMacros:
        """The macros (tool sequences that agents use again) of the current folder, saved or proposed;
        `macros.at(folder)` for another.
        """
        from kestrel_lab.runtime.workspace.macros import WorkspaceMacros

        return WorkspaceMacros(self.session)

    @property
    def memory(self) -> WorkspaceMemory:
        """The notes that later runs in the current folder can recall; `memory.at(folder)` for another."""
        from kestrel_lab.runtime.workspace.memory import WorkspaceMemory

        return WorkspaceMemory(self.session)

    @takes_options(RunOptions)
    async def websearch(
        self,
        question: str,
        *,
        queries: int = 3,
        results: int = 8,
        pages: int = 4,
        grounded: bool = False,
        **options: Unpack[RunOptions],
    ) -> EvidenceBundle:
        """Search the web for what answers `question`: a run, whose outcome is the evidence with its quotes
        checked.

        At most so many `queries`, `results` of each and `pages` read; searching is LOW, reading a page is
        MEDIUM and asked about unless the policy allows it (`approve="auto:medium"`). `grounded` has the
        model's own web search find the pages. Where no model can be used, or `model="none"`, there are
        results and no facts. Takes the options of `run`. Raises `UsageError` for a model without web search
        where `grounded` is asked for, `RunFailed` when the run fails, `ApprovalRequired` like `run`.
        """
        from kestrel_lab.agents import SearchAgent
        from kestrel_lab.runtime.workspace.search import evidence_of, search_model

        agent = SearchAgent(queries=queries, results=results, pages=pages, grounded=grounded)
        options["model"], options["plan"] = (
            search_model(self.session, options.get("model"), grounded=grounded),
            agent,
        )
        return evidence_of(await self.session.run(question, **options))

    websearch_sync = blocking_twin(websearch)

    def __repr__(self) -> str:
        session = self.session
        tools = len(session.registry.known_at_once(None)[0])
        return (
            f"Lab(home={str(session.home)!r}, model={self._model_name()!r}, "
            f"approve={session.options['approve']!r}): {tools} tools"
        )

    def _repr_html_(self) -> str:
        session, registry = self.session, self.session.registry
        rows = [
            ("log", str(session.store.path)),
            ("model", self._model_name()),
            (
                "approval policy",
                session.options["approve"] + (f", {len(session.rules)} rules" if session.rules else ""),
            ),
            (
                "limits",
                ", ".join(
                    f"{key} {value}" for key, value in session.limits.as_json().items() if value is not None
                ),
            ),
            ("tools", ", ".join(registry.known_at_once(None)[0].names)),
            ("tools on request", ", ".join(tool.name for tool in registry.toolbox if tool.group)),
            ("runs", str(session.history.count())),
        ]
        return f"{headline_html('Lab')}{table_html(('what', 'value'), rows)}"

    def _model_name(self) -> str:
        model = self.session.options.get("model")
        if model is None:
            return "the first that is found"
        return model if isinstance(model, str) else f"{model.name} ({model.kind})"
