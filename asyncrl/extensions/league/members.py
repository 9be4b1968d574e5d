"""The population that a recipe asks for."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.league.rules.opponents import Population
from asyncrl.extensions.league.settings import OpponentsConfig, exploiters


def population(config: Config) -> Population | None:
    """Return the past versions that groups are dealt as opponents; None where the policy plays all agents."""
    o = config.section(OpponentsConfig)
    if o.choose == "off":
        return None
    exploiter = next(iter(exploiters(config.policies)), "")
    return Population(o.choose, o.every, o.size, o.self_play, o.power, config.run.seed, exploiter)


def most_members(config: Config) -> int:
    """Return how many past versions and copies of exploiters an engine holds at most."""
    members = population(config)
    if members is None:
        return 0
    copies = members.size + 1 if members.exploiter else 0
    return members.most_served(config.buffer.max_staleness) + copies


def minimax(config: Config) -> bool:
    """True where an exploiter's turns are rewarded by the critic of the recipe's own policy."""
    return any(policy.minimax for policy in exploiters(config.policies).values())
