# SPDX-License-Identifier: Apache-2.0
"""A server of SGLang that peercache-bench served measures: one request, and what its answer tells.

Any thread. A connection belongs to the thread that made it and ends with its request.
"""

import http.client
import json
import os
import time
import urllib.parse
from typing import Any, Mapping, Optional

from peercache.bench.dialogues import Prompt

SOURCES = ("device", "host", "storage")  # L1, L2, L3
KEY = "PEERCACHE_BENCH_API_KEY"  # the variable with the servers' --api-key
INFO = ("/server_info", "/get_server_info")  # SGLang's path, and that of versions before 0.5.6
INFO_SECONDS = 30.0  # of a question that the server answers by itself
TEXT_MAX = 300  # characters of an error's text
ANSWER_MAX = 64 << 20  # bytes of an answer, at most, or of a line of it


class Failed(Exception):
    """A request without an answer. cause: its name, the same for all of its kind."""

    def __init__(self, cause: str, text: str = "") -> None:
        super().__init__(f"{cause}: {text[:TEXT_MAX]}" if text else cause)
        self.cause = cause


class Reply:
    """What the server has told about a prompt.

    Attributes: ttft: seconds to the first token. prompt: tokens. hits: those that were cached.
    device, host, storage: where they came from; None: the server does not tell. output: the answer.
    """

    device: Optional[int]
    host: Optional[int]
    storage: Optional[int]

    def __init__(self, ttft: float, got: Mapping[str, Any]) -> None:
        """Raises Failed if `got` is no answer of SGLang."""
        meta = got.get("meta_info")
        if not isinstance(meta, dict):
            raise Failed("an answer without meta_info", json.dumps(got))
        end = meta.get("finish_reason")
        if isinstance(end, dict) and end.get("type") == "abort":
            raise Failed("the server aborted the request", str(end.get("message", "")))
        self.ttft = ttft
        self.output = got.get("output_ids") or got.get("text")
        self.prompt, self.hits = meta.get("prompt_tokens"), meta.get("cached_tokens")
        if not count_of(self.prompt) or not count_of(self.hits) or self.hits > self.prompt:
            raise Failed("a wrong count of tokens", f"{self.hits} cached of {self.prompt}")
        details = meta.get("cached_tokens_details")
        for source in SOURCES:
            value = (details or {}).get(source, 0) if details or not self.hits else None
            setattr(self, source, value if value is None or count_of(value) else None)
        known = [getattr(self, source) for source in SOURCES]
        if None not in known and sum(known) != self.hits:
            raise Failed("a wrong count of tokens", f"{self.hits} cached, by source {details}")


def count_of(value: Any) -> bool:
    """True for a whole number that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


class Server:
    """A server. Subclasses know how to reach it, and what it costs."""

    name, prefix = "a server", ""

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        """A connection for one request, which waits at most `seconds` for each read."""
        raise NotImplementedError

    def cpu(self) -> tuple[Optional[float], Optional[float]]:
        """CPU seconds that server and store have used; None: unknown."""
        return None, None

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of the answer to a GET. Raises OSError, HTTPException."""
        connection = self.connection(INFO_SECONDS)
        try:
            connection.request("GET", self.prefix + path, headers=headers())
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_MAX).decode("utf-8", "replace")
        finally:
            connection.close()

    def info(self) -> dict[str, Any]:
        """What the server tells of itself. Raises RuntimeError if it is none of SGLang."""
        try:
            for path in INFO:
                status, text = self.get(path)
                if status != 404:
                    break
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"no server answers at {self.name}: {said(error)}: start one there, "
                               "or correct --url") from error
        if status in (401, 403):
            raise RuntimeError(f"{self.name} refuses GET {path} with {status}: give the server's "
                               f"--api-key in ${KEY}")
        try:
            got = json.loads(text) if status == 200 else None
        except (ValueError, RecursionError):
            got = None
        if not isinstance(got, dict) or "model_path" not in got:
            raise RuntimeError(f"{self.name} is no server of SGLang: it answers GET {path} with "
                               f"{status} and {text[:60]!r}: give the address of "
                               "sglang.launch_server")
        return got


class Url(Server):
    """A server that runs somewhere."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for a text that is no URL."""
        wrong = ValueError(f"{url} is no URL of a server, such as http://10.0.0.1:30000")
        try:
            self.place = urllib.parse.urlsplit(url)
            self.port = self.place.port
        except ValueError:
            raise wrong from None
        if self.place.scheme not in ("http", "https") or not self.place.hostname or \
                self.place.query or self.place.fragment:
            raise wrong
        if "@" in self.place.netloc:
            raise ValueError(f"give a URL without a password: the servers' --api-key is in ${KEY}")
        self.name, self.prefix = url, self.place.path.rstrip("/")

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.place.scheme == "https" else \
            http.client.HTTPConnection
        return kind(str(self.place.hostname), self.port, timeout=seconds)


def headers() -> dict[str, str]:
    """The headers of all requests."""
    key = os.environ.get(KEY, "").strip()
    return {"Content-Type": "application/json",
            **({"Authorization": f"Bearer {key}"} if key else {})}


def said(error: Exception) -> str:
    """An error as text, which is never empty."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def chunk_of(line: bytes) -> Optional[dict[str, Any]]:
    """The chunk of an answer in a line; None: the line has none. Raises Failed."""
    text = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
    if not text.startswith("{"):
        return None
    try:
        got = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failed("an answer that is no JSON", text) from error
    if "error" in got:
        wrong = got["error"]
        raise Failed("an error in the stream",
                     str(wrong.get("message", wrong) if isinstance(wrong, dict) else wrong))
    return got


def ask(server: Server, prompt: Prompt, tokens: int, seconds: float) -> Reply:
    """Sends a prompt. tokens: of the answer. Raises Failed, also if nothing comes for `seconds`."""
    body = {"text" if isinstance(prompt, str) else "input_ids": prompt, "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    text = json.dumps(body)
    connection = server.connection(seconds)
    try:
        start, ttft, got = time.perf_counter(), None, None
        connection.request("POST", server.prefix + "/generate", text, headers())
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"HTTP {answer.status}",
                         answer.read(TEXT_MAX).decode("utf-8", "replace"))
        while line := answer.readline(ANSWER_MAX):
            chunk = chunk_of(line)
            if chunk:
                ttft, got = ttft or time.perf_counter() - start, chunk
        if got is None or ttft is None:
            raise Failed("an empty answer")
        return Reply(ttft, got)
    except TimeoutError as error:
        raise Failed(f"nothing came for {seconds:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise Failed(said(error)) from error
    finally:
        connection.close()
