"""What a process that decodes files has loaded, asked of a real one."""

import multiprocessing
import sys
from contextlib import closing

from georesolve.service.receiving.children import Children


def write_modules_of_child():
    """Write the modules of a child to standard output, one a line."""
    # The child imports this module: it would load what gives work to decoders.
    from georesolve.service.receiving.decoders import LEFT_OUT, PRELOADED

    # The server of multiprocessing is one for the whole process: it may be at work for others.
    others = multiprocessing.get_context("forkserver").Process(target=_do_nothing)
    others.start()
    children = Children(_tell_modules, PRELOADED, LEFT_OUT)
    with closing(children), children.child(60) as child:
        child.connection.send("what have you loaded?")
        sys.stdout.write("\n".join(child.connection.recv()))
    others.join()


def _do_nothing():
    pass


def _tell_modules(connection):
    connection.recv()
    connection.send(sorted(sys.modules))
