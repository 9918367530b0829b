"""What a process has loaded when it is ready is not looked through for garbage again."""

import gc


def keep_what_is_loaded() -> None:
    """Leave what there is by now out of all later collections, which begin here.

    To look through it takes 0.1 s, again and again, in which no thread runs; and most of a second
    when a process ends, or on a busy machine more than the 4 s after which Dask kills a worker.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
