"""Transformations to WGS 84, and warnings about those that leave out the shift of a datum."""

import warnings

import geopandas
import numpy as np
import pyarrow as pa
import pytest
import shapely

import georesolve
from georesolve import files

# The datum is called as Esri's old files call it, which PROJ does not know.
CLARKE = (
    'GEOGCS["Old",DATUM["Old datum of some survey",SPHEROID["Clarke 1866",6378206.4,294.9786982]],'
    'PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]]'
)
ORIGIN = {"lat": np.array([40.0]), "lon": np.array([-100.0])}


def of_columns(crs):
    return {"lat": np.array([40.0]), "lon": np.array([-100.0])}, {"crs": crs}


def of_wkb(crs):
    wkb = pa.array(shapely.to_wkb([shapely.Point(-100, 40)]), pa.binary())
    return pa.table({"g": wkb}), {"crs": crs, "geometry": "g"}


def of_frame(crs):
    return geopandas.GeoDataFrame(geometry=[shapely.Point(-100, 40)], crs=crs), {}


@pytest.fixture(params=[of_columns, of_wkb, of_frame, "fgb", "gpkg", "shp", "parquet"])
def table_of(request, tmp_path):
    if callable(request.param):
        return request.param

    def written(crs):
        path = tmp_path / f"x.{request.param}"
        frame, _ = of_frame(crs)
        (frame.to_parquet if request.param == "parquet" else frame.to_file)(path)
        return path, {}

    return written


@pytest.mark.parametrize("role", ["observation", "reference"])
def test_a_datum_that_proj_does_not_know_gives_a_warning(table_of, role):
    table, options = table_of(CLARKE)
    options = {f"{role}_{name}": value for name, value in options.items()}
    sets = (table, ORIGIN) if role == "observation" else (ORIGIN, table)
    with pytest.warns(UserWarning, match=f"^{role}s: PROJ knows.*ballpark.*accuracy is unknown"):
        georesolve.nearest(*sets, **options)


@pytest.mark.parametrize("crs", ["EPSG:4267", "EPSG:4269", "EPSG:4258", "EPSG:4326+5773"])
def test_a_datum_that_proj_knows_gives_none(table_of, crs):
    table, options = table_of(crs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = georesolve.nearest(
            ORIGIN, table, **{f"reference_{k}": v for k, v in options.items()}
        )
    assert result["distance_m"][0] < 200


def test_rows_outside_of_the_area_of_a_datum_give_a_warning():
    """NAD27 is of North America."""
    table = {"lat": np.array([40.0, 50.0]), "lon": np.array([-100.0, 10.0])}
    with pytest.warns(UserWarning, match="PROJ knows no transformation of some rows"):
        georesolve.nearest(table, ORIGIN, observation_crs="EPSG:4267")


def test_a_run_on_files_reports_warnings(tmp_path):
    frame, _ = of_frame(CLARKE)
    frame.to_file(tmp_path / "x.gpkg")
    (tmp_path / "y.csv").write_text("lat,lon\n40,-100\n")
    for name in ("x.gpkg", "y.csv"):
        summary = files.resolve(tmp_path / "y.csv", tmp_path / name, tmp_path / "out.parquet")
        assert len(summary.remarks) == (name == "x.gpkg")
    assert "ballpark" in files.plan(tmp_path / "x.gpkg", tmp_path / "y.csv").remarks[0]
