"""Makes the harness and the fake installer of the tests of the runtime and the web server of the tools'
importable.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("runtime", "runtime/mcp", "tools")]
