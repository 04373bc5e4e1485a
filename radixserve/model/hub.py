"""Files of the Hugging Face hub, and what to do when they cannot be had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radixserve.errors import ModelError, first_line

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
MODEL_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
OTHER_FILES = ["consolidated*", "*/*"]
"""Weights for other programs, and what lies in subfolders."""


def snapshot(name: str, *, weights: bool) -> Path:
    """The files of model ``name``, downloaded once, with a progress bar.

    Raises:
        ModelError: they cannot be had.
    """
    from huggingface_hub import snapshot_download

    patterns = [each for each in MODEL_FILES if weights or each != "*.safetensors"]
    with _explained(name):
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=OTHER_FILES))


def config_file(name: str) -> Path:
    """The config.json of model ``name`` alone.

    Raises:
        ModelError: it cannot be had.
    """
    from huggingface_hub import hf_hub_download

    with _explained(name):
        return Path(hf_hub_download(name, "config.json"))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its licence on the Hugging Face hub, then log in with "
            "`hf auth login` or set HF_TOKEN."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{name} is no file or directory here, and no model on the Hugging Face hub "
            "(or a private one: log in with `hf auth login`)."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{name} is not in the local Hugging Face cache, and the hub cannot be reached. Check "
            "the connection (and HF_HUB_OFFLINE, HF_ENDPOINT), or name a directory or GGUF file."
        ) from error
    except Exception as error:  # proxies, certificates, full disks, the hub's own faults
        raise ModelError(f"{name} cannot be downloaded: {first_line(error)}") from error
