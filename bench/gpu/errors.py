"""Why something was not measured."""

from __future__ import annotations


class CaseError(Exception):
    """One case cannot be measured; one line that says why."""


def reason(error: BaseException) -> str:
    """``error`` in one line."""
    words = " ".join(str(error).split())
    told = words if isinstance(error, CaseError) else f"{type(error).__name__}: {words}"
    return told.removesuffix(": ")[:400]
