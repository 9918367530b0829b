"""What clients are told of registered datasets."""

from typing import Annotated

from pydantic import BaseModel, Field

from georesolve.service.links import Link
from georesolve.service.store.rows import DatasetRow


class DatasetInfo(BaseModel):
    """A registered dataset."""

    id: str
    names: list[str] = Field(
        description="what else stands for it: `places` where it is the newest version of that "
        "name, `places@3` as long as it is kept"
    )
    rows: int
    invalid_rows: int
    bbox: Annotated[list[float], Field(min_length=4, max_length=4)] | None = Field(
        description="west, south, east and north of its valid points, in degrees"
    )
    columns: list[str]
    lat: str
    lon: str
    id_column: str | None
    sha256: str
    size_bytes: int = Field(description="of its file, as the service keeps it")
    created: str
    expires: str | None = Field(description="when it is removed unless it is used again")
    owner: str | None = Field(
        None, description="the name of the key that it was made with, told to the role admin"
    )

    @classmethod
    def of(cls, row: DatasetRow, names: list[str], owner: str | None) -> "DatasetInfo":
        """What a client is told of a dataset; of its owner, if the client is told, the name."""
        dataset = row.dataset
        own = {"names": names, "id_column": dataset.id, "sha256": dataset.sha256, "owner": owner}
        return cls.model_validate(vars(dataset) | vars(row) | own)


class DatasetList(BaseModel):
    """Registered datasets, the newest first."""

    datasets: list[DatasetInfo]
    used_bytes: int = Field(
        description="bytes that the datasets and results of the key take, and unfinished jobs are "
        "expected to"
    )
    quota_bytes: int | None = Field(description="how many they may; null without keys")
    links: list[Link]
