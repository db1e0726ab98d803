/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

/** Values of options. The parse functions are pure; each returns false for anything but a whole,
 *  valid value. */

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stdint.h>

/** Decimal digits only, min to max. */
bool args_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/** A time, 0 to 10^9 seconds, as nanoseconds: "2" and "0.25" are seconds, "100ms" and "5min" have a
 *  unit, of ns, us, ms, s, min, h and d. */
bool args_parse_time(const char *text, int64_t *ret_ns);

/** A rate in hertz, over 0 to 10^9: "30", "29.97Hz", "2kHz". */
bool args_parse_rate(const char *text, double *ret);

/** "3,608,608", "3x608x608" or "(3, 608, 608)"; "()" is a scalar. At most 64 sizes. */
bool args_parse_shape(const char *text, int64_t shape[64], int32_t *ret_ndim);

#endif
