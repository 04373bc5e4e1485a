"""What two judges of HTTP APIs say: llm-comply of the dialects' shapes, schemathesis of the whole.

Reports: ``compliance.json`` is what llm-comply finds, with a reason for each failure that is left;
``RADIXSERVE_WRITE_REPORT=1 make test-clients`` writes it anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.asked import HANG, KEY, MODEL

pytestmark = pytest.mark.clients

DIALECTS = ("openai-chat", "open-responses", "anthropic")
REPORT = Path(__file__).with_name("compliance.json")
NO_IMAGES = "The server reads text alone, and says so in a 400."
NO_MODEL = "A request that names no model is answered by the only one there is, as elsewhere."
REASONS = {
    "chat-image-input": NO_IMAGES,
    "image-input": NO_IMAGES,
    "anth-image-input": NO_IMAGES,
    "chat-error-handling": NO_MODEL,
    "error-handling": NO_MODEL,
}
"""Of each failure that is meant."""
CASES = 2000


def judged(url: str, dialect: str) -> list[dict[str, Any]]:
    """Each check of llm-comply with its status and what it found wrong."""
    judge = "import sys; from llm_comply.cli import main; sys.exit(main())"
    options = ["--base-url", url, "--api-key", KEY, "--model", MODEL, "--format", dialect, "--json"]
    run = subprocess.run(
        [sys.executable, "-c", judge, *options], capture_output=True, text=True, timeout=HANG
    )
    found = json.loads(run.stdout)["results"]
    return [
        {
            "id": each["id"],
            "status": each["status"],
            "errors": each.get("errors", []),
            "warnings": each.get("warnings", []),
            "reason": REASONS.get(each["id"]) if each["status"] == "failed" else None,
        }
        for each in found
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_is_spoken_as_its_judge_expects_but_where_there_is_a_reason(
    polite: str, dialect: str
):
    results = judged(polite, dialect)
    if os.environ.get("RADIXSERVE_WRITE_REPORT"):
        report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
        report[dialect] = results
        REPORT.write_text(json.dumps(report, indent=1) + "\n")
    failed = {each["id"] for each in results if each["status"] == "failed"}
    assert failed == REASONS.keys() & {each["id"] for each in results}
    assert sum(each["status"] == "passed" for each in results) >= 6
    report = json.loads(REPORT.read_text())
    assert results == report[dialect], "the report is not of this server: write it anew"


def test_nothing_that_the_api_takes_makes_it_fail(alone: str, tmp_path: Path):
    base = alone.removesuffix("/v1")
    report = tmp_path / "report.txt"
    with report.open("w") as out:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json"),
                *("--checks", "not_a_server_error", "--seed", "1", "--max-examples", "60"),
                *("--request-timeout", "30", "--no-color", "--workers", "1"),
            ],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=10 * HANG,
        )
    text = report.read_text()
    assert run.returncode == 0, text[-5000:]
    found = re.search(r"(\d[\d,]*) generated", text)
    assert found is not None, text[-5000:]
    assert int(found[1].replace(",", "")) >= CASES
