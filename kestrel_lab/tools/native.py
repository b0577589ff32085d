"""The tools that come with the package."""

from kestrel_lab.tools.asking import ask_user
from kestrel_lab.tools.clock import normalize_timezone, parse_relative, time_arithmetic
from kestrel_lab.tools.files import batch_read, edit_file, file_exists, list_directory, read_file, write_file
from kestrel_lab.tools.registry import Toolbox
from kestrel_lab.tools.search import glob, grep, tree
from kestrel_lab.tools.shell import bash


def native_tools() -> Toolbox:
    """Files, search, the shell, time, and a question to the user."""
    reckoning = [parse_relative, time_arithmetic, normalize_timezone]
    return Toolbox(
        [read_file, batch_read, write_file, edit_file, list_directory, file_exists, glob, grep, tree, bash, *reckoning, ask_user]
    )
