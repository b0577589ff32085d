"""Rulebook: all permission rules of a run, and their one verdict on a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.json_types import Json
from kestrel_lab.permissions.command_patterns import CommandPattern, Match
from kestrel_lab.permissions.policy import Policy, Ruling, no_rules
from kestrel_lab.permissions.rule import Rule, read_rule, read_rules, read_rules_file
from kestrel_lab.shell_syntax.parser import read_line
from kestrel_lab.views.html.table_view import TableView


@dataclass(frozen=True, slots=True, repr=False)
class Rulebook(TableView):
    """Rules from several places: deny wins over ask, ask over allow, in any order.

    So an added rule, of a run or another file, never lifts a denial.
    """

    rules: tuple[Rule, ...] = ()

    def __add__(self, other: Rulebook) -> Rulebook:
        return Rulebook((*self.rules, *other.rules))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def within(self, root: Path) -> Callable[[Call], Ruling | None]:
        """Return the rulings on calls of a run that works in `root`."""
        place = str(root)
        if not self.rules:
            return no_rules
        return lambda call: self.ruling(call, place)

    def ruling(self, call: Call, root: str) -> Ruling | None:
        """Return the verdict on a call and its rules; `None` if no rule applies.

        A call that may match a deny rule but is only known at run time is asked about. No rule allows an
        unsandboxed command.
        """
        mine = [rule for rule in self.rules if rule.names(call.target)]
        found = [(rule, rule.concerns(call, root)) for rule in mine if rule.verdict != "allow"]
        for rule, match in found:
            if rule.verdict == "deny" and match is Match.YES:
                return Ruling("deny", rule.source, rule.why)
        for rule, match in found:
            if rule.verdict == "ask" and match is Match.YES:
                return Ruling("ask", rule.source, rule.why)
        for rule, match in found:
            if match is Match.MAYBE:
                return Ruling(
                    "ask",
                    rule.source,
                    "part of this call is only known when it runs, and it may be what the rule is "
                    f"about: {rule.why}",
                )
        return (
            None
            # No rule allows a command that runs without a sandbox only because none works here: whoever wrote
            # the rule relied on the sandbox.
            if call.unsandboxed
            else _allowing_ruling(
                [rule for rule in mine if rule.verdict == "allow" and rule.allows_values(call, root)], call
            )
        )

    def unclear(self, call: Call) -> str:
        """Return why no rule of the tool can allow a command line; empty if that is not the cause."""
        allowing = [rule for rule in self.rules if rule.names(call.target) and rule.verdict == "allow"]
        for name in sorted({name for rule in allowing for name in rule.commands}):
            if not isinstance(text := call.args.get(name), str):
                continue
            line, patterns = (
                read_line(text),
                [pattern for rule in allowing for pattern in rule.commands.get(name, ())],
            )
            if line.unclear:
                return line.unclear
            for command in line.commands:
                if not any(pattern.allows(command) for pattern in patterns):
                    return next(
                        (_not_covered(one, word) for one in patterns if (word := one.refused(command))), ""
                    )
        return ""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per rule, the strongest verdicts first."""
        rows = sorted(self.rules, key=lambda rule: ("deny", "ask", "allow").index(rule.verdict))
        return ("verdict", "calls", "from", "reason"), [
            (rule.verdict, str(rule).partition(" ")[2], rule.source, rule.reason) for rule in rows
        ]

    nothing = "no rules: the danger of a call decides. Write some as [[rules]] in kestrel.toml"


def _not_covered(pattern: CommandPattern, word: str) -> str:
    return (
        f"`{pattern.text}` does not cover {word}, because ... matches only options that write and "
        "run nothing: write others into the rule"
    )


def _allowing_ruling(rules: list[Rule], call: Call) -> Ruling | None:
    """Find the rule that allows a call, or several that each allow some commands of its command line."""
    for rule in rules:
        if not rule.commands:
            return Ruling("allow", rule.source, rule.why, args=frozenset(rule.values))
    # Otherwise each command of the line needs a rule that allows it; they may be different rules.
    for name in sorted({name for rule in rules for name in rule.commands}):
        text = call.args.get(name)
        fitting = [rule for rule in rules if set(rule.commands) == {name}]
        line = read_line(text) if isinstance(text, str) else None
        if line is None or line.unclear or not line.commands:
            continue
        used: dict[str, Rule] = {}
        for command in line.commands:
            by = next(
                (rule for rule in fitting if any(pattern.allows(command) for pattern in rule.commands[name])),
                None,
            )
            if by is None:
                break
            used[by.source] = by
        else:
            # An argument counts as named only if each of the rules names it.
            named = frozenset.intersection(*(frozenset((name, *rule.values)) for rule in used.values()))
            return Ruling("allow", ", ".join(used), "; ".join(rule.why for rule in used.values()), args=named)
    return None


GivenRules = str | Path | Rulebook | Iterable[Mapping[str, Any]] | None
"""A file of rules, tables as in such a file, or rules that were read before."""


def read_rulebook(given: GivenRules, source: str = "the rules given") -> Rulebook:
    """Return the rules of any `GivenRules`; raises `UsageError` that names file, rule and key."""
    if given is None:
        return Rulebook()
    if isinstance(given, Rulebook):
        return given
    if isinstance(given, str | Path):
        return Rulebook(read_rules_file(Path(given)))
    return Rulebook(read_rules(list(given), source))


def policy_for(policy: str, lab: Rulebook, own: Rulebook, folder: Path) -> Policy:
    """Return the named policy with both sets of rules, for calls in `folder`; raises `UsageError`."""
    return replace(Policy.parse(policy), rules=(lab + own).within(folder))


def rules_as_json(own: Rulebook) -> list[dict[str, Json]]:
    """Return rules as JSON for the log, so that they also apply to resumed and forked runs."""
    return [{"source": rule.source, "rule": dict(rule.table)} for rule in own]


def rules_from_json(kept: Sequence[dict[str, Json]]) -> Rulebook:
    """The rules that `rules_as_json` kept."""
    return Rulebook(
        tuple(read_rule(cast("dict[str, Json]", entry["rule"]), str(entry["source"])) for entry in kept)
    )
