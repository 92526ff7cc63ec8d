"""The same stack with nothing in it: FastAPI, raw ASGI, aiohttp. Bytes pass, nothing is read or kept. Usage: bare.py PORT UPSTREAM_URL"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI
from yarl import URL

session: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    global session
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield


rest = FastAPI(lifespan=lifespan)
url = URL(sys.argv[2] + "/chat/completions")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http" or scope["path"] != "/v1/chat/completions":
        await rest(scope, receive, send)
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as answer:
        headers = [(b"content-type", answer.headers["content-type"].encode())]
        if "content-length" in answer.headers:
            headers.append((b"content-length", answer.headers["content-length"].encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        while chunk := await answer.content.readany():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False, server_header=False)
