"""What a machine has: its GPUs, its memory, the threads of a worker, and the log."""
