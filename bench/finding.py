"""The benches of what is found and what is believed, on public data, each by its `main`; their bounds, met or
missed, in the words of the others.

All are numbers of development: settings were chosen while looking at these sets, except where a bound says
`held out`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import answers, faithfulness, memory, retrieval, routing, tools
from bench.numbers import Verdict
from bench.rounds import Say

Reported = Any
"""What a bench wrote as JSON."""
_SEARCH = "ours: search"
BROKE = "broke: "
"""What stands in place of the numbers of a bench that did not come to its end."""
_BETTER = "better than plain full-text search beside it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What one number has to be."""

    meaning: str
    value: Callable[[Reported], float]
    at_least: float | None = None
    at_most: float | None = None
    digits: int = 3
    needs: str = ""
    """A folder under the data, or `REPOSITORIES`, without which there is no number."""

    @property
    def wanted(self) -> str:
        """The bound in signs."""
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def holds(self, value: float) -> bool:
        """Whether a number is within it."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One program with its arguments and bounds."""

    main: Callable[[Sequence[str]], int]
    arguments: Callable[[Path | None, Path | None, Path], list[str]]
    """From data, repositories and the folder for results; data that is not there is `None`."""
    reported: str
    """The file that it writes, in the folder for results."""
    bounds: tuple[Bound, ...]
    folder: str = ""
    """Under the data; without it there is nothing to do, unless it is empty."""
    better: str = ""
    """What its exit code 0 says; empty where that says nothing more than the bounds do."""


def _accuracy(group: str) -> Callable[[Reported], float]:
    def value(reported: Reported) -> float:
        row = reported["localisation"][f"{_SEARCH} | {group}"]
        return 100 * float(row["5"]) / float(row["issues"])

    return value


def _whole(reported: Reported) -> Reported:
    """The row of the whole way of finding notes: the last."""
    return list(reported["LoCoMo"].values())[-1]


def _share(counts: Reported) -> float:
    return float(counts["caught"]) / float(counts["planted"])


def _least_apgr(reported: Reported) -> float:
    """The worst repetition of the cross-validation."""
    return min(
        values[0] for name, values in reported["routellm_mmlu"]["apgr"].items() if name.startswith("learned")
    )


BENCHES: dict[str, Bench] = {
    "retrieval": Bench(
        main=retrieval.main,
        arguments=lambda data, repositories, out: [
            *("--data", str(data), "--out", str(out / "retrieval.json")),
            *(("--repositories", str(repositories)) if repositories else ()),
        ],
        reported="retrieval.json",
        folder="scifact",
        bounds=(
            Bound(
                meaning="SciFact nDCG@10",
                value=lambda reported: reported["scifact"]["ndcg"]["ours"],
                at_least=0.70,
            ),
            Bound(
                meaning="localisation, strict Acc@5, without sympy",
                value=_accuracy("all"),
                at_least=80,
                digits=1,
                needs="REPOSITORIES",
            ),
            Bound(
                meaning="the same, issues held out",
                value=_accuracy("test"),
                at_least=80,
                digits=1,
                needs="REPOSITORIES",
            ),
            Bound(
                meaning="the same, several files",
                value=_accuracy("several files"),
                at_least=50,
                digits=1,
                needs="REPOSITORIES",
            ),
        ),
        better=_BETTER,
    ),
    "memory": Bench(
        main=memory.main,
        arguments=lambda data, _, out: [
            *(("--data", str(data / "memory")) if data else ()),
            "--out",
            str(out / "memory.json"),
        ],
        reported="memory.json",
        bounds=(
            Bound(
                meaning="LoCoMo recall@10",
                value=lambda reported: _whole(reported)["-1@10"],
                at_least=0.80,
                needs="memory",
            ),
            Bound(
                meaning="LoCoMo recall@10, multi-hop",
                value=lambda reported: _whole(reported)["1@10"],
                at_least=0.45,
                needs="memory",
            ),
        ),
        better=_BETTER,
    ),
    "tools": Bench(
        main=tools.main,
        arguments=lambda data, _, out: ["--data", f"{data}/tool_search", "--out", str(out / "tools.json")],
        reported="tools.json",
        folder="tool_search",
        bounds=(),
        better="recall@5 better than plain BM25 in every category",
    ),
    "faithfulness": Bench(
        main=faithfulness.main,
        arguments=lambda data, _, out: [f"{data}/faithfulness", "--out", str(out)],
        reported="faithfulness.json",
        folder="faithfulness",
        bounds=(
            Bound(
                meaning="claims with labels",
                value=lambda reported: sum(reported["claims"].values()),
                at_least=7_000,
                needs="faithfulness",
            ),
        ),
        better="the gate better than the share of common words",
    ),
    "routing": Bench(
        main=routing.main,
        arguments=lambda data, _, out: [f"{data}/routing", "--out", str(out)],
        reported="routing.json",
        folder="routing",
        bounds=(
            Bound(meaning="RouteLLM's MMLU, APGR, length alone .586", value=_least_apgr, at_least=0.60),
            Bound(
                meaning="LLMRouter's nine models, mean score, best single .621",
                value=lambda reported: reported["llmrouter9_train"]["gain"]["score"],
                at_least=0.622,
            ),
            Bound(
                meaning="the same, gain over the best single, lower end of 95 %",
                value=lambda reported: reported["llmrouter9_train"]["gain"]["gain_low"],
                at_least=0.001,
            ),
        ),
    ),
    "answers": Bench(
        main=answers.main,
        arguments=lambda data, repositories, out: [f"{data}/answers", str(repositories), "--out", str(out)],
        reported="answers.json",
        folder="answers",
        bounds=(
            Bound(
                meaning="true answers with a concern",
                value=lambda reported: reported["true"]["accused"] / reported["true"]["answers"],
                at_most=0.03,
            ),
            *(
                Bound(
                    meaning=f"planted, {kind}: caught",
                    value=lambda reported, kind=kind: _share(reported["planted"][kind]),
                    at_least=0.95,
                )  # type: ignore[misc]
                for kind in ("file", "line past the end", "quote")
            ),
        ),
    ),
}


def run(
    names: Sequence[str], data: Path | None, repositories: Path | None, out: Path, say: Say
) -> list[Verdict]:
    """Run the benches of those names; without data a bound is skipped; a failing bench is broken."""
    found: list[Verdict] = []
    for name in names:
        bench = BENCHES[name]
        if bench.folder and (why := _missing(bench.folder, data, repositories)):
            found += _skipped(name, bench, why)
            continue
        say(f"{name}: measured on {data or 'what the project has'}")
        there = data if data is not None and not _missing(bench.folder or name, data, repositories) else None
        # What an earlier run left is not taken for this one's.
        (out / bench.reported).unlink(missing_ok=True)
        try:
            code = bench.main(bench.arguments(there, repositories, out))
            reported = json.loads((out / bench.reported).read_text(encoding="utf-8"))
        except (Exception, SystemExit) as error:  # the others are to be measured all the same  # noqa: BLE001
            traceback.print_exc()
            found += _skipped(name, bench, f"{BROKE}{type(error).__name__}: {error}")
            continue
        if bench.better:
            found.append(
                Verdict(
                    benchmark=name,
                    meaning=bench.better,
                    wanted="yes",
                    measured="yes" if code == 0 else "no",
                    met=code == 0,
                )
            )
        found += [_judged(name, bound, reported, data, repositories) for bound in bench.bounds]
    return found


def _judged(
    name: str, bound: Bound, reported: Reported, data: Path | None, repositories: Path | None
) -> Verdict:
    if bound.needs and (why := _missing(bound.needs, data, repositories)):
        return _without(name, bound, why)
    try:
        value = float(bound.value(reported))
    except (KeyError, IndexError, ZeroDivisionError) as error:
        return _without(name, bound, f"the bench did not tell it ({type(error).__name__}: {error})")
    return Verdict(
        benchmark=name,
        meaning=bound.meaning,
        wanted=bound.wanted,
        measured=f"{value:.{bound.digits}f}",
        met=bound.holds(value),
    )


def _missing(needs: str, data: Path | None, repositories: Path | None) -> str:
    """Why what is needed is not there; empty if it is."""
    if needs == "REPOSITORIES":
        if repositories is None:
            return "skipped: REPOSITORIES= was not given"
        needs = "localisation"
    if data is None:
        return f"skipped: DATA= was not given (a folder with {needs}/)"
    return "" if (data / needs).is_dir() else f"skipped: there is no {needs}/ in {data}"


def _skipped(name: str, bench: Bench, why: str) -> list[Verdict]:
    better = (
        [Verdict(benchmark=name, meaning=bench.better, wanted="yes", measured=why, met=None)]
        if bench.better
        else []
    )
    return [*better, *(_without(name, bound, why) for bound in bench.bounds)]


def _without(name: str, bound: Bound, why: str) -> Verdict:
    return Verdict(benchmark=name, meaning=bound.meaning, wanted=bound.wanted, measured=why, met=None)
