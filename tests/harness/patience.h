/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_PATIENCE_H
#define DLX_TESTS_HARNESS_PATIENCE_H

/* How long a test waits for what has to come: on a machine that does other things, a process may
 * stand still for seconds because its pages are read back from a disk. What is there sooner is
 * taken sooner. */

#include <stdint.h>

#define PATIENCE_S  60
#define PATIENCE_MS (PATIENCE_S * 1000)
#define PATIENCE    (INT64_C(1000000000) * PATIENCE_S)

#endif
