/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CLAIMS_H
#define DLXD_CLAIMS_H

/*
 * Reads a group's claims page (ring/layout.h) for lists, and to see whether something is left to
 * do. Its workers write it and may remove its pages, so it is read like a file, and any number may
 * be in it: what the daemon decides by it concerns that group alone.
 *
 * The cells say all: message n had the cell n % n_entries, and the cell's lap tells which of the
 * messages with that cell was claimed last. Those that came later wait, or were dropped before
 * a worker claimed them.
 */

#include "daemon/memory/report.h"

/* The daemon's own knowledge of a group. */
struct dlxd_claims_terms {
    int borrow_fd; /* of the page; -1: no worker has come yet */
    uint32_t n_entries;
    uint64_t first;       /* its first message if no worker has come yet */
    uint64_t done_before; /* messages below this were done by an earlier control block */
};

struct dlxd_claims_report {
    uint64_t waiting;
    uint64_t in_flight;
    uint64_t done;
    uint64_t redelivered;
    uint64_t dead;
    uint64_t lost;
    uint64_t oldest; /* the oldest message that waits or is in flight; 0: none */
};

/* A message that a worker has. */
struct dlxd_claim {
    uint64_t seq;
    uint32_t owner;
    uint32_t attempt;
};

/* `control` is that of the publisher. Returns false, with zeros, if the page cannot be read. Takes
 * 4 ns for each entry. */
bool dlxd_claims_report(const struct dlxd_claims_terms *terms,
                        const struct dlxd_control_report *control, struct dlxd_claims_report *ret);
/* The first `n_max` claims on messages after `after_seq`, by number. Returns how many there are;
 * `ret_more`: there are others. A page that cannot be read has none. */
uint32_t dlxd_claims_list(const struct dlxd_claims_terms *terms, uint64_t after_seq,
                          struct dlxd_claim *ret, uint32_t n_max, bool *ret_more);
/* The numbers of workers that have claims, as bits that are set in `bits`, of which there are
 * DLX_SHM_OWNERS_MAX + 1. Returns 0; DLX_E_SYSTEM (the page cannot be read). */
int dlxd_claims_owners(const struct dlxd_claims_terms *terms, uint64_t *bits);
/* When the message was published; 0: it is not in the control block any more. */
uint64_t dlxd_claims_published_ns(int borrow_control_fd, uint32_t n_entries, uint64_t seq);

#endif
