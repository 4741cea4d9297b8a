"""Results of the slow tests as one table: faults.md in reports/trust, or in the folder SDGMNET_REPORTS."""

import json
import os
from pathlib import Path

from sdgmnet.report import markdown

FOLDER = Path(os.environ.get("SDGMNET_REPORTS", Path(__file__).parents[2] / "reports" / "trust"))


def record(kind: str, fault: str, passed: int, of: int, remark: str = "") -> None:
    """Add or replace one line of the table."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "faults.json"
    lines = json.loads(kept.read_text()) if kept.exists() else {}
    lines[f"{kind}, {fault}"] = [kind, fault, f"{passed}/{of}", remark]
    lines = dict(sorted(lines.items()))
    kept.write_text(json.dumps(lines, indent=2) + "\n")
    (FOLDER / "faults.md").write_text(markdown(["job", "fault", "passed", "remark"], list(lines.values())))
