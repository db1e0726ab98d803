/* SPDX-License-Identifier: Apache-2.0 */

/* What bindgen reads. */

#include <dlx/dlx.h>
