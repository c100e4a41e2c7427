"""Skip these tests on a machine with a real GPU, whose kernels would get simulated tensors.

Run ``tests/gpu`` there.
"""

from __future__ import annotations

import torch

collect_ignore_glob = ["test_*.py"] if torch.cuda.is_available() else []
