"""The bytes of every rank, in rank order, on every rank: two collectives, no pickling."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["gather"]


def gather(message: bytes, group: Any = None) -> list[bytes]:
    """The messages of all ranks of ``group`` (None: the default one), in rank order.

    An all_gather of the lengths (int64 [1]), then one of the messages padded to the longest (uint8), on the device that
    the backend needs. Without an initialised process group it is one's own message. What goes wrong with a rank that
    is gone, or after the group's timeout, is torch's own error.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return [message]
    backend = distributed.get_backend(group)
    # NCCL moves CUDA tensors only; a group with both, and every other backend, takes the CPU's
    on_gpu = "nccl" in backend and "gloo" not in backend
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    ranks = distributed.get_world_size(group)

    def everyones(mine: torch.Tensor) -> list[torch.Tensor]:
        mine = mine.to(device)
        all_of_them = [torch.empty_like(mine) for _ in range(ranks)]
        distributed.all_gather(all_of_them, mine, group=group)
        return [x.cpu() for x in all_of_them]

    lengths = [int(n) for n in everyones(torch.tensor([len(message)]))]
    padded = bytearray(message.ljust(max(1, *lengths), b"\0"))
    frames = everyones(torch.frombuffer(padded, dtype=torch.uint8))
    return [frame.numpy().tobytes()[:n] for frame, n in zip(frames, lengths, strict=True)]
