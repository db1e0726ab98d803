/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_LEDGER_H
#define DLXD_LEDGER_H

/*
 * What the next daemon must know of each publisher whose regions the service manager stores: a
 * memfd, stored with them, with one entry of fixed size for each publisher. An entry lies in one
 * page and is written by one pwrite(2), so a daemon that is killed leaves either the old or the new
 * entry. daemon/persist/record.h defines the fields and the names of the regions.
 *
 * The ledger has the protocol's major version, because the regions that it names have that layout.
 * A new field takes reserved bytes, in which 0 stands for the former behaviour: an older daemon,
 * which may follow a newer one, ignores the field and writes 0. Any other change raises the
 * version. tests/data/ledger/ has the present layout.
 */

#include <stdbool.h>
#include <stdint.h>

struct dlxd_ledger_entry {
    uint64_t id; /* 0: a free entry */
    uint64_t resumes;
    uint64_t after_seq;
    uint64_t retain_for_ns;
    uint64_t max_held_bytes; /* that one link may hold; 0: no limit */
    /* On the monotonic clock; 0: the publisher is alive, or its messages stay forever. */
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
    /* The listening socket on which the client connected; "": the main one. Since protocol 2.5. */
    char socket[32];
    uint32_t latched; /* not retained after its end: only handed over (handover.h) */
    /* Declared groups of workers, whose descriptors name them, and whose processes the workers are.
     * Since protocol 2.8. */
    uint32_t n_groups;
    uint32_t workers_uid;
    char workers_socket[32]; /* as `socket` */
    uint8_t reserved[36];    /* 0; later daemons may write something */
};

struct dlxd_ledger {
    int fd; /* -1: none */
    bool *used;
    uint32_t n;
};

/* Makes an empty ledger. Returns 0; DLX_E_FD_LIMIT, DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_ledger_init(struct dlxd_ledger *ledger);
/* Opens a ledger that a former daemon wrote. Takes the fd, also on failure. Returns 0;
 * DLX_E_VERSION (no ledger, or one of another version, which the message names), DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlxd_ledger_open(struct dlxd_ledger *ledger, int take_fd);
void dlxd_ledger_deinit(struct dlxd_ledger *ledger);

/* Writes the entry at this index, or at a free one if it is 0. Returns the index; DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlxd_ledger_put(struct dlxd_ledger *ledger, uint32_t index,
                    const struct dlxd_ledger_entry *entry);
void dlxd_ledger_remove(struct dlxd_ledger *ledger, uint32_t index);
/* Reads an entry and terminates its strings. Returns false if there is none. Indices are 1 to
 * `n`. */
bool dlxd_ledger_get(const struct dlxd_ledger *ledger, uint32_t index,
                     struct dlxd_ledger_entry *ret);

#endif
