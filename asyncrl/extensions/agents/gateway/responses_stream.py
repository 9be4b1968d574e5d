"""The events of a streamed `/v1/responses` answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncrl.extensions.agents.gateway.exchange import Done, Event

_PART = {"type": "output_text", "text": "", "annotations": []}


class ResponsesStream:
    """Implements `exchange.Stream`. `finish` gives the whole response of a finished request."""

    def __init__(
        self, head: dict[str, Any], message_id: str, finish: Callable[[Done], dict[str, Any]]
    ) -> None:
        self.head = head
        self.finish = finish
        self.number = 0
        self.shown = 0
        self.message_id = message_id

    def opening(self) -> list[Event]:
        return [
            self._event(kind, response=self.head) for kind in ("response.created", "response.in_progress")
        ]

    def text(self, delta: str) -> list[Event]:
        events = [] if self.shown else self._open_message()
        self.shown += len(delta)
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return [*events, self._event("response.output_text.delta", **place, delta=delta, logprobs=[])]

    def ping(self) -> list[Event]:
        # Codex counts events: a comment would not keep it from hanging up.
        return [self._event("response.in_progress", response=self.head)]

    def closing(self, done: Done) -> list[Event]:
        response = self.finish(done)
        events: list[Event] = []
        for index, item in enumerate(response["output"]):
            if item["type"] == "message":
                text = item["content"][0]["text"]
                if rest := text[self.shown :]:
                    events += self.text(rest)
                elif not self.shown:
                    events += self._open_message()
                events += self._close_message(item, text)
            else:
                events += self._call(index, item)
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        return [*events, self._event(kind, response=response)]

    def failure(self, status: int, message: str) -> list[Event]:
        error = {"code": "server_error", "message": message}
        return [self._event("response.failed", response=self.head | {"status": "failed", "error": error})]

    def _open_message(self) -> list[Event]:
        item = {
            "type": "message",
            "id": self.message_id,
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **place, part=_PART),
        ]

    def _close_message(self, item: dict[str, Any], text: str) -> list[Event]:
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return [
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part=item["content"][0]),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _call(self, index: int, item: dict[str, Any]) -> list[Event]:
        if item["type"] != "function_call":
            return self._other_call(index, item)
        begun = item | {"arguments": "", "status": "in_progress"}
        place = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        kind = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event(f"{kind}.delta", **place, delta=arguments),
            self._event(f"{kind}.done", **place, name=item["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _other_call(self, index: int, item: dict[str, Any]) -> list[Event]:
        """A call of a custom tool, whose input is streamed, or of a tool that the API knows itself."""
        begun = item | {"status": "in_progress"} | ({"input": ""} if "input" in item else {})
        events = [self._event("response.output_item.added", output_index=index, item=begun)]
        if "input" in item:
            place = {"item_id": item["id"], "output_index": index}
            kind = "response.custom_tool_call_input"
            events.append(self._event(f"{kind}.delta", **place, delta=item["input"]))
            events.append(self._event(f"{kind}.done", **place, input=item["input"]))
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _event(self, kind: str, **data: Any) -> Event:
        self.number += 1
        return kind, {"type": kind, "sequence_number": self.number - 1, **data}
