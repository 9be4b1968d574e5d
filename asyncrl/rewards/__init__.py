"""Rewards: what an answer of the policy is worth, by name or by a function of the user's own.

reward = load_reward("math")                       # or "my.py:f", or [{"name": "math", "weight": 1.0}, ...]
why = reward.check_row(row)                        # None, or why no answer to this row can be right
scores = await reward.score([Completion(...)])     # raises NotJudged: never a reward of 0
"""

from asyncrl.rewards.loading import load_reward as load_reward
from asyncrl.rewards.protocol import Completion as Completion
from asyncrl.rewards.protocol import NotJudged as NotJudged
from asyncrl.rewards.protocol import Reward as Reward
from asyncrl.rewards.protocol import Score as Score
