"""A line between a client and a service, which a test cuts, holds up or changes."""

import socket
import socketserver
import threading
from contextlib import contextmanager, suppress


class Line(socketserver.ThreadingTCPServer):
    """A line to a service, which a test cuts, holds up or changes.

    Attributes
    ----------
    down, up
        Bytes after which a connection is cut, one number a cut: to the client, to the service.
    carried
        Bytes that were carried to the client.
    connections
        How many there were.
    open
        Clear while nothing passes.
    change
        What becomes of a piece on its way.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, port):
        self.port = port
        self.down, self.up = [], []
        self.carried = self.connections = 0
        self.change = lambda piece: piece
        self.open = threading.Event()
        self.open.set()
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def carry(self, source, target, cuts, arrived):
        """Carry one way until an end closes or a cut is due; then close both."""
        with suppress(OSError):
            while piece := source.recv(1 << 14):
                self.open.wait()
                piece = piece[: cuts[0]] if cuts else piece
                target.sendall(self.change(piece))
                arrived(len(piece))
                if cuts:
                    cuts[0] -= len(piece)
                    if not cuts[0]:
                        del cuts[0]
                        break
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def count(self, size):
        self.carried += size


class _Connection(socketserver.BaseRequestHandler):
    def handle(self):
        line, client = self.server, self.request
        line.connections += 1
        with suppress(OSError), socket.create_connection(("127.0.0.1", line.port)) as service:
            arguments = (client, service, line.up, lambda size: None)
            sending = threading.Thread(target=line.carry, args=arguments, daemon=True)
            sending.start()
            line.carry(service, client, line.down, line.count)
            sending.join()


@contextmanager
def line_to(service):
    with Line(service.base_url.port) as line:
        thread = threading.Thread(target=line.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield line
        finally:
            line.open.set()
            line.shutdown()
            thread.join()
