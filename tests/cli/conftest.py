"""Makes the fake installer of the engine's tests and the web server of the tools' importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
sys.path.insert(1, str(Path(__file__).parents[1] / "tools"))
