/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_OBSERVER_H
#define DLXPY_OBSERVER_H

/* dlx.Observer. */

#include "state.h"

/* Takes `o` over, also when it fails. NULL with an exception. */
PyObject *dlxpy_observer_new(struct dlx_observer *o, const char *topic);

#endif
