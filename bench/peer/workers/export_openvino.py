"""Write a model's directory as OpenVINO's files, tokenizer included: ``SOURCE TARGET``."""

from __future__ import annotations

import sys

from optimum.exporters.openvino import main_export

if __name__ == "__main__":
    source, target = sys.argv[1:]
    main_export(source, target, task="text-generation-with-past", local_files_only=True)
