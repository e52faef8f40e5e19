"""A local server of archives that can break off, ignore ranges, lie or send too much."""

import hashlib
import http.server
import io
import tarfile
import zipfile

from tkpr.data.download import Archive


class Server(http.server.ThreadingHTTPServer):
    """Serves ``content`` by path; the other attributes say what goes wrong."""

    def __init__(self):
        self.content = {}
        self.break_after = None  # bytes of a body
        self.ranges = True  # whether the header Range is obeyed
        self.content_length = True  # whether it is sent
        self.content_range = "bytes {start}-{last}/{total}"  # None: not sent
        self.endless = False  # whether a body is followed by zeros without end
        self.errors = []  # status codes of the next answers
        self.asked = []
        super().__init__(("127.0.0.1", 0), Handler)

    def archive(self, name, content, **changes):
        """Serve ``content`` as ``name``; return its description, with ``changes``."""
        self.content[f"/{name}"] = content
        facts = {
            "url": f"http://127.0.0.1:{self.server_port}/{name}",
            "size": len(content),
            "md5": hashlib.md5(content).hexdigest(),
            "provides": "inner/a.txt",
        }
        return Archive(**facts | changes)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked, server = self.headers["Range"], self.server
        server.asked.append(asked)
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        content = server.content[self.path]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if server.ranges else 0
        body = content[start:]
        self.send_response(206 if server.ranges else 200)
        if server.content_length:
            self.send_header("Content-Length", str(len(body)))
        if server.ranges and server.content_range is not None:
            sizes = {"start": start, "last": len(content) - 1, "total": len(content)}
            self.send_header("Content-Range", server.content_range.format(**sizes))
        self.end_headers()
        self.close_connection = True
        self.wfile.write(body[: server.break_after])
        sent = len(body)
        while server.endless and sent < 1 << 20:  # a megabyte is endless enough
            try:
                self.wfile.write(bytes(4096))
            except ConnectionError:
                break
            sent += 4096

    def log_message(self, *args):
        pass


def tar_bytes(names=("inner/a.txt",), link=None):
    """A tar archive of small files, perhaps with a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as members:
        if link:
            member = tarfile.TarInfo("inner/link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            members.addfile(member)
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            members.addfile(member, io.BytesIO(b"hi"))
    return buffer.getvalue()


def zip_bytes(names=("inner/a.txt",), mode=0o644):
    """A zip archive of small files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as members:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            members.writestr(entry, "hi")
    return buffer.getvalue()
