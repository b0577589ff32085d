"""Makes the reference session, its worker, the model server and the simulated power cuts importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
sys.path.insert(2, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(1, str(Path(__file__).parents[1] / "eventlog"))
