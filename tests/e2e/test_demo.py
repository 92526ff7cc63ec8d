"""`make demo` tells the whole story on real parts: the install pipe, the real Pi, git, the gate, the update prompt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "cordis" / "examples" / "demo" / "demo.py"


def test_the_loop_closes_on_the_real_pi(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "REEF_TOKEN"}
    environment["COLUMNS"] = "200"
    done = subprocess.run(
        [sys.executable, str(DEMO), "--folder", str(tmp_path / "demo")], capture_output=True, text=True, timeout=290, env=environment
    )
    story = done.stdout
    assert done.returncode == 0, story + done.stderr
    assert story.index("rejected") < story.index("released"), "the harmful candidate is rejected before the useful one is released"
    assert "Reef update available: 1 → 2" in story
    assert "candidates/demo/" in story
    last = story.rsplit("The same tasks again", 1)[1]
    assert last.count("✓") == 3
    assert "✗" not in last
    assert "The loop is closed" in story
