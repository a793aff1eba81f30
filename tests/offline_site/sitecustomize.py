"""Imported by every Python process that a test starts: the same refusal as in the test process."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("offline", Path(__file__).parent.parent / "offline.py")
assert _spec and _spec.loader
_offline = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_offline)
_offline.refuse_other_machines()
