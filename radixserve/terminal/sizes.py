"""Sizes as people write them (80GB, 24GiB, 2TB/s, 70B) and read them."""

from __future__ import annotations

import math
import re

import typer

from radixserve.errors import ConfigError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?(b?)", re.IGNORECASE)
COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmbt]?)", re.IGNORECASE)
LARGEST = 10**18


def byte_size(text: str, *, name: str = "The size", bare: bool = True) -> int:
    """``4GiB``, ``500MB`` or (if ``bare``) ``1000000`` in bytes.

    Raises:
        ConfigError: it is no size; the message begins with ``name``.
    """
    found = SIZE.fullmatch(text.strip())
    if found is None or not (bare or found[2] or found[4]):
        number = " or a number of bytes" if bare else ""
        raise ConfigError(f"{name} {text!r} is no size: write 80GB, 24GiB{number}.")
    number, unit, binary, _ = found.groups()
    power = " kmgt".index((unit or " ").lower())
    return _within(name, text, float(number) * (1024 if binary else 1000) ** power)


def byte_rate(text: str, *, name: str) -> int:
    """``2TB/s`` in bytes a second.

    Raises:
        ConfigError: it is no bandwidth; the message begins with ``name``.
    """
    try:
        return byte_size(text.strip().removesuffix("/s"), name=name, bare=False)
    except ConfigError as error:
        raise ConfigError(f"{name} {text!r} is no bandwidth: write 2TB/s or 800GB/s.") from error


def quantity(text: str, *, name: str) -> int:
    """``8.03B``, ``134.5M`` or ``8030261248`` as a number.

    Raises:
        ConfigError: it is no number; the message begins with ``name``.
    """
    found = COUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{name} {text!r} is no number: write 8.03B, 135M or all its digits.")
    number, unit = found.groups()
    return _within(name, text, float(number) * 1000 ** " kmbt".index(unit.lower() or " "))


def finite(number: float | None) -> float | None:
    """An option as it is, if it is a number: bounds let nan pass.

    Raises:
        typer.BadParameter: it is nan or inf.
    """
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is no number.")
    return number


def both(size: float) -> str:
    """``size`` bytes in powers of 1000 and of 1024: ``34.4 GB = 32 GiB``."""
    power = _power(size)
    if power == 0:
        return decimal(size)
    return f"{decimal(size)} = {short(size / 1024**power)} {' KMGTP'[power]}iB"


def decimal(size: float) -> str:
    """``size`` bytes in powers of 1000: ``34.4 GB``."""
    power = _power(size)
    return f"{short(size / 1000**power)} {' kMGTP'[power].strip()}B"


def short(number: float) -> str:
    """``number`` in three digits or more, without zeros at the end."""
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def _power(size: float) -> int:
    """The power of 1000 that ``size`` is best told in."""
    return min((len(str(int(size))) - 1) // 3, 5)


def _within(name: str, text: str, number: float) -> int:
    if not 1 <= number <= LARGEST:
        bound = "at least 1" if number < 1 else f"at most {LARGEST:.0e}"
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise ConfigError(f"{name} must be {bound}, not {shown}.")
    return round(number)
