"""The libraries that the book compares itself with, imported without a word."""

import logging
import os
import warnings


def quiet_imports() -> None:
    """Call it before importing transformers, peft or torchao.

    They ask no network then, show no progress bars, and do not tell of a bar that a notebook lacks or
    of kernels that a CPU build of torchao does not have (transformers and peft import torchao).
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    warnings.filterwarnings("ignore", message="IProgress not found")
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
