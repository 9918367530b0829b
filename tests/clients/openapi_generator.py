"""Uses the client that openapi-generator makes: its arguments are the service and two CSV files."""

import json
import sys
from pathlib import Path

from georesolve_client import (
    ApiClient,
    Configuration,
    EstimateInputs,
    EstimateRequest,
    MatchExecution,
    MatchInputs,
    PointSet,
    ProcessesApi,
    ResolveApi,
    RowsOrPointSet,
)

address, observations, references = sys.argv[1:]
sets = json.load(sys.stdin)
with ApiClient(Configuration(host=address)) as client:
    resolve, processes = ResolveApi(client), ProcessesApi(client)
    inputs = MatchInputs(
        observations=PointSet(sets["observations"]), references=PointSet(sets["references"]), k=2
    )
    answers = {
        "nearest": [row.to_dict() for row in resolve.nearest(inputs)],
        # Bytes, since the answer may be Parquet; this client asks for JSON.
        "resolve": json.loads(
            resolve.resolve(
                observations=(observations, Path(observations).read_bytes()),
                references=(references, Path(references).read_bytes()),
                k=2,
                columns=["name"],
            )
        ),
        "execution": json.loads(processes.execute("nearest", MatchExecution(inputs=inputs))),
    }
    rows = {"observations": RowsOrPointSet(1000), "references": RowsOrPointSet(100)}
    planned = EstimateRequest(EstimateInputs(**rows, k=2))
    answers["estimate"] = resolve.estimate(planned).to_dict()
print(json.dumps(answers))
