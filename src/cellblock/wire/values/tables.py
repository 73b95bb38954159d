"""Converts data frames and tables to Arrow's stream format, and back within bounds."""

from __future__ import annotations

import struct
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.wire.values.optional import module, type_name

_MAX_METADATA = 1024 * 1024
_MAX_COLUMNS = 10_000
_MAX_OBJECTS = 250_000
"""Maximum values of a table that become Python objects. pandas makes them while holding the interpreter's lock."""
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_COMPRESSION = 3  # the field of a record batch, in Arrow's Message.fbs


def encode(value: Any) -> tuple[str, bytes]:
    """Return the name of a table's form, and its bytes.

    Raises:
        InvalidInputError: pyarrow is missing, or a column cannot be encoded.
    """
    form = type_name(value)
    arrow = module("pyarrow", f"a {form}")
    try:
        if form == "pandas.DataFrame":
            table = arrow.Table.from_pandas(value)
        elif form == "pandas.Series":
            table = arrow.Table.from_pandas(value.to_frame("value" if value.name is None else value.name))
            table = table.replace_schema_metadata(
                {**table.schema.metadata, b"unnamed": b"1"} if value.name is None else table.schema.metadata
            )
        else:
            table = value if form == "pyarrow.Table" else value.to_arrow()
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a {form} has a column that cannot be transferred ({str(error)[:200]}): convert the column, or leave it out"
        ) from error
    _check_columns(arrow, table.schema)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return form, sink.getvalue().to_pybytes()


def read(data: bytes) -> Any:
    """Parse a `pyarrow.Table`.

    Raises:
        InvalidInputError: It is not a table, or could take more memory than its bytes.
    """
    arrow = module("pyarrow", "a table")
    for message in arrow.ipc.MessageReader.open_stream(data):
        if is_compressed(message.metadata.to_pybytes()):
            raise InvalidInputError("the session sent a compressed table, which is not supported")
    stream = arrow.ipc.open_stream(data)
    _check_columns(arrow, stream.schema)
    table = stream.read_all()
    _check_size(table, len(data))
    table.validate(full=True)
    return table


def _check_size(table: Any, size: int) -> None:
    """Check that a table is not larger than its bytes: columns can share bytes, or have none."""
    if table.nbytes > 2 * size or table.num_rows * table.num_columns > 8 * size:
        raise InvalidInputError("the session sent a table with wrong lengths")


def read_frame(data: bytes) -> Any:
    """Parse a `pandas.DataFrame`. Raises as `read`."""
    module("pandas", "a pandas.DataFrame")
    table = read(data)
    _check_objects(table)
    return table.to_pandas()


def _check_objects(table: Any) -> None:
    """Reject tables that would block this process for long, such as a list or a dictionary in each of millions of rows."""
    arrow = module("pyarrow", "a table")
    count = 0
    for name, column in zip(table.column_names, table.columns, strict=True):
        count += _objects(arrow, column)
        if count > _MAX_OBJECTS:
            raise InvalidInputError(
                f"column {name!r:.80} is of type {str(column.type)[:80]}: as a pandas.DataFrame, the table would have "
                f"more than {_MAX_OBJECTS:,} values that are Python objects. Send a pyarrow.Table, or fewer rows at a time"
            )


def _objects(arrow: Any, column: Any, *, nested: bool = False) -> int:
    """Return the number of Python objects that pandas creates for a column. Eight fast ones count as one slow one."""
    types, kind, rows = arrow.types, column.type, len(column)
    if types.is_dictionary(kind):
        return sum(_objects(arrow, arrow.chunked_array([chunk.dictionary])) for chunk in column.chunks)
    if types.is_list(kind) or types.is_large_list(kind):
        return rows + _objects(arrow, module("pyarrow.compute", "a table").list_flatten(column), nested=True)
    if types.is_struct(kind):
        return rows + sum(max(rows, _objects(arrow, field, nested=True)) for field in column.flatten())
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind):
        return rows
    quick = types.is_null(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    quick = quick or (types.is_boolean(kind) and column.null_count > 0)
    text = nested and (types.is_string(kind) or types.is_large_string(kind))
    return rows // 8 if quick or text else 0


def read_series(data: bytes) -> Any:
    """Parse a `pandas.Series`. Raises as `read`."""
    table = read(data)
    series = read_frame(data).iloc[:, 0]
    return series.rename(None) if b"unnamed" in (table.schema.metadata or {}) else series


def read_polars(data: bytes) -> Any:
    """Parse a `polars.DataFrame`. Raises as `read`."""
    return module("polars", "a polars.DataFrame").from_arrow(read(data))


def _check_columns(arrow: Any, schema: Any) -> None:
    """Check that the memory of each column's type is bounded by its bytes, and that reading it runs no code."""
    metadata = schema.metadata or {}
    if len(schema) > _MAX_COLUMNS or sum(len(key) + len(value) for key, value in metadata.items()) > _MAX_METADATA:
        raise InvalidInputError(f"a table may have {_MAX_COLUMNS:,} columns and {_MAX_METADATA:,} bytes of metadata")
    for column in schema:
        if not _is_simple(arrow.types, column.type):
            raise InvalidInputError(
                f"column {column.name!r:.80} is of type {str(column.type)[:80]}: it cannot be transferred; convert it"
            )


def _is_simple(types: Any, kind: Any) -> bool:
    if types.is_dictionary(kind):
        return _is_simple(types, kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return not types.is_null(kind.value_type) and _is_simple(types, kind.value_type)
    if types.is_struct(kind):
        return kind.num_fields <= _MAX_COLUMNS and all(_is_simple(types, kind.field(i).type) for i in range(kind.num_fields))
    return bool(
        types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )


def is_compressed(header: bytes) -> bool:
    """Return whether a message's body is compressed: a few bytes could then become gigabytes.

    Args:
        header: The message's flatbuffer, verified by Arrow, which does not expose this field.
    """
    root = _at(header, 0)
    kind, place = _field(header, root, 1), _field(header, root, 2)
    if kind is None or place is None:
        return False
    batch = _at(header, place)
    if header[kind] == _DICTIONARY_BATCH and (inner := _field(header, batch, 1)) is not None:
        batch = _at(header, inner)
    elif header[kind] != _RECORD_BATCH:
        return False
    return _field(header, batch, _COMPRESSION) is not None


def _at(header: bytes, place: int) -> int:
    """Follow the reference at an offset."""
    return place + int(struct.unpack_from("<I", header, place)[0])


def _field(header: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a table, if it exists."""
    fields = table - struct.unpack_from("<i", header, table)[0]
    offset = 4 + 2 * number
    if offset >= struct.unpack_from("<H", header, fields)[0]:
        return None
    found = int(struct.unpack_from("<H", header, fields + offset)[0])
    return table + found if found else None
