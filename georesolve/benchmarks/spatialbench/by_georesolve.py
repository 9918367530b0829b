import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import georesolve

question, trips, buildings, out = sys.argv[2:]
key, name, place, boundary = "b_buildingkey", "b_name", "t_pickuploc", "b_boundary"
ZSTD = {"compression": "zstd", "compression_level": 1}
K, ROWS = 5, 2**18
ENCODED = {
    "t_tripkey": "DELTA_BINARY_PACKED",
    place: "DELTA_BYTE_ARRAY",
    key: "DELTA_BINARY_PACKED",
    "distance_m": "BYTE_STREAM_SPLIT",
}


def in_order(distance, key):
    """Some rows at a time, by distance, of equal ones by key.

    NumPy sorts numbers several times as fast as the rows that they come from, so a number is made
    of a distance, rounded, and its row; rows whose distances are rounded alike are sorted after.
    """
    bits = distance.size.bit_length()
    steps, row = 2.0 ** (63 - bits) / distance.max(initial=1.0), 2**bits - 1
    words = np.empty(distance.size, np.uint64)
    for first in range(0, words.size, ROWS):
        some = words[first : first + ROWS]
        np.multiply(distance[first : first + ROWS], steps, out=some, casting="unsafe")
        some <<= bits
        some |= np.arange(first, first + some.size, dtype=np.uint64)
    words.sort()
    first = 0
    while first < words.size:
        last = words[min(first + ROWS, words.size) - 1]
        some = words[first : np.searchsorted(words, last | np.uint64(row), "right")]
        rows = (some & row).astype(np.int64)
        equal = np.flatnonzero(some[1:] >> bits == some[:-1] >> bits)
        equal = np.union1d(equal, equal + 1)
        of = rows[equal]
        rows[equal] = of[np.lexsort((key(of), distance[of]))]
        yield rows
        first += rows.size


def read(group):
    """Some trips, and the same with places of a fixed size."""
    table = pq.ParquetFile(trips).read_row_group(group, columns=["t_tripkey", place])
    # Points of WKB have 21 bytes: they are taken faster than what may have any number.
    return table, table.set_column(1, place, table[place].cast(pa.binary(21)))


if question == "q8":
    asked = {"observation_geometry": place, "reference_geometry": boundary, "columns": [key, name]}
    counted = {"summary": {"count": True}, "summary_by": "reference"}
    found = georesolve.within(trips, buildings, 500, **counted, **asked)
    found = found.filter(pc.field("count") > 0)
    found = found.sort_by([("count", "descending"), (f"reference_{key}", "ascending")])
    pq.write_table(found.select([f"reference_{key}", f"reference_{name}", "count"]), out, **ZSTD)
else:
    with ThreadPoolExecutor(1) as thread:
        known = pq.read_metadata(trips)
        # They are read while others are searched.
        groups = [thread.submit(read, group) for group in range(known.num_row_groups)]
        index = georesolve.Index(buildings, geometry=boundary)
        reference = np.empty(K * known.num_rows, np.min_scalar_type(len(index)))
        distance = np.empty(reference.size)
        first, of_trips = 0, []
        while groups:
            table, fixed = groups.pop(0).result()
            of_trips.append(fixed)
            found = index.nearest(table, k=K, observation_geometry=place)
            for batch in found.select(["reference", "distance_m"]).to_batches():
                some = slice(first, first + batch.num_rows)
                reference[some], distance[some] = (one.to_numpy() for one in batch.columns)
                first = some.stop
            # The next one is found in the same memory.
            del table, found, batch
        of_trips = pa.concat_tables(of_trips).combine_chunks()
        trip_keys, places = of_trips["t_tripkey"].to_numpy(), of_trips[place].chunk(0)
        names = pq.read_table(buildings, columns=[key, name])
        building_keys = names[key].to_numpy()
        # Each name is written once.
        names = names[name].combine_chunks().dictionary_encode()
        codes = names.indices.to_numpy()

        def taken(rows):
            """The result of some rows."""
            of, building = rows // K, reference.take(rows)
            columns = {
                "t_tripkey": trip_keys.take(of),
                place: places.take(pa.array(of)).cast(pa.binary()),
                key: building_keys.take(building),
                name: pa.DictionaryArray.from_arrays(codes.take(building), names.dictionary),
                "distance_m": distance.take(rows),
            }
            # None is missing, and nothing is written of that.
            table = pa.table(columns)
            return table.cast(pa.schema([one.with_nullable(False) for one in table.schema]))

        schema = taken(np.empty(0, np.int64)).schema
        # The least and the greatest say something of what is sorted alone.
        ways = {"column_encoding": ENCODED, "use_dictionary": [name], "max_rows_per_page": ROWS}
        with pq.ParquetWriter(out, schema, write_statistics=["distance_m"], **ways, **ZSTD) as file:
            written = thread.submit(int)
            # Rows are taken while those before them are written.
            for rows in in_order(distance, lambda of: building_keys[reference[of]]):
                table = taken(rows)
                written.result()
                written = thread.submit(file.write_table, table, rows.size)
            written.result()
