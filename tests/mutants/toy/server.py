"""A small server that keeps every clause of the contract, made to be broken one way at a time."""

from __future__ import annotations

import codecs
import itertools
import json
import re
import time
from collections.abc import Iterator
from email.message import Message
from typing import Any, ClassVar

from attrs import define, field, frozen

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.target import TIMEOUT
from tests.mutants.toy import model as toy_model
from tests.mutants.toy import rules as toy_rules
from tests.mutants.toy.model import END, TOKENS, Prompt, Sampling
from tests.mutants.toy.rules import Refused, Rule
from tests.mutants.toy.wire import Handler, serving

__all__ = ["CHAT", "COMPLETIONS", "MODEL", "RIGHT", "Json", "Part", "Toy", "right", "serving"]

MODEL = "Qwen/Qwen3-0.6B"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

Json = dict[str, Any]


@frozen
class Part:
    """What one token adds: the ids since the last part, and the text that may be sent."""

    text: str
    ids: list[int]


RIGHT: list[type[Toy]] = []
"""The kinds of toys that keep every clause, all together with every capability."""


def right(toy: type[Toy]) -> type[Toy]:
    """Enter a kind of toy that keeps every clause of what it doesn't lack."""
    RIGHT.append(toy)
    return toy


@right
@define
class Toy:
    """The server's behaviour; a kind or a fault is a subclass that overrides one of these."""

    waited_for: ClassVar[float] = TIMEOUT
    """Seconds that the suite waits for its bytes: less where a fault is to send none."""
    lacks: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.NO_TEMPLATE,
            Capability.VISION,
            Capability.SYSTEMONE,
            Capability.ZERO_SHOT,
            Capability.DECIDER,
            Capability.BATCHED,
            Capability.SPECULATION,
            Capability.METRICS,
            Capability.TELEMETRY,
        }
    )

    answer_media_type: ClassVar[str] = "application/json"
    handler: ClassVar[type[Handler]] = Handler

    most_bytes: int = 4 * 1024 * 1024
    rules: dict[str, Rule] = field(factory=lambda: dict(toy_rules.FIELDS))
    numbers: Iterator[int] = field(factory=lambda: itertools.count(1))

    def post(self, path: str, body: Json) -> Json | str | Iterator[str]:
        """The answer to a request: a value, a JSON text, or events. Kinds with more routes add."""
        if path not in (CHAT, COMPLETIONS):
            raise Refused(404, "not here")
        self.check(path, body)
        return self.events(path, body) if body.get("stream") else self.whole(path, body)

    def check(self, path: str, body: Json) -> None:
        if not isinstance(body.get("model"), str):
            raise Refused(400, "no model", "model")
        self.check_model(body["model"])
        other = "prompt" if path == CHAT else "messages"
        if body.get(other) is not None:
            raise Refused(400, "not here", other)
        toy_rules.check_fields(body, self.rules)

    def check_model(self, name: str) -> None:
        if name != MODEL:
            raise Refused(400, f"{MODEL} is served, not {name[:50]}", "model")

    def prompt(self, path: str, body: Json) -> Prompt:
        if path == CHAT:
            texts = self.messages(body)
            prompt = Prompt.of_text("\n".join(texts), template=10)
        else:
            given = toy_rules.read_prompt(body, len(TOKENS))
            prompt = Prompt.of_text(given) if isinstance(given, str) else Prompt(tuple(given))
        return self.fit(prompt, "messages" if path == CHAT else "prompt")

    def messages(self, body: Json) -> list[str]:
        return toy_rules.read_messages(body)

    def fit(self, prompt: Prompt, param: str) -> Prompt:
        if prompt.tokens >= toy_model.CONTEXT:
            raise Refused(400, f"{prompt.tokens} tokens, {toy_model.CONTEXT} fit", param)
        return prompt

    def sampling(self, body: Json) -> Sampling:
        names = ("temperature", "top_p", "min_p", "repetition_penalty")
        given = {name: body[name] for name in names if body.get(name) is not None}
        seed = body.get("seed")
        top_k = max(body.get("top_k") or 0, 0)
        return Sampling(**given, top_k=top_k, seed=None if seed == -1 else seed)

    def cap(self, body: Json) -> int:
        return min(body.get("max_tokens") or body.get("max_completion_tokens") or 300, 300)

    def stops(self, body: Json) -> list[str]:
        stop = body.get("stop") or []
        return [stop] if isinstance(stop, str) else stop

    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        """The parts of an answer, and last its finish_reason."""
        stops, cap = self.stops(body), self.cap(body)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        sent = text = ""
        ids: list[int] = []
        for count, token in enumerate(self.tokens(prompt, body), 1):
            if token == END and not body.get("ignore_eos"):
                break
            ids.append(token)
            text += self.decode(decoder, token)
            found = [text.index(stop) for stop in stops if stop in text]
            ready = text[: min(found)] if found else self.ready(text, stops)
            if ready != sent or found:
                yield Part(ready[len(sent) :], ids)
                sent, ids = ready, []
            if found:
                yield "stop"
                return
            if count == cap:
                yield Part(self.tail(text, sent), ids)
                yield self.reason_at_cap()
                return
        yield Part(self.tail(text, sent), ids)
        yield "stop"

    def tokens(self, prompt: Prompt, body: Json) -> Iterator[int]:
        """The ids of an answer, without end."""
        return toy_model.generate(prompt, self.sampling(body))

    def decode(self, decoder: codecs.IncrementalDecoder, token: int) -> str:
        return decoder.decode(TOKENS[token])

    def ready(self, text: str, stops: list[str]) -> str:
        """``text`` without a tail that may become a stop."""
        held = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        return text[: len(text) - max(held, default=0)]

    def tail(self, text: str, sent: str) -> str:
        return text[len(sent) :]

    def reason_at_cap(self) -> str:
        return "length"

    def frame(self, path: str, kind: str) -> Json:
        prefix = "chatcmpl" if path == CHAT else "cmpl"
        return {
            "created": int(time.time()),
            "id": f"{prefix}-{next(self.numbers)}",
            "model": MODEL,
            "object": kind,
        }

    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        return {
            "completion_tokens": len(ids),
            "prompt_tokens": prompt.tokens,
            "total_tokens": prompt.tokens + len(ids),
        }

    def whole(self, path: str, body: Json) -> Json:
        prompt = self.prompt(path, body)
        *parts, reason = self.parts(prompt, body)
        text = "".join(part.text for part in parts if isinstance(part, Part))
        ids = [token for part in parts if isinstance(part, Part) for token in part.ids]
        choice: Json = {"finish_reason": reason, "index": 0}
        if path == CHAT:
            choice["message"] = {"content": text, "role": "assistant"}
        else:
            choice["text"] = text
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
        frame = self.frame(path, "chat.completion" if path == CHAT else "text_completion")
        return {"choices": [choice], **frame, "usage": self.usage(prompt, ids)}

    def events(self, path: str, body: Json) -> Iterator[str]:
        prompt = self.prompt(path, body)
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        frame = self.frame(path, kind)
        wants_ids = body.get("return_token_ids")
        made: list[int] = []
        pending: list[int] = []
        for part in self.parts(prompt, body):
            if isinstance(part, Part):
                made += part.ids
                pending += part.ids
                if not part.text:
                    continue
            text, reason = (part.text, None) if isinstance(part, Part) else ("", part)
            chunk = {**frame, "choices": [self.choice(path, text, reason)]}
            yield self.encode(self.with_ids(chunk, pending) if wants_ids else chunk)
            pending = []
        if (body.get("stream_options") or {}).get("include_usage"):
            yield self.encode({**frame, "choices": [], "usage": self.usage(prompt, made)})
        yield "[DONE]"

    def with_ids(self, chunk: Json, ids: list[int]) -> Json:
        return chunk | {"token_ids": ids}

    def choice(self, path: str, text: str, reason: str | None) -> Json:
        choice: Json = {"finish_reason": reason, "index": 0}
        if path == CHAT:
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        return choice

    def event_bytes(self, event: str) -> bytes:
        return f"data: {event}\n\n".encode(errors="surrogateescape")

    def encode(self, value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def error(self, refused: Refused) -> Any:
        return {
            "error": {
                "code": None,
                "message": refused.message,
                "param": refused.param,
                "type": "invalid_request_error",
            }
        }

    def status(self, refused: Refused) -> int:
        return refused.status

    def read(self, content_type: str, raw: bytes) -> Json:
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise Refused(400, "send JSON")
        try:
            body = json.loads(raw, object_pairs_hook=_no_twins, parse_constant=_no_constants)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"no JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(400, "no object")
        if b"\\u" in raw and re.search("[\ud800-\udfff]", json.dumps(body, ensure_ascii=False)):
            raise Refused(400, "half a surrogate pair")
        return body

    def check_headers(self, headers: Message) -> None:
        self.check_host(headers["Host"])

    def check_host(self, host: str) -> None:
        if not re.fullmatch(r"(?i:127\.0\.0\.1|localhost|\[::1\])(:\d*)?", host):
            raise Refused(403, "another host")

    def allowed(self, path: str) -> str:
        """The methods of a path, none where there is no route."""
        if path in (CHAT, COMPLETIONS):
            return "POST, OPTIONS"
        return "GET, HEAD, OPTIONS" if path in ("/health", "/healthz", "/v1/models") else ""

    def get(self, path: str) -> Json | str:
        if path in ("/health", "/healthz"):
            return "ok"
        if path == "/v1/models":
            model = {"id": MODEL, "object": "model", "owned_by": "inferno"}
            return {"data": [model], "object": "list"}
        raise Refused(405 if path in (CHAT, COMPLETIONS) else 404, "not here")

    def media_type(self, path: str) -> str:
        """That of an answer that is a text."""
        return "text/plain"


def _no_twins(pairs: list[tuple[str, Any]]) -> Json:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _no_constants(name: str) -> None:
    raise ValueError(name)
