/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_PATIENCE_H
#define DLX_TESTS_HARNESS_PATIENCE_H

/* How long a test waits for an event that must come: on a busy machine, a process may stand still
 * for seconds because its pages are read back from a disk. No test waits longer than it must. */

#include <stdint.h>

#define PATIENCE_S  60
#define PATIENCE_MS (PATIENCE_S * 1000)
#define PATIENCE    (INT64_C(1000000000) * PATIENCE_S)

#endif
