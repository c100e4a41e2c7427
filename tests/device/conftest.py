"""Where there is a real GPU, ``tests/gpu`` is for it: its kernels would get pretended tensors."""

from __future__ import annotations

import torch

collect_ignore_glob = ["test_*.py"] if torch.cuda.is_available() else []
