"""A small request without a service around it: what an engineer would write in an afternoon.

    python -m georesolve.benchmarks.bare_app references.parquet 8001

One endpoint of FastAPI, pydantic for the body, a thread for the kernels, pyarrow for the answer,
uvloop and httptools below, one process. It knows one set of references and indexes it at the start;
it checks nothing that pydantic does not. `benchmarks.small_requests` holds the service against it.
"""

import asyncio
import io
import socket
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from georesolve import kernels


class Points(BaseModel):
    """Where something was seen."""

    lat: list[float]
    lon: list[float]


class Asked(BaseModel):
    """The body of a request; the references are those of the app, whatever it says of them."""

    observations: Points
    k: int = 1
    max_distance_m: float | None = None


def create_app(references: Path) -> FastAPI:
    """The application, with the points of a Parquet file as its references."""
    table = pq.read_table(references)
    index = kernels.build_index(table["lat"].to_numpy(), table["lon"].to_numpy())
    app = FastAPI()

    @app.post("/nearest")
    async def nearest(asked: Asked) -> Response:
        """Answer in Parquet."""
        lat_deg, lon_deg = np.array(asked.observations.lat), np.array(asked.observations.lon)
        search = partial(kernels.nearest, k=asked.k, max_distance_m=asked.max_distance_m)
        answer = await asyncio.to_thread(search, index, lat_deg, lon_deg)  # noqa: TID251
        sink = io.BytesIO()
        of = np.arange(lat_deg.size).repeat(asked.k)
        found = {name: column.reshape(-1) for name, column in answer._asdict().items()}
        pq.write_table(pa.table({"observation": of, **found}), sink)
        return Response(sink.getvalue(), media_type="application/vnd.apache.parquet")

    return app


def main() -> None:
    """Serve, and print the address."""
    app = create_app(Path(sys.argv[1]))
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="warning")
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
