"""The tools that come with the package."""

from kestrel_lab.tools.asking import ask_user
from kestrel_lab.tools.clock import normalize_timezone, parse_relative, time_arithmetic
from kestrel_lab.tools.files import batch_read, edit_file, file_exists, list_directory, multi_edit, read_file, write_file
from kestrel_lab.tools.registry import Toolbox
from kestrel_lab.tools.search import glob, grep, tree
from kestrel_lab.tools.shell import bash
from kestrel_lab.tools.trash import delete_file, restore_file


def native_tools() -> Toolbox:
    """Files, search, the shell, time, and a question to the user."""
    reckoning = [parse_relative, time_arithmetic, normalize_timezone]
    writing = [write_file, edit_file, multi_edit, delete_file, restore_file]
    return Toolbox([read_file, batch_read, *writing, list_directory, file_exists, glob, grep, tree, bash, *reckoning, ask_user])
