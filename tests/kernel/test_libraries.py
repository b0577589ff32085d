"""Whose code a file is, in environments that get their packages in each of the ways Python has."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import kestrel_lab
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.state.libraries import in_library, in_python, is_own

CHECKOUT = str(Path(kestrel_lab.__file__).parents[1])
PACKAGES = next(folder for folder in site.getsitepackages() if Path(folder, "IPython").is_dir())
SCRIPT = """
import asyncio, json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from kestrel_lab.tools.kernel.live_kernel import LiveKernel
shell = InteractiveShell()
shell.history_manager.enabled = False
shell.run_cell("import helper, pandas as pd; df = pd.DataFrame({'a': [1]}); ip = get_ipython()")
kernel, lines = LiveKernel(shell), []
for code in ("x = 1", "y = df.a.sum()", "import logging; logging.getLogger('a').info('x')"):
    preview = asyncio.run(kernel.preview(code, os.getcwd()))
    lines += [line for line in preview.text.split("\\n") if "new" not in line]
    ran = asyncio.run(kernel.execute(code, os.getcwd(), "r", code))
    lines += [change.line for change in ran.changes if change.kind != "new"]
changed = asyncio.run(kernel.execute("helper.counter += 1", os.getcwd(), "r", "c"))
print(json.dumps([lines, [change.line for change in changed.changes]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())
@pytest.mark.parametrize("way", [".pth", "PYTHONPATH", "a folder without metadata"])
def test_code_has_no_effect_that_is_the_products_own(tmp_path: Path, way: str) -> None:
    """Packages by a line of a .pth file, by PYTHONPATH, or unpacked without their metadata: the product's
    capture is no effect of code, and the user's own modules are compared as ever.
    """
    work, python_path = tmp_path / "work", [PACKAGES, CHECKOUT]
    work.mkdir()
    (work / "helper.py").write_text("counter = 0\n")
    python = tmp_path / "env" / "bin" / "python"
    venv.create(tmp_path / "env", symlinks=True)
    if way == ".pth":
        lib = tmp_path / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (lib / "site-packages" / "more.pth").write_text("\n".join(python_path))
        python_path = []
    elif way != "PYTHONPATH":
        (tmp_path / "libs").mkdir()
        for folder in Path(PACKAGES).iterdir():
            if not folder.name.endswith((".dist-info", ".pth")):
                (tmp_path / "libs" / folder.name).symlink_to(folder)
        python_path = [str(tmp_path / "libs"), CHECKOUT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}

    done = subprocess.run(
        [str(python), "-c", SCRIPT], cwd=work, env=env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-2_000:]
    lines, changed = json.loads(done.stdout.splitlines()[-1])
    assert lines == ["no variable, file or process changes"]
    assert changed == ["helper.counter: 0 → 1"]


def test_a_file_is_of_python_of_a_library_or_the_users() -> None:
    """Python and this package are libraries; so is what is installed, and nothing else is."""
    pandas, own = os.path.join(PACKAGES, "pandas", "__init__.py"), "/home/me/project/helper.py"
    assert in_python(os.__file__) and in_python(kestrel_lab.__file__) and in_python("<frozen runpy>")
    assert not in_python(pandas)
    assert all(map(in_library, (os.__file__, kestrel_lab.__file__, pandas)))
    assert not in_library(own) and not in_library("<ipython-input-1-a>")
    assert is_own("__main__") and not is_own("pytest") and not is_own("os")
