"""A console as a process, and somebody who asks it over HTTP. No test lives here."""

import http.client
import json
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from urllib.parse import urlencode, urlsplit

from commands import COMMAND, environment
from http_attacks import STRANGE
from patience import PATIENCE_S, wait_until

ATTACKS = {
    **STRANGE,
    "half a request": b"GET /api/session HTT",
    "a head without end": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000,
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a huge body": b"POST /api/sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx",
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    "a websocket and more": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + b"\x81\x85more" * 100,
    "a tunnel": b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    "an upgrade to it": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + bytes(100),
    "a way up": b"GET /static/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
}


class Console:
    """`hightide console`, from its start to its end."""

    def __init__(self, bootstrap, *words, config=None):
        told = environment() | ({"HIGHTIDE_CONFIG": str(config)} if config else {})
        self.process = subprocess.Popen(
            [*COMMAND, "console", "-b", bootstrap, "--listen", "127.0.0.1:0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=told,
        )
        self.address = self.process.stdout.readline().strip().rstrip("/")
        assert self.address, self.process.communicate()

    @property
    def port(self):
        return urlsplit(self.address).port

    def end(self, number=signal.SIGTERM):
        """Its exit code, and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def say(self, data):
        """Send bytes as they are; how the answer to what has a line begins."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as stream:
            with suppress(OSError):
                stream.sendall(data)
                stream.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                return stream.recv(1 << 16) if data.count(b"\n") else b""
        return b""


class Visitor:
    """A browser as far as its requests go."""

    def __init__(self, console, user="", password=""):
        self._port, self._origin = console.port, console.address
        self._cookie = ""
        self.session = self.get("/api/session")
        if self.session["sign_in"]:
            self.session = self.post("/api/sign-in", {"user": user, "password": password})

    def get(self, path, code=200, **asked):
        return self._ask("GET", path + (f"?{urlencode(asked)}" if asked else ""), code)

    def post(self, path, said, code=200, **headers):
        told = {"Origin": self._origin, "X-Hightide-Token": self.session.get("token", "")}
        return self._ask("POST", path, code, json.dumps(said), told | headers)

    def _ask(self, method, path, code, body=None, headers=None):
        connection = self._connection()
        connection.request(method, path, body, {**(headers or {}), "Cookie": self._cookie})
        answer = connection.getresponse()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                self._cookie = value.partition(";")[0]
        data = answer.read()
        connection.close()
        assert answer.status == code, (answer.status, data)
        return json.loads(data)

    def _connection(self):
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)

    def watch(self, topic=""):
        return Watching(self._connection(), self._cookie, topic)


class Watching:
    """An open stream; keeps what came."""

    def __init__(self, connection, cookie, topic):
        connection.request("GET", f"/api/stream?topic={topic}", headers={"Cookie": cookie})
        self._connection = connection
        self._answer = connection.getresponse()
        self.state, self.events, self.is_over = {}, [], False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        event = ""
        with suppress(OSError, http.client.HTTPException, ValueError):
            for line in self._answer:
                name, _, value = line.decode().rstrip().partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "state":
                    self.state = json.loads(value)
                elif name == "data":
                    self.events.extend(json.loads(value))
        self._answer.close()
        self._connection.close()
        self.is_over = True

    def until(self, true, what):
        """Wait for something of the state; the state then."""
        wait_until(lambda: self.state and true(self.state), what, progress=lambda: self.is_over)
        return self.state

    def lanes(self, partition=0):
        """(broker, badge, stale, log end) of each replica, as the topic's page has them now."""
        topic = self.state.get("topic") or {"partitions": []}
        return [
            (lane["broker"], lane["badge"], lane["stale"], lane["log_end"])
            for part in topic["partitions"]
            if part["partition"] == partition
            for lane in sorted(part["lanes"], key=lambda lane: lane["broker"])
        ]
