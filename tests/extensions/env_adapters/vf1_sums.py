"""A taskset of `verifiers.v1` with one turn: sums."""

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumsConfig(vf.TasksetConfig):
    start: int = 1
    kind: str = "sums"


class SumsData(vf.TaskData):
    answer: str


def said(trace: vf.Trace) -> str:
    """What the policy wrote; the library gives None for nothing."""
    return trace.messages[-1].content or ""


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        if said(trace) == "boom":
            raise RuntimeError("the judge is broken")
        return float(said(trace).strip() == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(said(trace)))


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        if self.config.kind == "broken":
            raise RuntimeError("the data is gone")
        for a in range(self.config.start, self.config.start + 6):
            data = SumsData(name=f"sum-{a}", prompt=f"{a} + {a}?", system_prompt="Add.", answer=str(2 * a))
            yield SumsTask(data, self.config.task)
