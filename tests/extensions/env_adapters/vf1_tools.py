"""A taskset of `verifiers.v1` with a tool server that all its tasks share."""

import verifiers.v1 as vf

__all__ = ["ToolTaskset"]


class Calculator(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def double(self, number: int) -> int:
        """Twice a number."""
        return 2 * number


class ToolTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def used(self, trace: vf.Trace) -> float:
        return float(any(message.role == "tool" and message.content == "42" for message in trace.messages))


class ToolTaskset(vf.Taskset[ToolTask, vf.TasksetConfig]):
    def load(self):
        yield ToolTask(vf.TaskData(prompt="Twice 21?"), self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.ToolsetConfig())]


if __name__ == "__main__":
    Calculator.run()
