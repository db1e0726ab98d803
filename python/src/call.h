/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_CALL_H
#define DLXPY_CALL_H

/* dlx.Caller (caller.c), dlx.Service and dlx.Request (service.c): dlx/call.h. */

#include "state.h"

/* Take `k` or `s` over, also when they fail. NULL with an exception. */
PyObject *dlxpy_caller_new(struct dlx_caller *k, const char *topic);
PyObject *dlxpy_service_new(struct dlx_service *s, const char *topic, int64_t timeout_ns);

#endif
