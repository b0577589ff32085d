"""Makes the helpers of the tests of the runtime and the tools importable."""

import sys
from pathlib import Path

for _folder in ("runtime", "runtime/mcp", "tools"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))
