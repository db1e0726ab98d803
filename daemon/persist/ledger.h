/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LEDGER_H
#define DLXD_LEDGER_H

/*
 * What the next daemon must know of each publisher whose regions the service manager keeps: a memfd that is kept with them,
 * with an entry of fixed size for each. An entry lies in one page and is written by one pwrite(2), so a daemon that is
 * killed leaves it old or new. Its members and the names of the regions: daemon/persist/record.h.
 *
 * Its version is the protocol's major version, since the regions that it names have that layout.
 * A new field takes reserved bytes, and 0 in them stands for what daemons did before: an older
 * daemon, which may follow a newer one, ignores the field and writes 0. Any other change raises
 * the version. tests/data/ledger/ holds the present layout.
 */

#include <stdbool.h>
#include <stdint.h>

struct dlxd_ledger_entry {
    uint64_t id; /* 0: a free entry */
    uint64_t resumes;
    uint64_t after_seq;
    uint64_t retain_for_ns;
    uint64_t max_held_bytes; /* that one link may hold; 0: no bound */
    /* Of the monotonic clock; 0: its publisher is there, or it stays for ever. */
    uint64_t expires_ns;
    uint32_t history;
    uint32_t depth;
    uint32_t n_entries;
    uint32_t on_full;
    uint32_t retain;
    uint32_t pid;
    uint32_t uid;
    uint32_t max_held;
    char client_name[64];
    char topic[256];
    /* The listening socket that it came in by; "": the main one. Since protocol 2.5. */
    char socket[32];
    uint32_t latched;     /* not beyond its end: only while it is handed over (handover.h) */
    uint8_t reserved[76]; /* 0; later daemons may have written something */
};

struct dlxd_ledger {
    int fd; /* -1: none */
    bool *used;
    uint32_t n;
};

/* An empty one. Returns 0; DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_ledger_init(struct dlxd_ledger *ledger);
/* One that a former daemon wrote. Takes the fd, also on failure. Returns 0; DLX_E_VERSION (of
 * another version, which the message names, or none at all), DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_ledger_open(struct dlxd_ledger *ledger, int take_fd);
void dlxd_ledger_deinit(struct dlxd_ledger *ledger);

/* Write the entry at this index, or at a free one if it is 0. Returns the index; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_ledger_put(struct dlxd_ledger *ledger, uint32_t index,
                    const struct dlxd_ledger_entry *entry);
void dlxd_ledger_remove(struct dlxd_ledger *ledger, uint32_t index);
/* False: there is none. Strings are terminated. Indices are 1 to `n`. */
bool dlxd_ledger_get(const struct dlxd_ledger *ledger, uint32_t index,
                     struct dlxd_ledger_entry *ret);

#endif
