"""What a process that decodes files has loaded, asked of a real one."""

import sys

from georesolve.service.receiving.children import Children


def write_modules_of_child():
    """Write the modules of a child to standard output, one a line."""
    with Children(_tell_modules, ["georesolve.service.receiving.decoding"]).child(60) as child:
        sys.stdout.write("\n".join(child.connection.recv()))


def _tell_modules(connection):
    connection.send(sorted(sys.modules))
