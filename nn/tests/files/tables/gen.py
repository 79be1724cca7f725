"""Writes the tables that tests/suite/typed_tables.rs reads. Needs pyarrow, pandas and polars; run in this folder."""

import datetime
import decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

HOUSES = {
    "area": [95.0, None, 64.0, 120.0, 41.0, 150.0],
    "built": [1931, 1980, 1975, None, 1999, 1905],
    "price": [decimal.Decimal(p) for p in ["310.50", "99.25", "120.00", "405.75", "88.00", "500.00"]],
    "garden": [True, False, False, True, None, True],
    "district": ["north, old", "south", "south", "north, old", "centre", None],
    "kind": ["house", "flat", "flat", "house", "flat", "house"],
}


def houses():
    """As pandas has it: nullable integers, a category, and an index that is no range."""
    frame = pd.DataFrame(HOUSES, index=[10, 20, 30, 40, 50, 60])
    frame["built"] = frame["built"].astype("Int16")
    frame["garden"] = frame["garden"].astype("boolean")
    frame["district"] = frame["district"].astype("category")
    return frame


houses().to_parquet("pandas.parquet")
houses().reset_index(drop=True).to_feather("pandas.feather")

# Types that are no numbers and no texts, beside some that are.
day = datetime.date(2020, 1, 1)
odd = pa.table({
    "id": pa.array([1, 2, 3], pa.int64()),
    "day": pa.array([day, day, None], pa.date32()),
    "sold": pa.array([datetime.datetime(2020, 1, 2)] * 3, pa.timestamp("ms", tz="UTC")),
    "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
    "raw": pa.array([b"a", b"b", b""], pa.binary()),
    "place": pa.array([{"x": 1.0}, {"x": 2.0}, None], pa.struct({"x": pa.float64()})),
    "none": pa.array([None, None, None], pa.null()),
    "kind": pa.array([True, False, True]),
})
pq.write_table(odd, "odd.parquet")
feather.write_feather(odd, "odd.arrow", compression="uncompressed")

# Every width, with the ends of its range where they are exact in f32.
numbers = {}
for name, least, most in [
    ("int8", -128, 127), ("int16", -(2**15), 2**15 - 1), ("int32", -(2**31), 2**24), ("int64", -(2**63), 2**24),
    ("uint8", 0, 255), ("uint16", 0, 65535), ("uint32", 0, 2**31), ("uint64", 0, 2**63),
    ("float16", -2.5, 65504.0), ("float32", -1.5, 2.0**100), ("float64", -0.25, 1e-3),
]:
    kind = getattr(pa, name)()
    values = [least, most, None]
    numbers[name] = pa.array([None if v is None else pd.Series([v], dtype=name)[0] for v in values], kind)
numbers["codes"] = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array([7, 9], pa.int32()))
numbers["large"] = pa.array(["u", None, "v"], pa.large_string())
numbers["view"] = pa.array(["u", "w", "a text of more than twelve bytes"], pa.string_view())
numbers["id"] = pa.array([2, 0, 1], pa.uint8())
numbers = pa.table(numbers)
with pa.OSFile("numbers.arrows", "wb") as file, pa.ipc.new_stream(file, numbers.schema) as stream:
    stream.write_table(numbers)

# Compressions and row groups: 0..300 and its remainder by 3, ten rows a group.
rows = pa.table({"x": pa.array(range(300), pa.int32()), "rest": pa.array([f"r{i % 3}" for i in range(300)])})
for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
    pq.write_table(rows, f"{codec}.parquet", compression=codec, row_group_size=100)
for codec in ["uncompressed", "lz4", "zstd"]:
    feather.write_feather(rows, f"{codec}.feather", compression=codec, chunksize=100)
feather.write_feather(rows, "version1.feather", version=1)
frame = pl.from_arrow(rows)
frame.write_parquet("polars.parquet")
frame.write_ipc("polars.arrow")
