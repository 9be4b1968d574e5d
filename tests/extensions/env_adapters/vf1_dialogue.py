"""An environment of `verifiers.v1` with two agents: a guesser in a dialogue, and a critic of each guess."""

import verifiers.v1 as vf

__all__ = ["Dialogue", "DialogueTaskset"]


class DialogueTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class DialogueConfig(vf.EnvConfig):
    guesser: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()
    frozen_critic: bool = False


class Dialogue(vf.Env[DialogueConfig]):
    async def setup(self, agents):
        agents.critic.trainable = not self.config.frozen_critic

    async def run(self, task, agents):
        async with agents.guesser.interaction(task) as guesser:
            said = await guesser.turn()
            while not said.terminated and said.last_reply != "cat":
                opinion = await agents.critic.run(vf.Task(vf.TaskData(prompt=f"Is {said.last_reply} good?")))
                opinion.record_reward("honest", float(opinion.messages[-1].content == "no"), 0.5)
                said = await guesser.turn("wrong")
        guesser.trace.record_reward("found", float(said.last_reply == "cat"), 1.0)


class DialogueTaskset(vf.Taskset[DialogueTask, vf.TasksetConfig]):
    def load(self):
        yield DialogueTask(vf.TaskData(prompt="Guess."), self.config.task)
