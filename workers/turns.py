"""Turns: a worker searches for one at a time, for the task in hand or for a small job."""

import threading

turn = threading.RLock()
"""Held while a thread searches or touches what is resident.

The thread pool of numba takes no two callers at once, and the memory of a device is planned for
one. Reading, writing and sending go on meanwhile.
"""
