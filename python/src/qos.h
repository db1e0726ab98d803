/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_QOS_H
#define DLXPY_QOS_H

/* What publishers offer, in the words of Connection.publisher(). NULL with an exception. */

#include "state.h"

/* "drop" or "block". */
PyObject *dlxpy_on_full(uint32_t on_full);

/* The seconds that messages stay, "latched", or None for no limit. */
PyObject *dlxpy_retain_for(int64_t ns);

/* A dlx.Qos. */
PyObject *dlxpy_qos_of(const struct dlx_message *m);

#endif
