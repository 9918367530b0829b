"""A small request without a service around it: one endpoint of plain FastAPI.

    python -m georesolve.benchmarks.bare_app references.parquet 8001

The model of the request, the kernels and the writer of Parquet are the service's. It knows one set
of references and reads its coordinates at the start; it checks nothing that pydantic does not.
`benchmarks.small_requests` holds the service against it.
"""

import io
import socket
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import uvicorn
from fastapi import FastAPI, Response

from georesolve import kernels
from georesolve.intake.representations import PARQUET
from georesolve.kernels.query import is_valid
from georesolve.service.resolve.models import Arrays, MatchInputs
from georesolve.workers.matches import answered, matches
from georesolve.workers.plan import Chunk
from georesolve.workers.result import write_rows


def create_app(references: Path) -> FastAPI:
    """The application, with the points of a Parquet file as its references."""
    table = pq.read_table(references)
    index = kernels.build_index(table["lat"].to_numpy(), table["lon"].to_numpy())
    app = FastAPI()

    @app.post("/nearest")
    def nearest(asked: MatchInputs) -> Response:
        """Answer in Parquet."""
        assert isinstance(asked.observations, Arrays), "arrays by column name"
        columns = asked.observations.columns
        lat_deg, lon_deg = (np.array(columns[name], float) for name in ("lat", "lon"))
        options = asked.options(None, None)
        answer = kernels.nearest(
            index, lat_deg, lon_deg, k=options.k, max_distance_m=options.max_distance_m
        )
        found = answered(answer, is_valid(lat_deg, lon_deg), table.num_rows, options)
        rows, _ = matches(options.k, Chunk(0, lat_deg.size), found)
        sink = io.BytesIO()
        write_rows(sink, rows)
        return Response(sink.getvalue(), media_type=PARQUET.media_type)

    return app


def main() -> None:
    """Serve, and print the address."""
    app = create_app(Path(sys.argv[1]))
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
