/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_BENCH_MEASURE_DLX_H
#define DLX_BENCH_MEASURE_DLX_H

/* What those benchmark programs share that use libdlx; the programs of bench/peers that do not stay
 * without it. */

#include "measure.h"

#include <dlx/dlx.h>

/** Ends the program, naming `what`, unless the code `r` of libdlx is 0. */
void bm_check(int r, const char *what);

struct dlx_client *bm_connect(void);

/** A topic of this run of this program: "bench/<pid of the parent>/<name>". */
const char *bm_topic(const char *name, pid_t pid, char buffer[static 64]);

/** Uint8 tensor of `size` bytes: fills `shape`, which the specification borrows. */
struct dlx_tensor_spec bm_bytes(int64_t shape[static 1], size_t size);

struct dlx_message *bm_take(struct dlx_subscription *s);
struct dlx_subscription_stats bm_subscription_stats(struct dlx_subscription *s);
struct dlx_publisher_stats bm_publisher_stats(struct dlx_publisher *p);

#endif
