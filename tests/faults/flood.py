"""One key sends as much as it can: `python -m tests.faults.flood URL KEY CLIENTS BODY`.

So many clients at a time send the same body again and again, until the process is told to end. It
writes a line with the first answer, and in the end the seconds that each one took, and how many
there were by status, as JSON.
"""

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import httpx


async def flood(url, key, clients, body):
    seconds, statuses, ended = [], Counter(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    headers = {"Content-Type": "application/json", "X-API-Key": key}
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=100, limits=limits) as client:

        async def one_client():
            while True:
                start = time.monotonic()
                answer = await client.post("/nearest", content=body, headers=headers)
                if not seconds:
                    sys.stdout.write("\n")
                    sys.stdout.flush()
                seconds.append(time.monotonic() - start)
                statuses[answer.status_code] += 1

        sending = [asyncio.create_task(one_client()) for _ in range(clients)]
        await ended.wait()
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    return {"seconds": seconds, "statuses": statuses}


if __name__ == "__main__":
    url, key, clients, path = sys.argv[1:]
    found = asyncio.run(flood(url, key, int(clients), Path(path).read_bytes()))
    sys.stdout.write(json.dumps(found))
