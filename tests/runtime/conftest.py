"""Makes what folders of these tests share importable: the harness, the reference sessions, hostile servers, the
model server, power cuts.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [
    *(str(HERE / folder) for folder in (".", "agent", "mcp", "operations", "resume")),
    *(str(HERE.parent / folder) for folder in ("models", "eventlog", "tools")),
]
