"""The environment of a worker's process: what must be set before it starts."""

from __future__ import annotations

# glibc returns and faults in packed buffers above 32 MB at every step otherwise: 10 % of a step on a CPU
WORKER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}
