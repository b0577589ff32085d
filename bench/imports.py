"""How long an import takes in a fresh interpreter, and what it loads."""

from __future__ import annotations

from bench.spec import Benchmark, Measure, Probe, Row, Target

_HEAVY = ("pandas", "litellm", "IPython")
_PROGRAM = """\
import sys, time
known = len(sys.modules); cpu = time.process_time(); wall = time.perf_counter()
{statement}
took = time.perf_counter() - wall; cpu = time.process_time() - cpu; loaded = len(sys.modules) - known
heavy = sum(name in sys.modules for name in {heavy})
from bench.job import peak_mb, tell
tell(dict(import_s=took, cpu_s=cpu, modules=loaded, heavy=heavy, peak_mb=peak_mb()))
"""


def _probe(statement: str, peer: str = "", *, name: str = "") -> Probe:
    program = _PROGRAM.format(statement=statement, heavy=_HEAVY)
    return Probe(rows=(Row(name=name or statement, ours=not peer),), command=("-c", program), peer=peer)


_PLAIN = "import kestrel_lab"
_USED = "from kestrel_lab import Lab, tool"
_HELP = "kestrel --help"
_HELP_PROGRAM = """\
import contextlib, io
sys.argv = ["kestrel", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    from kestrel_lab.cli.overview import main
    main()
"""

BENCHMARK = Benchmark(
    name="imports",
    title="Import in a fresh interpreter",
    measures=(
        Measure(key="import_s", heading="wall", unit="s", digits=3),
        Measure(key="cpu_s", heading="CPU", unit="s", digits=3),
        Measure(key="modules", heading="modules", digits=0),
        Measure(key="heavy", heading=f"of {', '.join(_HEAVY)}", digits=0),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(
        _probe(_PLAIN),
        _probe("import inspect_ai", "inspect-ai"),
        _probe(_USED),
        _probe("import pydantic_evals", "pydantic-evals"),
        _probe(_HELP_PROGRAM, name=_HELP),
    ),
    targets=(
        Target(row=_PLAIN, measure="import_s", at_most=0.25, meaning="import"),
        Target(row=_PLAIN, measure="heavy", at_most=0, meaning="of pandas, litellm, IPython loaded by it"),
        Target(row=_USED, measure="import_s", at_most=0.25, meaning="import of what most programs use"),
        Target(row=_HELP, measure="cpu_s", at_most=0.3, meaning="the overview of all commands"),
        Target(row=_USED, measure="heavy", at_most=0, meaning="of pandas, litellm, IPython loaded by it"),
    ),
    rounds=7,
    notes=(
        "`import kestrel_lab` loads names when they are first used, so the second statement is the one "
        "to compare with a peer's.",
        "Compiled files (.pyc) are there for all: each statement is run once before it is measured.",
    ),
)
