#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the ledger of version 2 that tests/daemon/test_daemon_ledger.c reads: header, entry, free,
entry."""

import pathlib
import struct

ENTRY = struct.Struct("<6Q8I64s256s112x")
HEADER = struct.Struct("<16sII488x")


def entry(base, client, topic):
    return ENTRY.pack(*range(base, base + 14), client, topic)


pathlib.Path(__file__).with_name("version-2").write_bytes(
    HEADER.pack(b"dlpackd ledger", 2, ENTRY.size)
    + entry(100, b"camera", b"cam/front")
    + bytes(ENTRY.size)
    + entry(200, b"n" * 63, b"t" * 255)
)
