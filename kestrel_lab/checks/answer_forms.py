"""Checks of the form of an answer: how it begins and ends, the number or the choice that it gives, how
similar it is to a text, and whether it is JSON, XML or SQL.
"""

from __future__ import annotations

import asyncio
import math
import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kestrel_lab.checks.answer import (
    MAX_MATCHED,
    AnswerSchema,
    Comparison,
    comparable_text,
    json_in,
    said_in,
)
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import LogCheck, Score
from kestrel_lab.core.text_files import split_lines


def _verdict(label: str, trial: Trial, passed: bool, found: str = "", value: float | None = None) -> Score:
    """Return a score whose reason is what was found, the answer where nothing is said."""
    return Score(
        check=label,
        passed=passed,
        value=float(passed) if value is None else value,
        reason="" if passed else found or said_in(trial),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StartsWith(LogCheck):
    """The answer begins with one of the texts; `compare` as in `answer_contains`, and unless it is `exact`
    punctuation around answer and text is left out.
    """

    texts: tuple[str, ...]
    compare: Comparison = "words"

    def __post_init__(self) -> None:
        if not self.texts or not all(self.texts):
            raise UsageError("starts_with and ends_with need at least one text, and none of them empty")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"answer starts with {' or '.join(repr(one_line(text, 40)) for text in self.texts)}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it does."""
        answer = self._bare(trial.answer)
        return _verdict(self.label, trial, any(self._fits(answer, self._bare(text)) for text in self.texts))

    def _bare(self, text: str) -> str:
        """Return a text as it is compared: unless exactly, "Paris." is Paris."""
        found = comparable_text(text, self.compare)
        bare = found if self.compare == "exact" else found.strip(string.punctuation + string.whitespace)
        return bare or found

    def _fits(self, answer: str, text: str) -> bool:
        return answer.startswith(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndsWith(StartsWith):
    """The answer ends with one of the texts; compared as in `starts_with`."""

    @property
    def label(self) -> str:
        """The check in words."""
        return f"answer ends with {' or '.join(repr(one_line(text, 40)) for text in self.texts)}"

    def _fits(self, answer: str, text: str) -> bool:
        return answer.endswith(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerNumber(LogCheck):
    """The answer gives this number: the last one in it, or the first, any or the only one.

    With `units`, factors by unit such as `{m: 1, km: 1000}`, only numbers with one of these units count, and
    each is multiplied by the factor of its unit; `""` allows a number without one. A unit comes before or
    after its number. `thousands` says by what thousands are set apart; where it is a full stop, the decimal
    sign is a comma.
    """

    value: float
    tolerance: float = 0.0
    """How far off it may be, in the unit of `value`."""
    relative: float = 0.0
    """How far off it may be, as a share of `value`."""
    units: dict[str, Any] = field(default_factory=dict)
    which: Literal["last", "first", "any", "only"] = "last"
    thousands: Literal[",", ".", " ", "'", "_", ""] = ","

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.tolerance >= 0 and self.relative >= 0):
            raise UsageError("number needs a value, and tolerance and relative of 0 or more")
        for unit, factor in self.units.items():
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor:
                raise UsageError(f"number: the factor of the unit {unit!r} is a number, not {factor!r}")

    @property
    def label(self) -> str:
        """The check in words."""
        room = f" ± {self.tolerance:g}" if self.tolerance else ""
        room += f" ± {100 * self.relative:g} %" if self.relative else ""
        return f"answer gives the number {self.value:g}{room}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the number is near enough; the reason says which number was read."""
        found = list(self._numbers(trial.answer))
        meant = {"last": found[-1:], "first": found[:1], "any": found, "only": found}[self.which]
        # Decimal fractions are not exact: .1 + .2 is .3 to anybody who writes a suite.
        room = max(self.tolerance, self.relative * abs(self.value), 1e-9 * abs(self.value))
        passed = any(abs(number - self.value) <= room for number in meant)
        # The same number written twice is one number.
        if self.which == "only" and len(set(found)) > 1:
            passed = False
        read = ", ".join(f"{number:.10g}" for number in meant[:5])
        return _verdict(self.label, trial, passed, f"read {read}; {said_in(trial)}" if read else "")

    def _numbers(self, text: str) -> Iterator[float]:
        decimal = "," if self.thousands == "." else "."
        apart = re.escape(self.thousands)
        whole = rf"\d{{1,3}}(?:{apart}\d{{3}})+(?!\d)|\d+" if apart else r"\d+"
        number = (
            rf"(?<![\w.])(?P<sign>[-+−]?)(?P<whole>{whole})(?:\{decimal}(?P<part>\d+))?(?P<power>e[-+]?\d+)?"
        )
        # Typography sets thousands and units apart by non-breaking blanks.
        for match in re.finditer(number, text.replace("\u00a0", " ").replace("\u202f", " "), re.IGNORECASE):
            digits = match["whole"].replace(self.thousands, "") if self.thousands else match["whole"]
            value = float(f"{digits}.{match['part'] or 0}{match['power'] or ''}")
            value = -value if match["sign"] in ("-", "−") else value
            if not self.units:
                yield value
            elif (unit := self._unit(match.string[: match.start()], match.string[match.end() :])) is not None:
                yield value * self.units[unit]

    def _unit(self, before: str, behind: str) -> str | None:
        """Return the longest unit beside a number."""
        # The longest first: `km` before `m`.
        for unit in sorted(filter(None, self.units), key=len, reverse=True):
            word = re.escape(unit) + (r"(?!\w)" if unit[-1].isalnum() else "")
            if re.match(rf"[ \-]?{word}", behind, re.IGNORECASE) or before.rstrip().lower().endswith(
                unit.lower()
            ):
                return unit
        return "" if "" in self.units and not re.match(r"[ \-]?[A-Za-z%$€£°]", behind) else None


# A small letter counts alone on the rest of its line; elsewhere "a" is a word.
_LETTERS: Final = r"([A-Z](?:[\s,;&]*(?:and\s+)?\b[A-Z]\b)*|[a-z](?=[\s*_`\"').]*$))(?![A-Za-z])"
_LINE: Final = rf"(?m)(?i:answer)[\s*_`]*:[\s*_`\"'(]*{_LETTERS}"
_CHOSEN: Final = (
    r"(?m)(?i:answers?|choices?|options?)\b[\s*_`\"'(]*(?:(?i:is|are)\b|[:=])[\s*_`\"'(:]*" + _LETTERS
)
_ALONE: Final = r"[\s*_`\"'(\[{\\]*(?:boxed\{)?([A-Za-z](?:\s*[,;&]\s*[A-Za-z])*)[\s*_`\"')\]}.:$]*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(LogCheck):
    """The answer chooses these letters, all of them and no others.

    It chooses by `ANSWER: B`, "the answer is B" (the last of these counts), by its last line where that is
    a letter, a letter with its option (`B) Canberra`), or the text of one of the `options`.
    """

    right: tuple[str, ...]
    """Letters: `B`, or `[A, C]` where several are right together."""
    options: tuple[str, ...] = ()
    """The texts of the options in the order of their letters."""
    strict: bool = False
    """Whether `ANSWER: B` alone counts."""

    def __post_init__(self) -> None:
        if not self.right or not all(len(one) == 1 and one in string.ascii_letters for one in self.right):
            raise UsageError(f"choice needs the right letters, such as B or [A, C], not {list(self.right)}")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"answer chooses {', '.join(self._letters)}"

    @property
    def _letters(self) -> list[str]:
        return sorted(one.upper() for one in self.right)

    async def __call__(self, trial: Trial) -> Score:
        """Pass when they are chosen; the reason says what was."""
        found = chosen_letters(trial.answer, self.options, strict=self.strict)
        reason = f"it chose {', '.join(found)}" if found else f"it chose no letter; {said_in(trial)}"
        return _verdict(self.label, trial, found == self._letters, reason)


def chosen_letters(answer: str, options: tuple[str, ...] = (), *, strict: bool = False) -> list[str]:
    """Return the letters that an answer chooses, sorted and in upper case; empty for none."""
    # The end of the answer: a choice comes last, and a pattern must not run over megabytes.
    said = re.findall(_LINE if strict else _CHOSEN, answer[-MAX_MATCHED:])
    if said or strict:
        return sorted({letter.upper() for letter in re.findall(r"\b[A-Za-z]\b", "".join(said[-1:]))})
    lines = [line.strip() for line in split_lines(answer) if line.strip()]
    last = lines[-1] if lines else ""
    if match := re.fullmatch(_ALONE, last):
        return sorted({letter.upper() for letter in re.findall(r"[A-Za-z]", match[1])})
    if match := re.match(r"[*_`\"'(\[]*([A-Z])[)\].:]", last):
        return [match[1]]
    said_text = comparable_text(last, "words").rstrip(".")
    named = [
        place
        for place, option in enumerate(options)
        if comparable_text(option, "words").rstrip(".") == said_text
    ]
    return [string.ascii_uppercase[place] for place in named]


@dataclass(frozen=True, kw_only=True, slots=True)
class Similar(LogCheck):
    """The answer is similar to a text: `value` is how much, from 0 to 1, and it passes from `at_least` on.

    By `words` it is the F1 of the words that both have, articles and punctuation left out, as SQuAD scores
    answers; by `letters` it is 1 less the edits from one to the other over the longer length. Of several
    texts the most similar counts. Whether two texts mean the same is for `graded`.
    """

    texts: tuple[str, ...]
    at_least: float = 0.8
    by: Literal["words", "letters"] = "words"

    def __post_init__(self) -> None:
        if not self.texts or not all(text.strip() for text in self.texts) or not 0 < self.at_least <= 1:
            raise UsageError(f"similar needs a text, and at_least above 0 up to 1, not {self.at_least}")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"answer is similar to {one_line(self.texts[0], 40)!r} by {self.by}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it is similar enough."""
        measure = _f1 if self.by == "words" else _edit_similarity
        # Counting edits takes time by the product of both lengths.
        answer = trial.answer[:MAX_MATCHED]
        value = max([await asyncio.to_thread(measure, answer, text) for text in self.texts])
        # A share such as 2 / 3 is not exact, and must not fail its own bound.
        passed = value >= self.at_least - 1e-9
        return _verdict(
            self.label,
            trial,
            passed,
            f"{value:.2f} similar, needed {self.at_least:g}; {said_in(trial)}",
            value,
        )


def _words(text: str) -> list[str]:
    bare = comparable_text(text, "words").translate(str.maketrans("", "", string.punctuation))
    return [word for word in bare.split() if word not in ("a", "an", "the")]


def _f1(one: str, other: str) -> float:
    a, b = _words(one), _words(other)
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if common else float(a == b)


def _edit_similarity(one: str, other: str) -> float:
    """Return 1 less the Levenshtein distance over the longer length; raises `CheckError` where it cannot."""
    try:
        # rapidfuzz and sqlglot come with the extra [evals] only.
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise CheckError("similar by letters needs rapidfuzz: pip install 'kestrel-lab[evals]'") from error
    return Levenshtein.normalized_similarity(one.strip(), other.strip()[:MAX_MATCHED])


@dataclass(frozen=True, kw_only=True, slots=True)
class IsJson(LogCheck):
    """The answer is JSON and nothing else, or has some in it, that fits a JSON Schema where one is given."""

    alone: bool = True
    """Whether nothing else may be around it; `false` looks for it in a fence and among words."""
    schema: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.schema:
            AnswerSchema(schema=self.schema)

    @property
    def label(self) -> str:
        """The check in words."""
        return _form_label("JSON", self.alone) + (" of a schema" if self.schema else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it is."""
        try:
            if self.alone:
                loads(trial.answer.strip())
            elif not json_in(trial.answer):
                return _verdict(self.label, trial, passed=False)
        except ValueError as error:
            return _verdict(
                self.label,
                trial,
                passed=False,
                found=f"{one_line(str(error), 100)}; {said_in(trial)}",
            )
        if not self.schema:
            return _verdict(self.label, trial, passed=True)
        fits = await AnswerSchema(schema=self.schema)(trial)
        return _verdict(self.label, trial, fits.passed, fits.reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class IsXml(LogCheck):
    """The answer is one XML element and nothing else, or has one in it; entities of its own are refused."""

    alone: bool = True
    elements: tuple[str, ...] = ()
    """Paths of elements that must be there: `analysis.color`."""

    @property
    def label(self) -> str:
        """The check in words."""
        return _form_label("XML", self.alone) + (f" with {', '.join(self.elements)}" if self.elements else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it is well formed and has the elements."""
        from xml.parsers.expat import ExpatError

        text = trial.answer.strip()
        tried = [text] if self.alone else list(_elements(text))
        problem = "" if tried else f"there is no XML in it; {said_in(trial)}"
        for piece in tried:
            try:
                paths = _xml_paths(piece)
            except (ExpatError, ValueError) as error:
                problem = problem or f"{error}; {said_in(trial)}"
                continue
            missing = [name for name in self.elements if name not in paths]
            if not missing:
                return _verdict(self.label, trial, passed=True)
            problem = f"there is no {', '.join(missing)}"
        return _verdict(self.label, trial, passed=False, found=problem)


def _elements(text: str) -> Iterator[str]:
    """Yield each outermost piece of a text from a start tag to the last end tag of that name."""
    for match in re.finditer(r"<([A-Za-z_][\w.-]*)[\s>/]", text):
        end = text.rfind(f"</{match[1]}>")
        if end > match.start():
            yield text[match.start() : end + len(match[1]) + 3]


def _xml_paths(text: str) -> set[str]:
    """Return the dotted paths of the elements of a document; raises `ValueError` for one with entities."""
    # Loaded on use, as few suites have it.
    from xml.parsers import expat

    parser, open_now, paths = expat.ParserCreate(), list[str](), set[str]()

    def begin(name: str, _attributes: object) -> None:
        open_now.append(name)
        paths.add(".".join(open_now))

    def refuse(*_: object) -> None:
        # Nested entities grow a kilobyte to gigabytes; no answer needs one.
        raise ValueError("it declares entities of its own")

    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda _name: open_now.pop()
    parser.EntityDeclHandler = refuse
    # expat takes the text and whether it is the last piece, by position.
    parser.Parse(text, True)
    return paths


@dataclass(frozen=True, kw_only=True, slots=True)
class IsSql(LogCheck):
    """The answer is SQL of a dialect and nothing else, or has some in a fence; it is read, never run."""

    alone: bool = True
    dialect: str = ""
    """As sqlglot calls it: `postgres`, `mysql`, `sqlite` and so on; empty for SQL that many would take."""
    tables: tuple[str, ...] = ()
    """The only tables that it may use; any where empty."""

    @property
    def label(self) -> str:
        """The check in words."""
        return _form_label(f"SQL of {self.dialect}" if self.dialect else "SQL", self.alone)

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it can be read; raises `CheckError` where sqlglot is not installed."""
        try:
            # rapidfuzz and sqlglot come with the extra [evals] only.
            import sqlglot
            from sqlglot import errors, exp
        except ImportError as error:
            raise CheckError("is_sql needs sqlglot: pip install 'kestrel-lab[evals]'") from error
        text = trial.answer.strip()
        fenced = re.findall(r"```(?:sql)?\s*\n?(.*?)```", text, re.DOTALL | re.IGNORECASE)
        # Several fences are one script, in their order.
        if not self.alone and fenced:
            text = "\n".join(fenced)
        try:
            found = [one for one in sqlglot.parse(text, dialect=self.dialect or None) if one is not None]
        except ValueError as error:
            raise CheckError(f"is_sql: {one_line(str(error), 100)}") from error
        except errors.SqlglotError as error:
            return _verdict(
                self.label,
                trial,
                passed=False,
                found=f"{one_line(str(error), 100)}; {said_in(trial)}",
            )
        # A plain word is an expression of SQL too, and no statement.
        statements = bool(found) and all(
            isinstance(one, exp.Query | exp.DDL | exp.DML | exp.Command) for one in found
        )
        used = {table.name.lower() for one in found for table in one.find_all(exp.Table)}
        foreign = used - {name.lower() for name in self.tables} if self.tables else set()
        problem = f"it uses {', '.join(sorted(foreign))}" if foreign else ""
        return _verdict(self.label, trial, statements and not foreign, problem)


def _form_label(kind: str, alone: bool) -> str:
    return f"answer is {kind}" if alone else f"answer has {kind} in it"
