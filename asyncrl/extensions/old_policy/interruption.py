"""Interrupting engines for what a version has sampled, before it is replaced (`train.old_policy` is "interrupt")."""

from __future__ import annotations

import logging

from asyncrl.extensions.old_policy.sampled import Sequence, sequences_from_list, without_prefixes
from asyncrl.weights.carrier import ask_each
from asyncrl.weights.publish import FilePublisher

log = logging.getLogger("asyncrl.weights")


async def interrupt(publisher: FilePublisher, version: int, limit_s: float) -> list[Sequence]:
    """Pause a publisher's engines until the next publish, for `limit_s` at most; return the sequences in which
    `version` has sampled tokens.

    What an engine sampled that does not answer is missing, as is what one serves that has another version.
    """
    body = {"limit_s": limit_s, "finish_requests": publisher.finish_requests}
    engines = [engine for engine in publisher.engines if engine.url not in publisher.quarantined]
    missed: dict[str, str] = {}
    answer_s = publisher.phase_timeout_s + publisher.turn_s
    answers = await ask_each(engines, "weights/interrupt", body, answer_s, missed)
    found = []
    for url, answer in answers.items():
        if answer["version"] == version:
            found += sequences_from_list(answer["sequences"], f"engine {url}: sequences")
        else:
            missed[url] = f"it serves version {answer['version']}"
    for url, reason in missed.items():
        log.warning("engine %s: what it sampled of version %d is not known: %s", url, version, reason)
    return without_prefixes(found)
