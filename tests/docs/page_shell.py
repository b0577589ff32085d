"""Runs the blocks of a page, one after the other, as cells of one shell: JSON on standard input."""

import json
import sys

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from kestrel_lab.models.litellm.library import litellm_library

litellm_library()  # pages ask models by it; loaded once for all of them

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    for code in json.load(sys.stdin):
        with capture_output():
            result = shell.run_cell(code)
        result.raise_error()
        print("ran", flush=True)
