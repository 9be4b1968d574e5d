"""A harness of `verifiers.v1` that has its first answer streamed, and then asks once more."""

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Streaming"]


class StreamingConfig(vf.HarnessConfig):
    api: str = "chat"


class Streaming(vf.Harness[StreamingConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            if self.config.api == "responses":
                await client.responses.create(model=ctx.model, input=data.prompt)
            messages = [{"role": "user", "content": data.prompt}]
            said = ""
            async for chunk in await client.chat.completions.create(
                model=ctx.model, messages=messages, stream=True
            ):
                said += "".join(choice.delta.content or "" for choice in chunk.choices)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Sure?"}]
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(0, "", "")
