"""Everyday cells whose values are plain: they are adopted without a question, and what they leave is there."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from shells import Kernel

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.state.annotations import read_type, written_type
from kestrel_lab.tools.kernel.state.probes import Probe
from kestrel_lab.tools.kernel.state.process_state import PROBES

pytestmark = [
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
    pytest.mark.filterwarnings("ignore"),
]

CELLS = {
    "annotation": "count: int = 1",
    "annotation alone": "count: int",
    "annotations": "names: list[str] = ['a']\nlimits: dict[str, float | None] = {'a': 1.0}",
    "annotation of typing": "from typing import Any, Optional\nname: Optional[str] = None\nv: Any = 1",
    "annotation of a library": "part: pd.DataFrame = df[df.sales > .5]",
    "annotation in quotes": "part: 'pd.DataFrame' = df.head()",
    "annotation of a user's class": "models: list[Model] = []",
    "annotations of __future__": "from __future__ import annotations\nv: int = 1",
    "type alias": "Vector = list[float]\nv: Vector = [1.0]",
    "declared type alias": "from typing import TypeAlias\nVector: TypeAlias = dict[str, list[float]]",
    "walrus": "if (n := len(df)) > 10:\n    size = 'large'",
    "augmented assignment": "total = 1\ntotal += 2",
    "global": "def bump():\n    global level\n    level = 5\nbump()\ndel bump",
    "function": "def f(a, b=2):\n    return a + b\nv = f(1)\ndel f",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int = 1\nv = P(2).a\ndel P",
    "typed dictionary": "from typing import TypedDict\nclass T(TypedDict):\n    a: int\nv = dict(T(a=1))\ndel T",
    "class": "class M:\n    def __init__(self): self.a = 1\nm = M()\nm.a = 2\nv = m.a\ndel m, M",
    "attribute of a result": "class M: pass\nM().a = 3\nv = 1\ndel M",
    "attribute of a user's result": "Model().a = 3\nv = 1",
    "cache": "import functools\n@functools.cache\ndef fib(n): return n if n < 2 else fib(n-1) + fib(n-2)\n"
    "v = fib(30)\ndel fib",
    "comprehension": "squares = [n ** 2 for n in range(10)]\nsizes = {k: len(v) for k, v in table.items()}",
    "loop": "total = 0\nfor item in items:\n    total += item",
    "exception": "try:\n    v = int('a')\nexcept ValueError:\n    v = 0",
    "match": "match x:\n    case 3: v = 'three'\n    case _: v = 'other'",
    "await": "import asyncio\nawait asyncio.sleep(0)\nv = 1",
    "print": "print(f'{x:.2f}')",
    "imported class": "from collections import Counter\nmost = Counter('abca').most_common(2)",
    "imported function": "from math import sqrt as root\nr = root(2)",
    "imported names": "from string import *\nr = digits",
    "imported path": "from pathlib import Path\np = str(Path('a') / 'b')",
    "regular expression": "import re\nm = re.findall(r'a', 'banana')",
    "json": "import json\nt = json.dumps({'a': 1})",
    "random": "import random\nrandom.seed(1)\nr = random.random()",
    "date": "import datetime as dt\ntoday = dt.date(2026, 1, 1)",
    "filter": "part = df[df.sales > .5]",
    "group": "daily = df.groupby(df.day.dt.date).sales.mean()",
    "new column": "wide = df.assign(month=df.day.dt.month)",
    "names of columns": "wide = df.copy()\nwide.columns = ['a', 'b']\nwide.index.name = 'n'",
    "merge": "other = df.merge(df, on='day')",
    "pivot": "wide = df.pivot_table(index=df.day.dt.month, values='sales')",
    "resample": "w = df.set_index('day').resample('W').sales.sum()",
    "apply": "r = df.sales.apply(lambda v: v * 2)",
    "csv": "import io\nf = pd.read_csv(io.StringIO('a,b\\n1,2'))",
    "frame alone": "df.describe()",
    "array": "b = arr.reshape(1, -1).copy()\nm = np.linalg.inv(np.eye(2))",
    "random array": "np.random.seed(0)\nz = np.random.rand(3)",
    "library that is not loaded": "from scipy import stats\nr = float(stats.norm.cdf(0))",
    "plot": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "plot of a frame": "df.plot(x='day', y='sales')",
}
CHANGING = {
    "annotation of a variable": "x: int = 4",
    "augmented assignment of a variable": "x += 1",
    "clean": "df = df.dropna()",
    "delete": "del x",
    "imported names, one of a builtin": "from math import *\nr = cos(0)",
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel with a frame, an array and a class."""
    folder = tmp_path_factory.mktemp("work")
    made = Kernel(folder)
    made.shell.run_cell("class Model: pass")
    return made


@pytest.mark.parametrize("cell", [*CELLS, *CHANGING])
def test_an_everyday_cell_is_adopted_without_a_question(kernel: Kernel, cell: str) -> None:
    """New values are LOW, and those of variables that are there MEDIUM."""
    preview = kernel.preview({**CELLS, **CHANGING}[cell])

    assert preview.adoptable, preview.unfit or preview.text
    assert not preview.error
    assert preview.danger is (Danger.LOW if cell in CELLS else Danger.MEDIUM)


def test_a_state_that_is_not_adopted_asks(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: annotations that do not go along with the values make the cell ask."""
    probe: Probe = next(one for one in PROBES if one.name == "annotations")
    module = "kestrel_lab.tools.kernel.state.process_state.PROBES"
    monkeypatch.setattr(module, [dataclasses.replace(probe, adopted=False)])
    assert not kernel.preview(CELLS["annotation"]).adoptable


def test_an_annotation_is_adopted_with_its_value_and_undone(tmp_path: Path) -> None:
    """It is what the code would have left, beside the annotations that are there; undo takes it back."""
    kernel = Kernel(tmp_path)
    kernel.shell.run_cell("class Model: pass\nx: Model = 3")
    code = "from typing import Optional\nx: int = 4\ny: Optional[list[Model]] = None\nz: pd.DataFrame"
    kernel.adopt(code)

    model, optional = kernel.ns["Model"], typing.Optional
    assert kernel.ns["__annotations__"] == {"x": int, "y": optional[list[model]], "z": pd.DataFrame}
    assert (kernel.ns["x"], kernel.ns["y"]) == (4, None)
    assert kernel.live.undo().missing == {}
    assert kernel.ns["__annotations__"] == {"x": model}
    assert kernel.ns["x"] == 3
    assert "y" not in kernel.ns


def test_what_code_imports_by_name_is_the_librarys_own(tmp_path: Path) -> None:
    """A class, a function, a type alias and a feature of Python; undo takes them back."""
    kernel = Kernel(tmp_path)
    kernel.adopt("from collections import Counter as C\nfrom math import *\nVector = list[float]")
    assert (kernel.ns["C"], kernel.ns["Vector"]) == (Counter, list[float])
    assert kernel.ns["sqrt"](4) == 2
    assert kernel.live.undo().missing == {}
    assert not {"C", "sqrt", "Vector"} & set(kernel.ns)

    kernel.adopt("from __future__ import annotations\nv: int = 1")
    kernel.shell.run_cell("w: Unknown = 1")
    assert kernel.ns["__annotations__"] == {"v": "int", "w": "Unknown"}
    kernel.live.undo(force=True)
    assert kernel.shell.run_cell("w: Unknown = 1").error_in_exec is not None


@pytest.mark.parametrize(
    "stored",
    [
        {"from": ["os", "system"]},
        {"type": ["tuple", ["library", "subprocess", "Popen"]]},
        {"type": ["tuple", ["generic", ["tuple", ["library", "subprocess", "Popen"]]]]},
    ],
    ids=["an import that the code has not", "a class", "a generic type of a library"],
)
def test_a_lying_preview_gives_nothing_to_call(kernel: Kernel, stored: Any) -> None:
    """A copy that claims what the code does not import is refused."""
    preview = kernel.preview("v = 1")
    lie = dataclasses.replace(preview, adopted={"v": stored})
    with pytest.raises(ConflictError, match="nothing was changed"):
        kernel.live.adopt(lie, "r", "c")
    assert "v" not in kernel.ns


class Own:
    """A class of the user."""


@pytest.mark.parametrize(
    "value",
    [
        int,
        None,
        "text",
        list[int],
        dict[str, list[int] | None],
        typing.Optional[int],  # noqa: UP045
        typing.List[int],  # noqa: UP006
        typing.Any,
        typing.Callable[[int], str],
        Callable[[int], str],
        typing.Literal["a", 1],
        typing.Annotated[int, "positive"],
        tuple[int, ...],
        pd.Series,
        type(None),
        Own,
        list[Own],
    ],
    ids=str,
)
def test_types_come_back_as_they_were(value: object) -> None:
    """Every form of a type is equal after it was written and read."""
    namespace = {"Own": Own}
    assert read_type(written_type(value, namespace), namespace) == value
