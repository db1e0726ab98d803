# SPDX-License-Identifier: Apache-2.0
"""dlx for PyTorch: batches from other processes for a DataLoader, and a queue in the place of
torch.multiprocessing.Queue.

    publish_batches(loader, "batches/0")                       # in each loader process
    for batch in DataLoader(Batches("batches/0"), batch_size=None): ...    # in each trainer

    queue = Queue()                                            # as torch.multiprocessing.Queue
"""

from ._batches import Batches, Published, publish_batches
from ._queue import Queue

__all__ = ["Batches", "Published", "Queue", "publish_batches"]
