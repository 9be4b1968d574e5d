"""An agent on a machine of its own: it asks a gateway that has joined a run for episodes, plays and judges them.

    python outside_player.py URL TOKEN_FILE RECORDS

Knows the gateway's address, its token and the openai package, and of asyncrl only the game that it plays. A line of
RECORDS is one finished episode: what it was told, what it sampled as the API showed it, and the gateway's last answer.
"""

import json
import sys
from pathlib import Path

import httpx
import openai

from asyncrl.env.protocol import Action
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


def main() -> None:
    url, token_file, records = sys.argv[1:]
    headers = {"Authorization": f"Bearer {Path(token_file).read_text().strip()}"}
    with httpx.Client(base_url=url, headers=headers, timeout=90) as gateway, open(records, "a") as file:
        while True:
            answer = gateway.post("/asyncrl/v1/episodes/next", json={"wait_s": 5})
            answer.raise_for_status()
            if (told := answer.json()["episode"]) is not None:
                file.write(json.dumps(play(gateway, told)) + "\n")
                file.flush()


def play(gateway: httpx.Client, told: dict) -> dict:
    """Play one episode at the address that came with it, and report its reward."""
    client = openai.OpenAI(base_url=f"{told['url']}/v1", api_key=told["key"], max_retries=0)
    task = told["task"]
    world = Gridworld(Task(task["id"], "gridworld", task["seed"]))
    messages, logprobs = world.reset(), []
    judged = {"reward": 0.0, "success": False, "components": {}}
    while True:
        try:
            answer = client.chat.completions.create(model="policy", messages=messages, logprobs=True)
        except openai.BadRequestError as error:
            # A walk that no longer fits into the context has not reached its goal. To die of it would keep the episode
            # from everybody until its time is over.
            if not logprobs or error.code != "context_length_exceeded":
                raise
            break
        logprobs += [one.logprob for one in answer.choices[0].logprobs.content]
        said = answer.choices[0].message.content or ""
        step = world.step(Action(said))
        judged = {"reward": step.reward, "success": step.success, "components": step.components}
        if step.done:
            break
        messages += [{"role": "assistant", "content": said}, *step.messages]
    ended = gateway.post(f"/asyncrl/v1/episodes/{told['id']}/finish", json=judged)
    return {"told": told, "judged": judged, "logprobs": logprobs, "status": ended.status_code, **ended.json()}


if __name__ == "__main__":
    main()
