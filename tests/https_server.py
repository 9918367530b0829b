"""A server of files by https, with a certificate of its own, that can be told to misbehave."""

import datetime
import hashlib
import ipaddress
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Files:
    """What a server has: content by path, and how it answers.

    Attributes
    ----------
    address
        Of the server, which its paths are put behind.
    certificate
        What its clients have to trust.
    asked
        Paths and ranges that it was asked for.
    fault
        How it misbehaves: see `_Handler`.
    """

    def __init__(self, certificate):
        self.content = {}
        self.address = ""
        self.certificate = certificate
        self.asked = []
        self.fault = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files = self.server.files
        wanted = self.headers.get("Range")
        files.asked.append((self.path, wanted))
        content = files.content.get(self.path)
        if content is None:
            self.answer(404, b"")
        elif files.fault == "leads elsewhere":
            self.answer(302, b"", Location="https://169.254.169.254/latest/meta-data/")
        elif files.fault == "refuses":
            self.answer(403, b"no")
        elif files.fault == "sends no ranges":
            self.answer(200, content, ETag='"1"')
        else:
            self.send_range(content, wanted)

    def send_range(self, content, wanted):
        fault = self.server.files.fault
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.headers.get("If-Match", etag) != etag:
            self.answer(412, b"")
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        last = min(last, len(content) - 1)
        headers = {"ETag": etag, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        if fault == "packs":
            headers["Content-Encoding"] = "gzip"
        if fault == "tells no version":
            del headers["ETag"]
        if fault == "sends another range" and first:
            headers["Content-Range"] = f"bytes {first - 1}-{last}/{len(content)}"
        self.answer(206, content[first : last + 1], **headers)

    def answer(self, status, body, **headers):
        is_cut = self.server.files.fault == "ends in the middle" and len(body) > 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.close_connection = self.close_connection or is_cut
        self.wfile.write(body[: len(body) // 2] if is_cut else body)

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that reads no further is no error."""


@contextmanager
def serving(folder):
    """Files behind https on a port of loopback; the certificate lies in a folder."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    _certify(certificate, key)
    server = _Server(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.files = Files(certificate)
    server.files.address = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _certify(certificate, key):
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(own, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
