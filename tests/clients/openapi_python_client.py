"""Uses the client that openapi-python-client makes: the service and two CSV files are arguments."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from georesolve_client import Client
from georesolve_client.api.processes import execute
from georesolve_client.api.resolve import estimate, nearest, resolve
from georesolve_client.models import (
    EstimateInputs,
    MatchExecution,
    MatchInputs,
    PointColumns,
    ResolveForm,
)
from georesolve_client.types import File

address, observations, references = map(str, sys.argv[1:])
sets = {role: PointColumns.from_dict(points) for role, points in json.load(sys.stdin).items()}


def file(path):
    return File(payload=Path(path).open("rb"), file_name=path)


def rows(answer):
    return pq.read_table(answer.payload).to_pylist()


with Client(base_url=address) as client:
    inputs = MatchInputs(**sets, k=2)
    form = ResolveForm(
        observations=file(observations), references=file(references), k=2, columns=["name"]
    )
    planned = EstimateInputs(observations=1000, references=100, k=2)
    answers = {
        "nearest": [row.to_dict() for row in nearest.sync(client=client, body=inputs)],
        "resolve": rows(resolve.sync(client=client, body=form)),
        "execution": rows(execute.sync("nearest", client=client, body=MatchExecution(inputs))),
        "estimate": estimate.sync(client=client, body=planned).to_dict(),
    }
print(json.dumps(answers))
