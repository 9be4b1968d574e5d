import asyncio
import struct

from asyncrl.extensions.remote_sandboxes.docker_api import DockerApi, read_frames

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\n\r\n"


def test_output_is_kept_where_the_engine_resets_the_connection_over_unread_input(tmp_path):
    async def engine(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(UPGRADED + struct.pack(">BxxxI", 1, 5) + b"done\n")
        await writer.drain()
        writer.transport.pause_reading()
        await asyncio.sleep(0.2)
        # With input in the socket that nobody read, closing is a reset to the other side.
        writer.transport.abort()

    async def output():
        path = str(tmp_path / "engine.sock")
        pieces = []
        async with await asyncio.start_unix_server(engine, path):
            api = DockerApi(path)
            reader, writer = await api.attach("any")
            writer.write(b"x" * 100_000)
            # As on a busy machine: the reset has come before the first frame is read.
            await asyncio.sleep(0.5)
            await asyncio.wait_for(
                read_frames(reader, lambda is_stderr, data: pieces.append((is_stderr, data))), 10
            )
            writer.close()
            await api.close()
        return pieces

    assert asyncio.run(output()) == [(False, b"done\n")]
