"""In which states the other side of a game moves after the turns of an agent, noted on its trajectory."""

from __future__ import annotations

from dataclasses import replace

from asyncrl.chat.conversation import Conversations
from asyncrl.env.protocol import MAIN_AGENT
from asyncrl.extensions.league.token_extra import NEXT_STATES, NextStates
from asyncrl.types import Trajectory


def note_next_states(conversations: Conversations, agent: str, trajectory: Trajectory) -> Trajectory:
    """Return the trajectory of `agent` with the states of the other side after its turns.

    The sides are the main agent, and all further agents together. A state that was dropped since it is too long to be
    answered is none.
    """
    read: dict[str, int] = {}
    after: list[tuple[int, int] | None] = []
    for turn in range(len(trajectory.turns)):
        mover, size = conversations.next.get((agent, turn), (agent, 0))
        own = (mover == MAIN_AGENT) == (agent == MAIN_AGENT)
        if own or size > conversations.by_agent[mover].builder.num_tokens:
            after.append(None)
            continue
        read[mover] = size
        after.append((list(read).index(mover), size))
    tokens = (conversations.by_agent[mover].builder.token_ids()[:size] for mover, size in read.items())
    return replace(
        trajectory, extras={**trajectory.extras, NEXT_STATES: NextStates(tuple(tokens), tuple(after))}
    )
