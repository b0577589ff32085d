"""Code graph: definitions and uses of names, imports and links between files.

For reading, not for ranking.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.events.calls import RetrievalStep
from kestrel_lab.host.extras import missing_package
from kestrel_lab.language.code_tokens import index_text
from kestrel_lab.language.grammars import absent_grammars
from kestrel_lab.retrieval.hits import Hit, Retrieval
from kestrel_lab.retrieval.indexing.file_list import read_text
from kestrel_lab.retrieval.indexing.imports import resolve_import
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.mentions import named_code
from kestrel_lab.retrieval.search import check_query, file_excerpt

_MOST_FILES = 400
"""Files that are read for the uses of a name."""
_IMPORTS = re.compile(r"^\s*(?:from\s|import\s|#\s*include|use\s|require\b|export\s.*\bfrom\b)")


@dataclass(frozen=True, kw_only=True, slots=True)
class NameUse:
    """A line with a name: its `definition`, an `import`, a `call`, or another `use`."""

    path: str
    line: int
    kind: str
    text: str


class Graph:
    """A `Retriever` that follows names: definitions of those in a question, and the files these import."""

    name = "graph"

    def __init__(self, index: CodeIndex) -> None:
        self._index = index

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """Return the definitions of what `query` names, then the files that these import."""
        check_query(query, top_k)
        began = time.perf_counter()
        hits = [hit for name in named_code(query) for hit in self.definitions(name)]
        files = list(dict.fromkeys(hit.path for hit in hits))
        for path in files[:top_k]:
            hits += [self._beside(other, path) for other in self.imports(path) if other not in files]
        chosen: dict[str, Hit] = {}
        for hit in hits:
            chosen.setdefault(hit.path, hit)
        kept = dict(list(chosen.items())[:top_k])
        step = RetrievalStep(
            step="",
            retriever=self.name,
            query=query,
            arguments={"top_k": top_k, "names": list(named_code(query))},
            found=len(chosen),
            chosen=list(kept),
            dropped={path: f"behind the {top_k} asked for" for path in chosen if path not in kept},
            seconds=round(time.perf_counter() - began, 4),
        )
        return Retrieval(
            query=query, hits=tuple(kept.values()), steps=(step,), stopped="saturation" if kept else "nothing"
        )

    def definitions(self, name: str) -> list[Hit]:
        """Return the definitions of `name` or `Class.name`: those in exact spelling, if there are any;
        declarations come last. Raises `MissingPackage` where there are none for want of grammars.
        """
        last = name.rsplit(".", 1)[-1]
        rows = self._index.rows(
            "SELECT path, qualified, kind, first, last FROM symbols JOIN files ON files.id = "
            "symbols.file WHERE folded = ? ORDER BY kind = 'declaration', path, first",
            (last.lower(),),
        )
        if not rows and (absent := absent_grammars()):
            raise missing_package(absent[0], __name__)
        # A holder that no file defines may be an alias: then all definitions of the last part count.
        fitting = [
            row
            for row in rows
            if "." not in name or row[1].endswith(name) or f".{row[1]}".endswith(f".{name}")
        ] or rows
        exact = [row for row in fitting if row[1].rsplit(".", 1)[-1] == last] or fitting
        found = []
        for path, qualified, kind, first, end in exact:
            text = read_text(self._index.workspace, path)
            if not isinstance(text, str):
                found.append(
                    replace(
                        file_excerpt(path, text, first, end, ()), how=self.name, why=f"{kind} {qualified}"
                    )
                )
        return found

    def near(self, name: str) -> str:
        """Return a sentence about names that are spelt alike."""
        rows = self._index.rows(
            "SELECT DISTINCT name FROM symbols WHERE folded LIKE ? LIMIT 2000", (name[:1].lower() + "%",)
        )
        names = [str(row[0]) for row in rows]
        return did_you_mean(name, names) if names else "no name begins with that letter"

    def uses(self, name: str) -> list[NameUse]:
        """Return lines with `name` as a whole word, by file; raises `UsageError` if it is no name."""
        last = name.rsplit(".", 1)[-1]
        if not re.fullmatch(r"\w+", last):
            raise UsageError(f"{name!r} is not a name: give that of a function, a class or a variable")
        # The index has names in parts; the files that have all parts are searched for the whole name.
        words = index_text(last).split()
        match = " AND ".join(f'"{word}"' for word in words)
        rows = self._index.rows(
            "SELECT files.path, files.language FROM file_words JOIN files ON files.id = "
            "file_words.rowid WHERE file_words MATCH ? ORDER BY files.path LIMIT ?",
            (match, _MOST_FILES),
        )
        defined = {
            (path, line)
            for path, line in self._index.rows(
                "SELECT path, first FROM symbols JOIN files ON files.id = symbols.file WHERE symbols.name "
                "= ?",
                (last,),
            )
        }
        return [use for path, _ in rows for use in self._in_file(path, last, defined)]

    def _in_file(self, path: str, name: str, defined: set[tuple[str, int]]) -> Iterator[NameUse]:
        text = read_text(self._index.workspace, path)
        if isinstance(text, str):
            return
        whole, called = (
            re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"),
            re.compile(rf"(?<!\w){re.escape(name)}\s*\("),
        )
        defining = re.compile(
            rf"\b(?:def|class|function|func|fn|struct|enum|trait|interface|type|const|let|var)\s+(?:\([^)]*\)\s*)?{re.escape(name)}\b"
        )
        for number, line in enumerate(text[0].split("\n"), 1):
            if not whole.search(line):
                continue
            if (path, number) in defined or defining.search(line):
                kind = "definition"
            elif _IMPORTS.match(line):
                kind = "import"
            else:
                kind = "call" if called.search(line) else "use"
            yield NameUse(path=path, line=number, kind=kind, text=line.strip()[:200])

    def imports(self, path: str) -> list[str]:
        """Return the files of the folder that `path` imports or links to."""
        rows = self._index.rows(
            "SELECT kind, target, names FROM edges JOIN files ON files.id = edges.file WHERE path = ?",
            (path,),
        )
        known = self._known()
        found = dict.fromkeys(
            other
            for kind, target, names in rows
            for other in resolve_import(path, kind, target, names, known)
        )
        found.pop(path, None)
        return list(found)

    def imported_by(self, path: str) -> list[str]:
        """Return the files that import `path` or link to it."""
        known = self._known()
        stem = posixpath.basename(path).rsplit(".", 1)[0]
        # Which imports name in place of their files.
        folder = stem in {"__init__", "index", "mod"} or path.endswith(".go")
        word = posixpath.basename(posixpath.dirname(path)) if folder else stem
        rows = self._index.rows(
            "SELECT path, kind, target, names FROM edges JOIN files ON files.id = edges.file WHERE "
            "target LIKE ?1 OR names LIKE ?1",
            (f"%{word}%",),
        )
        found = {
            other
            for other, kind, target, names in rows
            if path in resolve_import(other, kind, target, names, known)
        }
        return sorted(found - {path})

    def _known(self) -> frozenset[str]:
        return frozenset(str(row[0]) for row in self._index.rows("SELECT path FROM files"))

    def _beside(self, path: str, origin: str) -> Hit:
        text = read_text(self._index.workspace, path)
        return replace(
            # A text is the reason why the file cannot be read: it is imported all the same.
            file_excerpt(path, ("", b"") if isinstance(text, str) else text, 1, 8, ()),
            how=self.name,
            why=f"imported by {origin}",
        )
