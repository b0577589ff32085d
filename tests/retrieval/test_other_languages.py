"""The graph follows imports as each language means them, from both ends, and finds definitions by their full
names.
"""

import pytest

from kestrel_lab.retrieval.code_graph import Graph
from kestrel_lab.retrieval.indexing.index import CodeIndex

FILES = {
    "ts/a.ts": 'import { x } from "./opt.js";\n',
    "ts/opt.ts": "export const x = 1;\n",
    "go/go.mod": "module example.com/x\n",
    "go/a.go": 'package a\nimport (\n\t"fmt"\n\tm "example.com/x/mod"\n)\nfunc (s *Server) Serve() {}\n',
    "go/mod/m.go": "package mod\nfunc M() {}\n",
    "go/mod/m_test.go": "package mod\n",
    "rs/src/lib.rs": "use crate::util::{helper, Other};\nuse std::io;\n",
    "rs/src/util/mod.rs": "pub fn helper() {}\n",
    "rs/src/deep/part.rs": "use super::super::util;\n",
    "java/A.java": "import static com.x.B.help;\nclass A {}\n",
    "java/com/x/B.java": "package com.x; public class B { static void help() {} }\n",
    "c/a.c": '#include "a.h"\nint known(int a) { return a; }\n',
    "c/a.h": "int known(int a);\n",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a folder with a little of each language."""
    folder = tmp_path_factory.mktemp("work")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    index = CodeIndex(folder, tmp_path_factory.mktemp("home"))
    index.refresh()
    return Graph(index)


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("ts/a.ts", "ts/opt.ts"),
        ("go/a.go", "go/mod/m.go"),
        ("rs/src/lib.rs", "rs/src/util/mod.rs"),
        ("rs/src/deep/part.rs", "rs/src/util/mod.rs"),
        ("java/A.java", "java/com/x/B.java"),
        ("c/a.c", "c/a.h"),
    ],
)
def test_imports_lead_to_files_and_back(graph: Graph, path: str, other: str) -> None:
    """What a file imports is the one file that is meant, and that file knows who imports it."""
    assert graph.imports(path) == [other]
    assert path in graph.imported_by(other)


def test_definitions_have_full_names_and_come_before_declarations(graph: Graph) -> None:
    """A method of Go is found under its receiver; a prototype in a header stands behind the function
    itself.
    """
    assert [hit.why for hit in graph.definitions("Server.Serve")] == ["method Server.Serve"]
    assert [hit.path for hit in graph.definitions("known")] == ["c/a.c", "c/a.h"]
