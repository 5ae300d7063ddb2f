"""The declarative root of every table, and what tables share."""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    DateTime,
    Double,
    Enum,
    MetaData,
    String,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """The base class of our tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own declaration
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB(none_as_null=True),
        list[str]: ARRAY(String),
        list[float]: ARRAY(Double),
        float: Double,
    }


def uuid7() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): sorts by creation time, so that pages have a stable order.

    The 12 bits behind the milliseconds count 1/4096 of one (section 6.2, method 3), the last 62 are random.
    """
    whole_ms, rest_ns = divmod(time.time_ns(), 1_000_000)
    value = whole_ms << 80 | 0x7 << 76 | rest_ns * 4096 // 1_000_000 << 64
    return uuid.UUID(int=value | 0x2 << 62 | int.from_bytes(os.urandom(8), "big") >> 2)


def by_value(enum: type[StrEnum], name: str) -> Enum:
    """The column type of an enum: its words, checked by the database."""
    return Enum(
        enum,
        name=name,
        native_enum=False,
        length=32,
        create_constraint=True,
        values_callable=lambda e: [m.value for m in e],
    )
