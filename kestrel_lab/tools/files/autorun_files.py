"""Files that programs run or obey unasked, such as `conftest.py`; the approval of a change to one says so."""

from __future__ import annotations

import posixpath

_BY_NAME = {
    "conftest.py": "pytest runs it whenever tests are run",
    "sitecustomize.py": "Python runs it whenever it starts here",
    "usercustomize.py": "Python runs it whenever it starts here",
    "setup.py": "installing the project runs it",
    "noxfile.py": "nox runs it",
    "manage.py": "Django's commands run it",
    "makefile": "make runs what is in it",
    "gnumakefile": "make runs what is in it",
    "justfile": "just runs what is in it",
    "package.json": "npm runs its scripts, some when it installs",
    ".envrc": "direnv runs it in this folder",
    ".npmrc": "npm obeys it",
    ".gitattributes": "git obeys it",
    ".gitmodules": "git obeys it",
    ".pre-commit-config.yaml": "every commit runs what it names",
    "pyproject.toml": "tools that work here obey it, and installing runs what it names",
    "tox.ini": "tox runs what it names",
    "dockerfile": "building the image runs it",
    ".mcp.json": "programs start the servers that it names",
    "kestrel.toml": "its settings hold for every run in this folder",
    **dict.fromkeys((".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".zshenv"), "every new shell runs it"),
}
_BY_END = {".pth": "Python runs its import lines whenever it starts", ".ipynb": "its cells are run by whoever runs the notebook"}
_BY_FOLDER = {
    ".github/workflows": "the forge runs it",
    ".vscode": "the editor obeys it",
    ".idea": "the editor obeys it",
    ".husky": "every commit runs it",
    ".ipython": "every kernel runs what is in it",
    ".jupyter": "Jupyter obeys it",
}


def who_runs(path: str) -> str:
    """Return what runs or obeys a file without being told to, as a clause; empty for a file that nobody knows of."""
    normal = posixpath.normpath(path).casefold()
    name = posixpath.basename(normal)
    if said := _BY_NAME.get(name) or _BY_END.get(posixpath.splitext(name)[1]):
        return said
    return next((said for folder, said in _BY_FOLDER.items() if f"/{folder}/" in f"/{normal}"), "")


def with_word(path: str, preview: str) -> str:
    """Return a preview of a change to `path`, with a last line that says who will run it."""
    said = who_runs(path) if preview else ""
    return f"{preview.rstrip(chr(10))}\nNote: {said}." if said else preview
