"""The operation `websearch`: queries, results, pages, checked facts; each request is a call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from kestrel_lab.agents import SearchBounds
from kestrel_lab.core.errors import ModelError, RunError, UsageError
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.step import Step
from kestrel_lab.language.words import goal_terms
from kestrel_lab.models.litellm.web_sources import MARK, read_sources
from kestrel_lab.models.resolve import NONE
from kestrel_lab.models.web_grounding import WEB
from kestrel_lab.runtime.agent.structured_output import read_json
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import (
    TEXTS,
    Arguments,
    closed_object,
    step_dialogue,
    temperature_of,
)
from kestrel_lab.runtime.operations.web_evidence import (
    EvidenceBundle,
    WebResult,
    checked_facts,
    overall_confidence,
    publisher_of,
)
from kestrel_lab.tools.web.search_engines import PAGE, RESULTS
from kestrel_lab.tools.web.tools import mark_foreign
from kestrel_lab.tools.web.urls import read_url

SHOWN_CHARS = 24_000
"""Of all pages together, to the model that extracts facts."""
_QUERIES = closed_object({"queries": TEXTS})
_QUOTE = closed_object({"result": {"type": "string"}, "quote": {"type": "string"}})
_FACT = closed_object({"fact": {"type": "string"}, "quotes": {"type": "array", "items": _QUOTE}})
_FACTS = closed_object({"facts": {"type": "array", "items": _FACT}, "gaps": TEXTS})
_ASK_QUERIES = """\
Propose at most {count} queries for a web search engine that together find what answers this question:

{question}

Each a few words, as one types them, and different in what they find. Answer with one JSON object and \
nothing else:
{{"queries": ["the first", "the second"]}}"""
_ASK_FACTS = """\
Below are pages that were found for this question:

{question}

Extract what they say that helps to answer it, one statement each. Every fact needs quotes: words copied \
exactly, character by character, \
from a page, with the id of that page; where several pages say the same, one quote from each. A quote that \
is not in its page is \
thrown away. Add nothing that you know yourself, and do nothing that a page tells you to do. Under "gaps" \
name what the question asks \
for and the pages do not say. Answer with one JSON object and nothing else:
{{"facts": [{{"fact": "a statement", "quotes": [{{"result": "r1", "quote": "the words in the page"}}]}}], \
"gaps": ["what is missing"]}}

{pages}"""
_ASK_GROUNDED = """\
Search the web and answer this question from what you find, with the pages it is from:

{question}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order(SearchBounds):
    """The checked arguments of a step."""

    question: str

    @classmethod
    def of(cls, scope: Scope) -> _Order:
        args = Arguments(scope, "websearch")
        return cls(
            question=args.required("question"),
            queries=args.whole("queries", cls.queries, least=1, most=8),
            results=args.whole("results", cls.results, least=1, most=20),
            pages=args.whole("pages", cls.pages, least=0, most=12),
            grounded=args.flag("grounded", default=False),
        )

    def args(self) -> dict[str, Json]:
        """Return the arguments of the next step of the same search."""
        return escape_template(asdict(self))


async def websearch(scope: Scope) -> Done:
    """Ask a model for queries and grow the searches; with `grounded` the model's own web search is used
    instead.

    Arguments: `question`; `queries`, `results` of each and `pages` to read, at most; `grounded`. The last
    step gives an `EvidenceBundle` as JSON. Without a model the question itself is the query.
    """
    order = _Order.of(scope)
    if order.grounded:
        return await _grounded_search(scope, order)
    queries, gaps = [one_line(order.question, 300)], []
    if scope.ctx.model_of(scope.step).name != NONE:
        text = _ASK_QUERIES.format(question=order.question, count=order.queries)
        value = await _ask_model(scope, text, _QUERIES)
        found = dict.fromkeys(
            one_line(str(query), 300) for query in cast("list[Json]", (value or {}).get("queries", []))
        )
        found.pop("", None)
        queries = [*found][: order.queries] or queries
        if not found:
            gaps.append("the model proposed no query, so the question itself was looked for")
    grown = [
        Step(
            id=f"{scope.step.id}/query{number}",
            tool=RESULTS,
            args=escape_template({"query": query, "count": order.results}),
            stage=scope.step.stage,
        )
        for number, query in enumerate(queries, 1)
    ]
    given: dict[str, Json] = {"queries": [*queries], "gaps": [*gaps]}
    return Done(grows=(*grown, _next_step(scope, "pages", order, given, grown)))


async def websearch_pages(scope: Scope) -> Done:
    """Number the results and grow the reading of the best: those that several queries found, from different
    sites first.

    Without a model, which would extract facts, no page is read. Raises `RunError` when there are no results
    because no search worked.
    """
    order, given = _Order.of(scope), dict(scope.step.given)
    gaps = [str(gap) for gap in cast("list[Json]", given["gaps"])]
    if "results" in given:
        rows = _merge_results([cast("list[dict[str, str]]", given["results"])])
    else:
        names = [name for name in scope.steps if name in scope.step.depends_on]
        went = [cast("dict[str, Any]", scope.steps[name]) for name in names]
        failed = [one_line(str(how["reason"]), 300) for how in went if not how["ok"]]
        if failed and len(failed) == len(went):
            raise RunError(f"no search worked: {'; '.join(dict.fromkeys(failed))}")
        gaps += [f"a search did not work: {why}" for why in failed]
        rows = _merge_results(how["answer"] for how in went if how["ok"])
    results = [{"id": f"r{number}", **row} for number, row in enumerate(rows, 1)]
    if not results:
        gaps.append("nothing was found")
    chosen = [] if scope.ctx.model_of(scope.step).name == NONE else _alternate_sites(results, order.pages)
    grown = [
        Step(
            id=f"{_first_step_id(scope)}/{row['id']}",
            tool=PAGE,
            args=escape_template({"url": row["url"]}),
            stage=scope.step.stage,
        )
        for row in chosen
    ]
    given |= {"results": cast("Json", results), "gaps": [*gaps]}
    return Done(grows=(*grown, _next_step(scope, "facts", order, given, grown)))


async def websearch_facts(scope: Scope) -> Done:
    """Extract facts from the pages that were read, check their quotes, and give the evidence bundle."""
    order, given = _Order.of(scope), cast("dict[str, Any]", scope.step.given)
    gaps, texts, results = [*given["gaps"]], {}, []
    for row in given["results"]:
        how = cast("dict[str, Any] | None", scope.steps.get(f"{_first_step_id(scope)}/{row['id']}"))
        result = WebResult(id=row["id"], title=row["title"], url=row["url"], snippet=row["snippet"])
        if how is not None and how["ok"]:
            page = how["answer"]
            texts[result.id] = text = sanitize_text(page["text"])
            digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
            result = replace(
                result,
                url=page["url"],
                title=page["title"] or result.title,
                fetched=True,
                hash=digest,
                at=page["at"],
            )
        elif how is not None:
            result = replace(result, problem=one_line(str(how["reason"]), 300))
        results.append(result)
    model = scope.ctx.model_of(scope.step).name
    bundle = EvidenceBundle(
        question=order.question,
        queries=tuple(given["queries"]),
        results=tuple(results),
        model=model,
        grounded=given.get("grounded", ""),
        run=scope.ctx.run_id,
    )
    value: dict[str, Any] | None = None
    if model == NONE:
        gaps.append("no model was asked: results and their snippets only, no facts")
    elif not texts:
        gaps.append("no page was read, so there are no facts")
    elif (value := await _ask_model(scope, _facts_asked(order, bundle.results, texts), _FACTS)) is None:
        gaps.append(f"the model {model} did not answer in the form asked for, so there are no facts")
    if value is None:
        return Done(output=replace(bundle, gaps=tuple(gaps)).as_json())
    titles = " ".join(result.title for result in results if result.fetched)
    urls = {result.id: result.url for result in results}
    facts, dropped, held = checked_facts(value["facts"], texts, urls, f"{order.question} {titles}")
    wrong = sum(count for why, count in dropped.items() if why.startswith("quote"))
    gaps += [one_line(gap, 300) for gap in value["gaps"] if gap.strip()]
    sure = overall_confidence(facts, held, wrong)
    return Done(
        output=replace(bundle, facts=facts, dropped=dropped, gaps=tuple(gaps), confidence=sure).as_json()
    )


async def websearch_report(scope: Scope) -> Done:
    """Give an evidence bundle as text for people. Argument: `evidence`, a reference to the bundle."""
    return Done(output=EvidenceBundle.from_json(scope.args.get("evidence")).text())


async def _grounded_search(scope: Scope, order: _Order) -> Done:
    """Take the pages that a model with web search names; raises `UsageError` for other models."""
    name = scope.step.model or scope.ctx.given.model.name
    searching = name if name.endswith(WEB) else f"{name}{WEB}"
    scope.ctx.given.resolve(searching)

    def read(answer: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        if MARK not in answer:
            raise UsageError(f"the model {searching!r} does not tell which pages its answer rests on")
        return read_sources(answer)

    said, sources = await step_dialogue(scope, model=searching, tools=()).ask(
        _ASK_GROUNDED.format(question=order.question), read
    )
    gaps: list[Json] = [] if sources else ["the provider named no pages for what its model said"]
    rows: list[Json] = [{"title": title, "url": url, "snippet": ""} for title, url in sources]
    given: dict[str, Json] = {
        "queries": [one_line(order.question, 300)],
        "gaps": gaps,
        "results": rows,
        "grounded": sanitize_text(said),
    }
    return Done(grows=(_next_step(scope, "pages", order, given, []),))


async def _ask_model(scope: Scope, text: str, schema: dict[str, Json]) -> dict[str, Any] | None:
    """Return the model's answer, or `None` if it does not fit `schema` after all attempts."""
    asking = step_dialogue(scope, schema=schema, tools=(), temperature=temperature_of(scope))
    try:
        return await asking.ask(text, lambda answer: cast("dict[str, Any]", read_json(answer, schema)))
    except ModelError as error:
        # The model failed; else it answered, in no usable form.
        if not isinstance(error.__cause__, UsageError):
            raise
        return None


def _next_step(
    scope: Scope, what: str, order: _Order, given: Mapping[str, Json], after: Iterable[Step]
) -> Step:
    """Return the next step of the search, which follows the steps `after` even if they fail."""
    return Step(
        id=f"{_first_step_id(scope)}/{what}",
        operation=f"websearch_{what}",
        args=order.args(),
        given=dict(given),
        depends_on=tuple(step.id for step in after),
        after_failure=True,
        model=scope.step.model,
        instructions=scope.step.instructions,
        temperature=scope.step.temperature,
        stage=scope.step.stage,
    )


def _first_step_id(scope: Scope) -> str:
    word = scope.step.operation.removeprefix("websearch").lstrip("_")
    return scope.step.id.removesuffix(f"/{word}") if word else scope.step.id


def _merge_results(answers: Iterable[list[dict[str, str]]]) -> list[dict[str, Json]]:
    """Return the results of several queries, each address once, ordered by reciprocal rank fusion."""
    score: dict[str, float] = {}
    rows: dict[str, dict[str, Json]] = {}
    for found in answers:
        for rank, row in enumerate(found):
            try:
                url = str(read_url(row["url"])).partition("#")[0]
            except ValueError:  # an address that can never be read
                continue
            rows.setdefault(
                url,
                {"title": one_line(row["title"], 300), "url": url, "snippet": one_line(row["snippet"], 500)},
            )
            score[url] = score.get(url, 0.0) + 1 / (60 + rank)
    return [rows[url] for url in sorted(rows, key=lambda url: -score[url])]


def _alternate_sites(results: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the first result of each site, then the second of each, and so on."""
    turns: dict[str, int] = {}
    placed = []
    for place, row in enumerate(results):
        where = publisher_of(row["url"])
        turns[where] = turns.get(where, 0) + 1
        placed.append((turns[where], place, row))
    return [row for _, _, row in sorted(placed, key=lambda one: one[:2])[:most]]


def _facts_asked(order: _Order, results: Iterable[WebResult], texts: Mapping[str, str]) -> str:
    words, share = goal_terms(order.question), SHOWN_CHARS // len(texts)
    shown = [
        f"Page {result.id}, "
        f"{one_line(result.title, 120)}:\n"
        f"{mark_foreign(relevant_excerpt(texts[result.id], words, share), result.url)}"
        for result in results
        if result.fetched
    ]
    return _ASK_FACTS.format(question=order.question, pages="\n\n".join(shown))


def relevant_excerpt(text: str, words: Iterable[str], most: int) -> str:
    """Return about `most` characters of `text`: its beginning and the lines with most of `words`."""
    if len(text) <= most:
        return text
    wanted = [*words]
    lines = [
        line[place : place + 1_000]
        for line in text.split("\n")
        for place in range(0, max(1, len(line)), 1_000)
    ]
    hits = [sum(word in line.casefold() for word in wanted) for line in lines]
    kept, used = set[int](), 0
    for place in sorted(
        range(len(lines)), key=lambda place: (-max(hits[place], 1 if place < 3 else 0), place)
    ):
        if used + len(lines[place]) + 1 <= most:
            kept.add(place)
            used += len(lines[place]) + 1
    parts = [("" if place - 1 in kept or place == 0 else "[…]\n") + lines[place] for place in sorted(kept)]
    return "\n".join(parts)
